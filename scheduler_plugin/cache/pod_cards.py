"""Units that pods have on the cards of their node, and units that are free once pods go. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from allocator.cards import Card
from allocator.podcards import (
    ByPosition,
    assigned_units,
    charged_compute,
    first_assigned_units,
    published_units,
    unheld_units,
)
from allocator.request import PodRequest
from scheduler_plugin.cache.charges import NodeRecord
from scheduler_plugin.cache.pods import PodRecord

if TYPE_CHECKING:
    from scheduler_plugin.cache.node_arrays import NodeArrays


@dataclass(frozen=True, slots=True)
class PodCards:
    """The units by card position of the pods of one node.

    Attributes:
        units: Units of each pod, by UID; empty for a pod whose cards are not known.
        closed_cards: Positions of cards that certainly free nothing when pods go: they are closed to pods, or
            other processes fill them. The words stop at a card's size, so what such processes use beyond that
            is unknown.
        compute: Percent of compute by card position of each pod, by UID; pods of which it is not known have
            none.
        compute_limit: Percent of each card's compute that pods may ask for.
        compute_held: Percent by card position that the pods and claims in the words have; beyond the limit
            where that was lowered while they ran.
        shared: Units of each pod, by UID, of claims that other pods use too: they stay in use when it goes.
        held: UIDs of the pods that the words contain.
    """

    units: Mapping[str, ByPosition]
    closed_cards: frozenset[int]
    compute: Mapping[str, ByPosition] = field(default_factory=dict)
    compute_limit: int = 0
    compute_held: Counter[int] = field(default_factory=Counter)
    shared: Mapping[str, Counter[int]] = field(default_factory=dict)
    held: Collection[str] = ()

    def get_freed_units(self, uid: str) -> ByPosition:
        """Return the units that certainly become free when a pod goes, by card position."""
        units = self.units.get(uid, {})
        shared = self.shared.get(uid)
        if shared is not None:
            units = {card: count - shared[card] for card, count in units.items() if count > shared[card]}
        if not self.closed_cards:
            return units
        return {card: count for card, count in units.items() if card not in self.closed_cards}

    def get_freed_compute(self, *uids: str) -> ByPosition:
        """Return the percent of compute that certainly becomes free when pods go, by card position."""
        published: Counter[int] = Counter()
        unpublished: Counter[int] = Counter()
        for uid in uids:
            (published if uid in self.held else unpublished).update(self.compute.get(uid, {}))
        return unpublished + count_freed_compute(published, self.compute_held - published, self.compute_limit)

    def count_all_compute(self, card: Card) -> Card:
        """Return a card with all that pods and claims have of its compute, also beyond its limit.

        Of such a card each pod frees all that it has, in whatever order pods go.
        """
        over = self.compute_held[card.index] - self.compute_limit
        if over <= 0 or card.compute_free > 0:
            return card
        return replace(card, compute_used=card.compute_used + over)


def count_freed_compute(ends: Counter[int], stays: Counter[int], limit: int) -> Counter[int]:
    """Count the percent of compute that the end of pods in the words frees, by card position.

    The words stop at the limit: what pods have beyond it is not free before they have less.

    Args:
        ends: What these pods have.
        stays: What the other pods and the claims in the words have.
    """
    return Counter({card: max(0, min(percent, limit - stays[card])) for card, percent in ends.items()})


def read_pod_cards(nodes: "NodeArrays", record: NodeRecord) -> PodCards:
    """Find the units, and the percent of compute, that the pods of a node have on its cards."""
    evictable = nodes.evictable[record.row].tolist()
    units: dict[str, ByPosition] = {}
    for uid, pod in record.pods.items():
        if uid in record.holds:
            units[uid] = published_pod_units(record, pod)
        elif pod.charged is not None:
            units[uid] = unheld_units(pod.charged, pod.assigned, pod.allocated, record.uuids, record.sizes)
    closed = {card for card, units_open in enumerate(evictable[: len(record.sizes)]) if not units_open}
    compute = {
        uid: find_compute(record, pod, pod.charged, units.get(uid, {}))
        for uid, pod in record.pods.items()
        if pod.charged is not None and pod.charged.asks_compute
    }
    compute_held: Counter[int] = Counter()
    for claimed in record.held_claims.values():
        compute_held.update({card: percent for card, (_, percent) in claimed.items()})
    for uid, by_card in compute.items():
        if uid in record.holds:
            compute_held.update(by_card)
    return PodCards(
        units,
        frozenset(closed | _filled_by_others(record, units)),
        compute,
        int(nodes.compute_limit[record.row]),
        compute_held,
        _find_shared(record),
        record.holds.keys(),
    )


def find_compute(
    record: NodeRecord, pod: PodRecord, request: PodRequest, units: ByPosition
) -> Mapping[int, int]:
    claimed = _sum_held(record, (uid for uid, claim in record.claims.items() if pod.uid in claim.pods))
    if claimed:  # claims say their compute themselves
        units = {card: count for card, count in units.items() if count > claimed[card]}
    if len(request.demands) == 1:
        return request.charge_compute([units])
    for assignment in (pod.allocated, pod.assigned):
        has = None if assignment is None else assigned_units(request, assignment, record.uuids, record.sizes)
        if assignment is not None and has is not None and has.keys() == units.keys():
            return charged_compute(request, assignment, record.uuids)
    return {}


def _find_shared(record: NodeRecord) -> dict[str, Counter[int]]:
    """Find the units, by UID, that pods asking by limits have of claims that other pods use too."""
    shared: dict[str, list[str]] = {}
    for uid, claim in record.claims.items():
        for pod in claim.pods if len(claim.pods) > 1 else ():
            if pod in record.pods:
                shared.setdefault(pod, []).append(uid)
    return {pod: _sum_held(record, claims) for pod, claims in shared.items()}


def _sum_held(record: NodeRecord, claims: Iterable[str]) -> Counter[int]:
    """Add up the units by card position that the words contain of claims."""
    units: Counter[int] = Counter()
    for uid in claims:
        units.update({card: held for card, (held, _) in record.held_claims.get(uid, {}).items()})
    return units


def published_pod_units(record: NodeRecord, pod: PodRecord) -> ByPosition:
    """Find a pod's units by card position in the words of its node; empty if they do not hold it."""
    held = record.holds.get(pod.uid)
    if held is not None:
        return published_units(held, record.sizes)
    if pod.charged is None or pod.uid not in record.holds:
        return {}
    return first_assigned_units(pod.charged, (pod.allocated, pod.assigned), record.uuids, record.sizes)


def _filled_by_others(record: NodeRecord, units: Mapping[str, ByPosition]) -> set[int]:
    """Find the full cards whose pods, as far as the words hold them, do not account for all units."""
    ours = [0] * len(record.sizes)
    for uid, held in record.holds.items():
        own = units.get(uid) if held is None else held
        if own is None or (held is None and not own):
            return set()  # Its cards are not known, so a full card may be full of it.
        for card, count in published_units(own, record.sizes).items():
            ours[card] += count
    full = zip(record.sizes, record.used, ours, strict=True)
    return {card for card, (size, used, of_pods) in enumerate(full) if used >= size > of_pods}
