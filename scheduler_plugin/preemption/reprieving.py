"""The victims of the verb preempt: pods that must go so that a card, not only a sum, becomes free. Pure.

kube-scheduler's own dry run knows sums only. Its victims are kept if they free the cards. Otherwise victims
are chosen as its plugin DefaultPreemption chooses them, with cards in place of sums:

1. All pods of smaller priority leave.
2. Pods come back one after the other while the cards stay free. Pods whose end would violate a
   PodDisruptionBudget come first, the most important ones before others.
3. Then only the pods of one card leave, for each card in turn.
4. The set is taken which kube-scheduler would prefer if each were another node's.

A victim that belongs to a gang counts with all running pods of the gang. kube-scheduler does not know that:
if it names such a victim, other victims are searched too.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_plugin.cache.amounts import sum_amounts
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets, find_violations
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.preemption.node_victims import NodeUnderPreemption, make_importance_key
from scheduler_plugin.scheduling.request import SchedulingRequest


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Pods of one node that have to go.

    Attributes:
        uids: The most important one first, because kube-scheduler takes the first one's priority as the
            largest.
        violations: How many of the evictions violate a PodDisruptionBudget.
    """

    uids: tuple[str, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class _FixedVictims:
    """Victims named by kube-scheduler that stay victims in any case.

    Attributes:
        foreign: Victims that ask for no cards, or are unknown.
        unexplained: Victims needed neither for units nor for what else the pod asks for, so by a rule that we
            do not know.
        violations: How many of the foreign ones violate a budget.
    """

    foreign: tuple[str, ...]
    unexplained: tuple[PodRecord, ...]
    violations: int


def choose_victims(
    room: NodeUnderPreemption,
    query: SchedulingRequest,
    priority: int,
    proposed: VictimSet,
    budgets: DisruptionBudgets,
    pods: Mapping[str, PodRecord],
) -> VictimSet | None:
    """Choose a node's victims.

    Args:
        priority: The preempting pod's priority; only pods of smaller priority are victims.
        budgets: All budgets; before they are known only kube-scheduler's own victims are named.
        pods: All pods of the cluster by UID.

    Returns:
        At least one victim, or None if evicting pods does not free the cards.
    """
    named = [room.pods[uid] for uid in proposed.uids if uid in room.pods]
    suits = room.fits_without(query, proposed.uids)
    if suits and (not budgets.synced or len(room.list_lost(named)) == len(named)):
        return proposed if proposed.uids else None
    if not budgets.synced:
        return None
    fixed = _find_fixed(room, query, proposed, named, budgets)
    records = [pods[uid] for uid in fixed.foreign if uid in pods]
    # The foreign ones go in any case.
    room = replace(room, left=sum_amounts((pod.amounts for pod in records), room.left))
    stay_victims = {pod.uid for pod in fixed.unexplained}
    lower = [
        pod
        for pod in room.pods.values()
        if room.get_priority(pod) < priority and pod.uid not in stay_victims and not pod.is_mirror
    ]
    trusted = {pod.uid for pod in named}

    def suffices(gone: Collection[str]) -> bool:
        # kube-scheduler has found that all but cards suffices without the victims that it named.
        has_host = room.has_host_without(gone) or trusted.issubset(gone)
        return has_host and room.fits_without(query, gone)

    found = [
        chosen
        for group in (lower, *_group_by_card(room, lower))
        if (chosen := _reprieve(room, group, fixed.unexplained, suffices, budgets)) is not None
    ]
    best = min(found, key=lambda chosen: _make_rank(room, chosen, budgets), default=None)
    suits = suits and all(room.get_priority(pod) < priority for pod in named)
    if suits and (best is None or _make_rank(room, named, budgets) <= _make_rank(room, best, budgets)):
        return proposed
    if best is None:
        return None
    order = sorted([*best, *records], key=make_importance_key, reverse=True)
    unknown = [uid for uid in fixed.foreign if uid not in pods]
    count = len(_find_violating(best, budgets)) + fixed.violations
    return VictimSet((*(pod.uid for pod in order), *unknown), count)


def _find_fixed(
    room: NodeUnderPreemption,
    query: SchedulingRequest,
    proposed: VictimSet,
    named: Sequence[PodRecord],
    budgets: DisruptionBudgets,
) -> _FixedVictims:
    """Find which of kube-scheduler's victims stay victims whichever cards are freed."""
    foreign = tuple(uid for uid in proposed.uids if uid not in room.pods)
    # How many of all its victims violate a budget is all that kube-scheduler says.
    violations = min(len(foreign), max(0, proposed.violations - len(_find_violating(named, budgets))))
    uids = {pod.uid for pod in named}
    unexplained = tuple(
        pod
        for pod in named
        if room.has_host_without(uids - {pod.uid}) and room.has_units_without(query, uids - {pod.uid})
    )
    return _FixedVictims(foreign, unexplained, violations)


def _group_by_card(room: NodeUnderPreemption, pods: Sequence[PodRecord]) -> Iterable[list[PodRecord]]:
    for card in range(len(room.cards)):
        yield [pod for pod in pods if card in room.freed[pod.uid]]


def _reprieve(
    room: NodeUnderPreemption,
    group: Sequence[PodRecord],
    fixed: Sequence[PodRecord],
    suffices: Callable[[Collection[str]], bool],
    budgets: DisruptionBudgets,
) -> list[PodRecord] | None:
    """Reprieve as many pods of a group as possible; None if not even the whole group suffices."""
    gone = {pod.uid: pod for pod in (*group, *fixed)}
    if not group or not suffices(gone):
        return None
    protected = _find_violating([*group, *fixed], budgets)
    by_importance = sorted(group, key=room.make_loss_key, reverse=True)
    for pod in sorted(by_importance, key=lambda pod: pod.uid not in protected):
        del gone[pod.uid]
        if not suffices(gone):
            gone[pod.uid] = pod
    return list(gone.values())


def _find_violating(pods: Iterable[PodRecord], budgets: DisruptionBudgets) -> frozenset[str]:
    """Find pods whose eviction violates a budget; the most important pods use up budgets first."""
    return find_violations(budgets, sorted(pods, key=make_importance_key, reverse=True))


def _make_rank(
    room: NodeUnderPreemption, victims: Sequence[PodRecord], budgets: DisruptionBudgets
) -> tuple[object, ...]:
    """Order sets of victims as kube-scheduler orders nodes."""
    uids = sorted(pod.uid for pod in victims)
    return len(_find_violating(victims, budgets)), *room.compute_cost(victims), uids
