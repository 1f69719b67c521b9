"""Charges allocated claims to a node's cards for as long as the node's words may not show them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from allocator.cards import CardAmounts
from allocator.claims import AllocatedDevice, ClaimObject
from allocator.errors import QuantityError
from allocator.ids import device_names
from allocator.names import NODE_SERVES, SERVES_CLAIMS
from allocator.packing import MAX_COMPUTE_LIMIT
from kubeapi.metadata import parse_resource_version
from kubeapi.objects import Node


def serves_claims(node: Node) -> bool:
    """Tell whether pods get their cards by claims on a node, not by the device plugin."""
    return node.metadata.get_annotation(NODE_SERVES) == SERVES_CLAIMS


class ClaimedShare(NamedTuple):
    """A share of one card.

    Attributes:
        device: Its name in the ResourceSlice.
        units: None means all of the device.
        compute: Percent of its compute.
    """

    device: str
    units: int | None
    compute: int


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim that is allocated shares of one node's cards.

    Attributes:
        pods: UIDs of the pods that may use it, in the order of their reservations.
    """

    uid: str
    namespace: str
    version: int
    shares: tuple[ClaimedShare, ...]
    pods: tuple[str, ...]


NOT_ENDED: Final = 1 << 62
"""Stands for the resourceVersion of a pod's end that has not come: no words have seen it."""


@dataclass(slots=True)
class ClaimTombstone:
    """The shares of a claim that vanished, or was deallocated, before its node's words contained them.

    Attributes:
        until_s: When they stop counting in any case, in seconds.
        ends: resourceVersions at which its pods ended, by UID; `NOT_ENDED` for running ones, for which the
            node may still prepare it.
    """

    claim: AllocatedClaim
    until_s: float
    ends: dict[str, int]


def read_claim(claim: ClaimObject, unit_mib: int) -> dict[str, AllocatedClaim]:
    """Read the allocation of a claim by node; empty for a claim that the extender wrote for a pod."""
    results: dict[str, list[AllocatedDevice]] = {}
    for result in () if claim.is_for_limits else claim.results or ():
        # The pool of a node's cards has the node's name.
        results.setdefault(result.pool, []).append(result)
    meta, pods = claim.metadata, tuple(claim.pods)
    version = parse_resource_version(meta.resource_version)
    found = {}
    for node, mine in results.items():
        shares = tuple(
            ClaimedShare(each.device, _count_units(each, unit_mib), _count_compute(each)) for each in mine
        )
        found[node] = AllocatedClaim(meta.uid, meta.namespace, version, shares, pods)
    return found


def _count_units(result: AllocatedDevice, unit_mib: int) -> int | None:
    """Count the units of a share; an unreadable amount counts as the whole device."""
    try:
        units = result.count_units(unit_mib)
    except QuantityError:
        return None
    return None if units is None else max(units, 0)


def _count_compute(result: AllocatedDevice) -> int:
    """Count the percent of a share; an unreadable amount counts as all that a card can give."""
    try:
        return min(max(result.count_compute(), 0), MAX_COMPUTE_LIMIT)
    except QuantityError:
        return MAX_COMPUTE_LIMIT


def sum_shares(
    shares: Iterable[ClaimedShare], uuids: tuple[str, ...], sizes: Sequence[int]
) -> dict[int, CardAmounts]:
    """Add up shares by card position.

    Args:
        uuids: UUIDs by card; where the node publishes none, a share counts on every card.
    """
    totals: dict[int, CardAmounts] = {}
    positions = _positions(uuids)
    for device, units, compute in shares:
        for card in range(len(sizes)) if not uuids else (positions.get(device, -1),):
            if 0 <= card < len(sizes):
                due = sizes[card] if units is None else min(units, sizes[card])
                has_units, has_compute = totals.get(card, (0, 0))
                totals[card] = has_units + due, has_compute + compute
    return totals


@lru_cache(maxsize=8192)
def _positions(uuids: tuple[str, ...]) -> Mapping[str, int]:
    return {name: position for position, name in enumerate(device_names(uuids).values())}
