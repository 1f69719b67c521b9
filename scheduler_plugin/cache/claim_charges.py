"""Charges allocated claims to a node's cards for as long as the node's words may not show them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from allocator.claims import AllocatedDevice, ClaimObject
from allocator.errors import QuantityError
from allocator.ids import device_names
from allocator.packing import MAX_COMPUTE_LIMIT
from allocator.podcards import ByPosition
from kubeapi.metadata import parse_resource_version


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim that is allocated shares of one node's cards.

    Attributes:
        shares: Name of the device and units of each share; None means all of the device.
        pods: UIDs of the pods that may use it, in the order of their reservations.
        compute: Name of the device and percent of its compute of each share; empty if none asks for some.
    """

    uid: str
    namespace: str
    version: int
    shares: tuple[tuple[str, int | None], ...]
    pods: tuple[str, ...]
    compute: tuple[tuple[str, int], ...] = ()

    @property
    def cards(self) -> object:
        """What it has of which cards, to compare allocations."""
        return self.shares, self.compute


@dataclass(frozen=True, slots=True)
class HeldClaims:
    """The claims that a node's words contain, and the data to decide that.

    Attributes:
        units: Units by card position of each claim that the words contain, by UID.
        uuids: UUIDs by card; empty if the node publishes none.
        sizes: Units by card.
        seen_version: resourceVersion of the newest pod event that the words take into account.
        compute: Percent of compute by card position of each claim that asks for some, by UID.
    """

    units: Mapping[str, ByPosition]
    uuids: tuple[str, ...]
    sizes: tuple[int, ...]
    seen_version: int
    compute: Mapping[str, ByPosition] = field(default_factory=dict)

    def find_missing(self, claim: AllocatedClaim) -> dict[int, int]:
        """Find the units by card position of a claim that the words do not contain.

        A claim may have been allocated anew while the words still contain its previous allocation.
        """
        due = sum_shares(claim.shares, self.uuids, self.sizes)
        return _subtract(due, self.units.get(claim.uid, {}))

    def find_missing_compute(self, claim: AllocatedClaim) -> dict[int, int]:
        """Find the percent of compute, as `find_missing` does the units."""
        due = sum_compute(claim, self.uuids, len(self.sizes))
        return _subtract(due, self.compute.get(claim.uid, {}))

    def contains(self, claim: AllocatedClaim) -> bool:
        """Tell whether the words contain all that a claim was allocated."""
        has_all = not (self.find_missing(claim) or self.find_missing_compute(claim))
        return claim.uid in self.units and has_all


def _subtract(due: Mapping[int, int], held: ByPosition) -> dict[int, int]:
    left = {card: amount - held.get(card, 0) for card, amount in due.items()}
    return {card: amount for card, amount in left.items() if amount > 0}


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

    def is_over(self, held: HeldClaims, now: float) -> bool:
        """Tell whether the words contain the claim or have seen its pods end, or its time is over."""
        if now >= self.until_s or held.contains(self.claim):
            return True
        return all(held.seen_version >= end for end in self.ends.values())


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
        shares = tuple((result.device, _count_units(result, unit_mib)) for result in mine)
        compute = tuple((result.device, _count_compute(result)) for result in mine)
        asks = any(percent for _, percent in compute)
        found[node] = AllocatedClaim(meta.uid, meta.namespace, version, shares, pods, compute if asks else ())
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
    shares: Sequence[tuple[str, int | None]], uuids: tuple[str, ...], sizes: Sequence[int]
) -> dict[int, int]:
    """Add up shares by card position.

    Args:
        shares: Name of the device and units of each; None means all of the device.
        uuids: UUIDs by card; where the node publishes none, a share counts on every card.
    """
    totals: dict[int, int] = {}
    positions = _positions(uuids)
    for device, units in shares:
        for card in range(len(sizes)) if not uuids else (positions.get(device, -1),):
            if 0 <= card < len(sizes):
                due = sizes[card] if units is None else min(units, sizes[card])
                totals[card] = totals.get(card, 0) + due
    return totals


def sum_compute(claim: AllocatedClaim, uuids: tuple[str, ...], cards: int) -> dict[int, int]:
    """Add up the percent of compute of a claim by card position, on a node of so many cards."""
    return sum_shares(claim.compute, uuids, [MAX_COMPUTE_LIMIT] * cards) if claim.compute else {}


@lru_cache(maxsize=8192)
def _positions(uuids: tuple[str, ...]) -> Mapping[str, int]:
    return {name: position for position, name in enumerate(device_names(uuids).values())}
