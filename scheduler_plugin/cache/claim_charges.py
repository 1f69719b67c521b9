"""What allocated claims have of a node's cards, as long as the node's words may not show it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from allocator.claims import AllocatedDevice, ClaimObject
from allocator.errors import QuantityError
from allocator.ids import device_names
from kubeapi.metadata import parse_resource_version


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim that is allocated shares of one node's cards.

    Attributes:
        uid: Of the claim.
        version: resourceVersion of the claim.
        shares: Name of the device and units of each share; None means all of the device.
        pods: UIDs of the pods that may use it.
    """

    uid: str
    version: int
    shares: tuple[tuple[str, int | None], ...]
    pods: frozenset[str]


@dataclass(slots=True)
class ClaimTombstone:
    """The shares of a claim that vanished, or was deallocated, before its node's words contained them.

    Attributes:
        claim: As it was.
        until_s: When they end to count in any case, seconds.
        versions: resourceVersions that the node's words must have seen, by the UID of each of its pods: the
            pod's end, or where the pod has not ended the claim's.
    """

    claim: AllocatedClaim
    until_s: float
    versions: dict[str, int]

    def is_over(self, seen_version: int, held: frozenset[str], now: float) -> bool:
        """Tell whether the words contain the claim or have seen its pods end, or its time is over."""
        if now >= self.until_s or self.claim.uid in held:
            return True
        return all(seen_version >= version for version in self.versions.values())


def read_claim(claim: ClaimObject, unit_mib: int) -> dict[str, AllocatedClaim]:
    """Read what a claim is allocated, by node; nothing of one that the extender wrote for a pod."""
    shares: dict[str, list[tuple[str, int | None]]] = {}
    for result in () if claim.is_for_limits else claim.results or ():
        # The pool of a node's cards has the node's name.
        shares.setdefault(result.pool, []).append((result.device, _count_units(result, unit_mib)))
    uid, version = claim.metadata.uid, parse_resource_version(claim.metadata.resource_version)
    return {
        node: AllocatedClaim(uid, version, tuple(mine), frozenset(claim.pods))
        for node, mine in shares.items()
    }


def _count_units(result: AllocatedDevice, unit_mib: int) -> int | None:
    """Count the units of a share; an amount that cannot be read counts as all of the device."""
    try:
        units = result.count_units(unit_mib)
    except QuantityError:
        return None
    return None if units is None else max(units, 0)


def sum_claims(
    claims: Iterable[AllocatedClaim], uuids: tuple[str, ...], sizes: Sequence[int]
) -> Mapping[int, int]:
    """Add up shares by card position.

    Args:
        claims: All of one node.
        uuids: UUIDs by card; where the node publishes none, a share counts on every card.
        sizes: Units by card.
    """
    totals: dict[int, int] = {}
    positions = _positions(uuids)
    for claim in claims:
        for device, units in claim.shares:
            cards = range(len(sizes)) if not uuids else (positions.get(device, -1),)
            for card in cards:
                if 0 <= card < len(sizes):
                    due = sizes[card] if units is None else units
                    totals[card] = totals.get(card, 0) + min(due, sizes[card])
    return totals


@lru_cache(maxsize=8192)
def _positions(uuids: tuple[str, ...]) -> Mapping[str, int]:
    """Map the names of a node's devices to positions of its cards."""
    return {name: position for position, name in enumerate(device_names(uuids).values())}
