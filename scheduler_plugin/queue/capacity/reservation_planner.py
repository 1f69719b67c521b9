"""Plan reservations for pods that start together, on the cards that are closest to being free. Pure.

Each pod gets the cards of the node on which the fewest units of other pods must become free. Compute that is
short counts as that part of the card's units. Cards planned for earlier pods of the workload count as taken.
A single pod is a workload of one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np

from allocator.cards import Card, CardAmounts, add_amounts
from allocator.place import place
from allocator.request import PodRequest
from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.cache.arrays import LongArray, RowArray
from scheduler_plugin.cache.cards import build_charged_cards
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.queue.capacity.quota_usage import RowFilter
from scheduler_plugin.queue.capacity.requirements import Member, PodRequirements
from scheduler_plugin.queue.capacity.reservations import NO_RESERVATIONS, NodeReservations, QueueReservation
from scheduler_plugin.scheduling.fit_counts import compute_least_missing


@dataclass(slots=True)
class _PlannedLoad:
    """Load of one node: pods of the workload, and reservations of other workloads.

    Attributes:
        cards: As they are.
        left: As they are without their pods and with what is planned.
    """

    others: NodeReservations
    cards: Sequence[Card]
    left: list[Card]
    amounts: Amounts = NOTHING


@dataclass(slots=True)
class _PlannedPlace:
    """A place where a pod could go: units that must become free first, row, and what the pod gets by card."""

    missing: int
    row: int
    cards: Mapping[int, CardAmounts]


class ReservationPlanner:
    """Plans the cards of one workload; it neither assumes nor reserves anything.

    Args:
        count_slots: Counts the slots of a node; None: the number of pods is not limited.
        alone: Ignore the reservations of other workloads.
    """

    def __init__(
        self,
        capacity: FreeCapacity,
        workload_uid: str,
        count_slots: Callable[[str], int] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._capacity = capacity
        self._workload_uid = workload_uid
        self._count_slots = count_slots
        self._alone = alone
        self._loads: dict[int, _PlannedLoad] = {}
        self._queues: dict[PodRequirements, list[tuple[int, int, int]]] = {}

    def plan_workload(
        self, pods: Sequence[Member], among: RowFilter | None = None
    ) -> dict[str, QueueReservation]:
        """Find cards for all pods at once: reservations by UID, empty if the pods can never all fit.

        Args:
            among: bool[R], nodes that come into question for a pod; None: all.
        """
        for order in self._list_orders(pods, among):
            self._loads.clear()
            self._queues.clear()
            found: dict[str, QueueReservation] = {}
            for uid, requirements in order:
                spot = self._find_best(requirements, among)
                if spot is None:
                    break
                found[uid] = self._add_pod(requirements, spot)
            else:
                return found
        return {}

    def can_serve(self, pods: Iterable[Member]) -> bool:
        """Return True if the reservations of these pods can still become free for all of them at once."""
        reservations, nodes = self._capacity.reservations, self._capacity.state.nodes
        for uid, requirements in pods:
            reservation = reservations.get_reservation(uid)
            row = None if reservation is None else nodes.rows.get(reservation.node)
            if reservation is None or row is None or not nodes.mask_offering(requirements.request)[row]:
                return False
            cards = reservation.get_positions(nodes.uuids[row])
            if len(cards) < len(reservation.cards) or not self._capacity.is_allowed(
                requirements, reservation.node
            ):
                return False
            spot = self._find_place(requirements, row, cards)
            if spot is None:
                return False
            self._add_pod(requirements, spot)
        return True

    def _list_orders(self, pods: Sequence[Member], among: RowFilter | None) -> Iterator[Sequence[Member]]:
        """Give the orders to try: as given, the hardest first; then those with the fewest nodes first."""
        yield pods
        if len({requirements for _, requirements in pods}) > 1:
            choice = {
                requirements: len(self._find_possible(requirements, among)[0]) for _, requirements in pods
            }
            yield sorted(pods, key=lambda pod: choice[pod[1]])

    def _find_best(self, requirements: PodRequirements, among: RowFilter | None) -> _PlannedPlace | None:
        """Find the place with the fewest missing units; of equal ones the first node by name."""
        queue = self._queues.get(requirements)
        if queue is None:
            rows, least = self._find_possible(requirements, among)
            ranks = self._capacity.state.nodes.name_rank[rows]
            queue = list(zip(least.tolist(), ranks.tolist(), rows.tolist(), strict=True))
            heapify(queue)
            self._queues[requirements] = queue
        while queue:
            # What a row needs grows with each pod that goes there: whoever is first with a figure that holds
            # is the best. It shrinks where pods have more of a card than there is: that ends for the first.
            known, rank, row = queue[0]
            spot = self._find_place(requirements, row)
            if spot is not None and spot.missing <= known:
                return spot
            heappop(queue)
            if spot is not None:
                heappush(queue, (spot.missing, rank, row))
        return None

    def _find_possible(
        self, requirements: PodRequirements, among: RowFilter | None
    ) -> tuple[RowArray, LongArray]:
        """Find rows that could take a pod if they were empty, with a lower bound of the missing units."""
        usable = self._capacity.capacity.count_by_row(requirements) > 0
        if among is not None:
            usable &= among(requirements)
        rows = np.flatnonzero(usable)
        query = self._capacity.make_query(requirements)
        return rows, compute_least_missing(self._capacity.state.nodes, query, rows)

    def _find_place(
        self, requirements: PodRequirements, row: int, among: Collection[int] | None = None
    ) -> _PlannedPlace | None:
        """Find the cards of a node for one more pod; None if they can never be free for it."""
        nodes, load = self._capacity.state.nodes, self._get_load(row)
        amounts = load.amounts.add(load.others.amounts).add(requirements.amounts.without_sums())
        if not self._capacity.capacity.count_fits(amounts, row):
            return None
        if not self._has_slot(load, nodes.names[row]):
            return None
        query = self._capacity.make_query(requirements)
        is_open = nodes.evictable[row] > 0
        if query.policy_request.admits is not None:
            is_open &= query.policy_request.admits[row]
        left = [
            card
            if is_open[at] and at not in load.others.cards and (among is None or at in among)
            else card.with_free_units(0)
            for at, card in enumerate(load.left)
        ]
        chosen = _choose_cards(requirements.request, load.cards, left)
        if chosen is None:
            # In the order of the demands they may not fit, and together they do.
            placed = self._capacity.call_policy(
                requirements, lambda: place(left, query.request, query.policy_request.card_policy), None
            )
            if placed is None:
                return None
            chosen = placed.amounts
        missing = sum(_compute_missing(load.cards[at], left[at], *asked) for at, asked in chosen.items())
        return _PlannedPlace(missing, row, chosen)

    def _has_slot(self, load: _PlannedLoad, node: str) -> bool:
        pods = load.amounts.pods + load.others.amounts.pods
        return self._count_slots is None or pods < self._count_slots(node)

    def _add_pod(self, requirements: PodRequirements, spot: _PlannedPlace) -> QueueReservation:
        load = self._get_load(spot.row)
        amounts = requirements.amounts.without_sums()
        load.amounts = load.amounts.add(amounts)
        for at, (units, compute) in spot.cards.items():
            card = load.left[at]
            load.left[at] = replace(
                card, used_units=card.used_units + units, compute_used=card.compute_used + compute
            )
        nodes = self._capacity.state.nodes
        name, uuids = nodes.names[spot.row], nodes.uuids[spot.row]
        cards = tuple(sorted(spot.cards))
        return QueueReservation(self._workload_uid, name, cards, amounts, uuids)

    def _get_load(self, row: int) -> _PlannedLoad:
        load = self._loads.get(row)
        if load is None:
            nodes = self._capacity.state.nodes
            name, uuids = nodes.names[row], nodes.uuids[row]
            others = (
                NO_RESERVATIONS
                if self._alone
                else self._capacity.reservations.sum_others(self._workload_uid, name, uuids)
            )
            cards = build_charged_cards(nodes, row)
            left = [replace(card, used_units=0, compute_used=0) for card in cards]
            load = self._loads[row] = _PlannedLoad(others, cards, left)
        return load


def _choose_cards(
    request: PodRequest, cards: Sequence[Card], left: Sequence[Card]
) -> Mapping[int, CardAmounts] | None:
    """Choose the cards that lack least for one demand after the other; None where that leaves one without.

    Args:
        cards: As they are.
        left: As they are without their pods and with what is planned.
    """
    room, chosen = list(left), dict[int, CardAmounts]()
    for demand in request.demands:
        needs = [(demand.units_on(card.size_units), demand.compute) for card in cards]
        # Of cards that need equally much the one that the pod fills best: others stay whole.
        able = sorted(
            (_compute_missing(card, there, *need), max(0, card.free_units - there.used_units - need[0]), at)
            for at, (card, there, need) in enumerate(zip(cards, room, needs, strict=True))
            if there.has_room(*need)
        )
        able = _take_first(able, demand.cards, cards if request.rules.same_model else None)
        if len(able) < demand.cards:
            return None
        for _, _, at in able:
            room[at] = request.rules.take(room[at], *needs[at])
            add_amounts(chosen, {at: needs[at]})
    return chosen


def _compute_missing(card: Card, left: Card, units: int, compute: int) -> int:
    """Compute how many units must become free on a card for more than is planned there.

    Args:
        left: See `_PlannedLoad`.
    """
    missing = _compute_lack(card, left.used_units + units, left.compute_used + compute)
    return missing - _compute_lack(card, left.used_units, left.compute_used) if left.used_units else missing


def _compute_lack(card: Card, units: int, compute: int) -> int:
    """Compute what a card lacks of both, compute as that part of its units."""
    short, percent = card.compute_shortage(units, compute)
    return max(short, percent * card.size_units // max(1, card.compute_limit))


def _take_first(
    able: list[tuple[int, int, int]], count: int, cards: Sequence[Card] | None
) -> list[tuple[int, int, int]]:
    """Take the first `count` cards; with `cards`, of the model that lacks the fewest units."""
    if cards is None or count == 1:
        return able[:count]
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for each in able:
        groups.setdefault(cards[each[2]].model, []).append(each)
    enough = [group[:count] for group in groups.values() if len(group) >= count]
    return min(enough, key=lambda group: [sum(amounts) for amounts in zip(*group, strict=True)], default=[])
