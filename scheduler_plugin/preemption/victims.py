"""The victims of our own preemption, where kube-scheduler's preemption sees no need. Pure.

kube-scheduler counts a node's units as one sum. If the sum suffices but no single card does, it searches no
victims at all. Here they are chosen card by card, by kube-scheduler's order of criteria:

1. No PodDisruptionBudget is violated.
2. The largest priority among the victims is the smallest.
3. The sum of their priorities is the smallest.
4. The victims are the fewest.
5. The most important victims of the node started last.

A victim that belongs to a gang counts with all running pods of the gang.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from allocator.card_rules import group_by_model
from allocator.cards import CardAmounts
from allocator.place import place
from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets, keeps_budgets
from scheduler_plugin.cache.pods import OVERDUE_AFTER_S, PodRecord
from scheduler_plugin.cache.reservations import Reservation
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.node_victims import (
    LIFT,
    NodeUnderPreemption,
    compute_cost,
    drop_needless,
    view_node,
)
from scheduler_plugin.scheduling.request import SchedulingRequest

MAX_SUMS: Final = 4096
"""Sums of units that are kept in the search for a card's cheapest victims; beyond, a simpler way is used."""


_NOTHING: Final[CardAmounts] = (0, 0)


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Tells which pods may be evicted.

    Attributes:
        spared: UIDs of pods whose eviction was refused a moment ago.
        wall_s: Seconds since the epoch.
        going: Pods by UID that would be evicted before: for the pods of a gang that come first.
    """

    budgets: DisruptionBudgets
    spared: Collection[str]
    wall_s: float
    going: Mapping[str, PodRecord] = field(default_factory=dict)

    def is_leaving(self, pod: PodRecord) -> bool:
        # By the API server's clock, as nothing here notes when a deletion was seen, which the queue does
        # (`QueuedPod.deleted_at`). If that clock is far behind, others may be evicted too early.
        is_deleted = pod.grace_ends_at is not None and self.wall_s < pod.grace_ends_at + OVERDUE_AFTER_S
        return is_deleted or pod.uid in self.going

    def can_evict(self, pod: PodRecord, priority: int) -> bool:
        return (
            pod.priority < priority
            and pod.grace_ends_at is None
            and pod.uid not in self.spared
            and pod.uid not in self.going
            and self.keeps_budgets([pod])
        )

    def keeps_budgets(self, victims: Iterable[PodRecord]) -> bool:
        """Return True if no budget is violated by these victims and those that go before."""
        return keeps_budgets(self.budgets, [*self.going.values(), *victims])


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The victims of one node, and the cards that they free for a pod.

    Attributes:
        victims: Pods to evict; empty if the pods that are leaving suffice.
        leaving: UIDs of the pods on these cards that are leaving anyway.
        lost: The victims and the other pods of their gangs.
    """

    reservation: Reservation
    victims: tuple[PodRecord, ...]
    leaving: frozenset[str]
    lost: tuple[PodRecord, ...]

    @property
    def leaving_or_evicted(self) -> frozenset[str]:
        """UIDs of all pods that will be gone from the cards."""
        return self.leaving.union(victim.uid for victim in self.victims)

    @property
    def cost(self) -> tuple[int, int, int, float, str]:
        """Cost, smaller is better: largest priority, sum of priorities, number, time of start, node."""
        return (*compute_cost(self.lost), self.reservation.node)


def plan_on_node(
    state: ClusterState,
    node: str,
    query: SchedulingRequest,
    pod: PodRecord,
    eligible: EvictionRules,
    beside: Amounts | None = None,
) -> PreemptionPlan | None:
    """Find the cheapest victims of one node; None if evicting pods does not help.

    Args:
        state: The cluster, with the reservations of others charged (`Reservations.charged_against`).
        node: The node; only its cards keep it from passing kube-scheduler's filters.
        beside: What pods ask for that would go to the node before; cpu, memory and the rest have to suffice
            for the pod, too. None: they are known to suffice.
    """
    room = view_node(state, node, query)
    if room is None:
        return None
    asked = NOTHING if beside is None else room.asked
    room = replace(room, asked=asked, left=room.left.subtract(beside or NOTHING))
    leaving = [uid for uid, each in room.pods.items() if eligible.is_leaving(each)]
    candidates = [
        each
        for uid, each in sorted(room.pods.items(), key=lambda item: room.make_loss_key(item[1]))
        if room.freed[uid]
        and eligible.can_evict(each, pod.priority)
        and room.get_priority(each) < pod.priority
    ]
    victims = _find_cheapest(room, query, leaving, candidates, eligible)
    gone = [*leaving, *(victim.uid for victim in victims or ())]
    placement = place(room.get_cards_without(gone), query.request, query.policy_request.card_policy)
    if victims is None or placement is None:
        return None
    own = {uid for uid in leaving if not placement.charge.keys().isdisjoint(room.freed[uid])}
    uuids = state.nodes.uuids[state.nodes.rows[node]]
    reservation = Reservation(pod.uid, pod.priority, node, placement.amounts, uuids)
    return PreemptionPlan(reservation, tuple(victims), frozenset(own), tuple(room.list_lost(victims)))


def _find_cheapest(
    room: NodeUnderPreemption,
    query: SchedulingRequest,
    leaving: Sequence[str],
    candidates: Sequence[PodRecord],
    eligible: EvictionRules,
) -> list[PodRecord] | None:
    """Find the cheapest set that frees the cards within the budgets; for several demands a small one."""

    def fits(victims: Iterable[PodRecord]) -> bool:
        gone = [*leaving, *(victim.uid for victim in victims)]
        return room.fits_without(query, gone) and room.has_host_without(gone)

    if fits(()):
        return []
    kept = _list_within_budgets(candidates, eligible)
    choices: tuple[Callable[[], list[PodRecord] | None], ...] = (
        lambda: _find_cheapest_by_card(room, query, leaving, candidates),
        lambda: _find_cheapest_by_card(room, query, leaving, kept),
        lambda: _list_up_to_priority(room, kept, fits),
    )
    for choose in choices:
        group = choose()
        if group is not None and eligible.keeps_budgets(group) and fits(group):
            return drop_needless(sorted(group, key=room.make_loss_key), fits)
    return None


def _list_within_budgets(candidates: Sequence[PodRecord], eligible: EvictionRules) -> list[PodRecord]:
    """List the least important candidates that may all go without violating a budget."""
    kept: list[PodRecord] = []
    for pod in candidates:
        if not eligible.budgets.list_covering(pod) or eligible.keeps_budgets([*kept, pod]):
            kept.append(pod)
    return kept


def _list_up_to_priority(
    room: NodeUnderPreemption, candidates: Sequence[PodRecord], fits: Callable[[Iterable[PodRecord]], bool]
) -> list[PodRecord] | None:
    """List all candidates up to the smallest priority with which the pod fits."""
    for priority in sorted({room.get_priority(pod) for pod in candidates}):
        group = [pod for pod in candidates if room.get_priority(pod) <= priority]
        if fits(group):
            return group
    return None


def _find_cheapest_by_card(
    room: NodeUnderPreemption,
    query: SchedulingRequest,
    leaving: Sequence[str],
    candidates: Sequence[PodRecord],
) -> list[PodRecord] | None:
    """Find, for a pod of one demand, the cheapest victims of each card, and of these the cheapest cards.

    Cards are ordered by the largest priority that must be evicted from each; the last card needed determines
    the largest priority of the set. Within that limit, each card's victims are those with the smallest sum.
    """
    if len(query.request.demands) != 1:
        return None
    demand = query.request.demands[0]
    cards = room.get_cards_without(leaving)
    needs: dict[int, CardAmounts] = {}
    for position, card in enumerate(cards):
        size, units = room.open_units[position], demand.units_on(card.size_units)
        if size >= units and card.compute_limit >= demand.compute and query.request.selector.admits(card):
            needs[position] = card.compute_shortage(units, demand.compute)
    of_card = {
        card: [(room.freed[pod.uid][card], pod) for pod in candidates if card in room.freed[pod.uid]]
        for card in needs
    }
    groups = group_by_model(cards, needs).values() if query.request.rules.same_model else [list(needs)]
    found = (_find_cheapest_of_cards(room, of_card, needs, group, demand.cards) for group in groups)
    return min((each for each in found if each is not None), key=room.compute_cost, default=None)


def _find_cheapest_of_cards(
    room: NodeUnderPreemption,
    of_card: Mapping[int, Sequence[tuple[CardAmounts, PodRecord]]],
    needs: Mapping[int, CardAmounts],
    group: Sequence[int],
    cards: int,
) -> list[PodRecord] | None:
    """Find the cheapest victims that free `cards` cards of a group; None if none do."""
    levels = sorted(
        level
        for card in group
        if (level := _find_priority_level(room, of_card[card], needs[card])) is not None
    )
    if len(levels) < cards:
        return None
    largest = levels[cards - 1]
    sets = [
        chosen
        for card in group
        if (
            chosen := _find_smallest_sum(
                room, [each for each in of_card[card] if room.get_priority(each[1]) <= largest], needs[card]
            )
        )
        is not None
    ]
    sets.sort(key=lambda chosen: room.compute_cost(chosen)[1:])
    victims = {pod.uid: pod for chosen in sets[:cards] for pod in chosen}
    return list(victims.values()) if len(sets) >= cards else None


def _find_priority_level(
    room: NodeUnderPreemption, pods: Iterable[tuple[CardAmounts, PodRecord]], need: CardAmounts
) -> int | None:
    """Find the smallest priority up to which a card's pods must go to free what is needed; None: never."""
    if need == _NOTHING:
        return -LIFT
    reached = _NOTHING
    for freed, pod in pods:
        reached = _add_freed(reached, freed, need)
        if reached == need:
            return room.get_priority(pod)
    return None


def _add_freed(one: CardAmounts, other: CardAmounts, need: CardAmounts) -> CardAmounts:
    """Add what pods free, up to what is needed."""
    return min(need[0], one[0] + other[0]), min(need[1], one[1] + other[1])


def _find_smallest_sum(
    room: NodeUnderPreemption, pods: Sequence[tuple[CardAmounts, PodRecord]], need: CardAmounts
) -> list[PodRecord] | None:
    """Find the pods of one card with the smallest sum of priorities that free what is needed.

    The pods of a gang go together here: with one of them the gang is lost.
    """
    if need == _NOTHING:
        return []
    gangs: dict[str, list[PodRecord]] = {}
    freed: dict[str, CardAmounts] = {}
    for amounts, pod in pods:
        first = min(member.uid for member in room.list_gang(pod))
        gangs.setdefault(first, []).append(pod)
        freed[first] = _add_freed(freed.get(first, _NOTHING), amounts, need)
    best: Mapping[CardAmounts, tuple[int, tuple[PodRecord, ...]]] = {_NOTHING: (0, ())}
    for first, victims in gangs.items():
        lost = sum(pod.priority + LIFT for pod in room.list_lost(victims))
        grown = dict(best)
        for before, (total, chosen) in best.items():
            reached, raised = _add_freed(before, freed[first], need), total + lost
            if reached not in grown or raised < grown[reached][0]:
                grown[reached] = (raised, (*chosen, *victims))
        best = grown
        if len(best) > MAX_SUMS:
            return [pod for _, pod in pods]
    return list(best[need][1]) if need in best else None
