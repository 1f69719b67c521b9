"""A node under preemption: the units that each of its pods would free, and the order of victim sets."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from allocator.cards import Card, CardAmounts, add_amounts
from allocator.place import place
from scheduler_plugin.cache.amounts import Amounts, sum_amounts
from scheduler_plugin.cache.cards import build_charged_cards
from scheduler_plugin.cache.pod_cards import PodCards, read_pod_cards
from scheduler_plugin.cache.pod_groups import PodGroups
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.node_fit import leave_out_undecided
from scheduler_plugin.scheduling.request import SchedulingRequest

LIFT: Final = 1 << 31
"""Added to priorities before they are summed, as kube-scheduler does: fewer victims are a smaller sum."""

Cost = tuple[int, int, int, float]

Victim = TypeVar("Victim")


@dataclass(frozen=True, slots=True)
class NodeUnderPreemption:
    """One node, with what each of its pods would free.

    Attributes:
        cards: Its cards now, in word order.
        asked: What the preempting pod asks for besides cards. The sum of GPU memory is left out, and what the
            node does not offer but a DeviceClass may serve.
        open_units: Units by card that pods can use at all: 0 if the card is unhealthy or cordoned.
        pods: Pods that can be named as victims, by UID.
        freed: What each of them would certainly free, by card; nothing where the kubelet runs on what a pod
            stands for.
        gangs: All running pods by gang: without one of them the others have run in vain.
        pod_groups: PodGroups of Kubernetes, some of which are no gangs.
    """

    cards: tuple[Card, ...]
    left: Amounts
    asked: Amounts
    open_units: tuple[int, ...]
    pods: Mapping[str, PodRecord]
    freed: Mapping[str, Mapping[int, CardAmounts]]
    gangs: Mapping[tuple[str, str], Mapping[str, PodRecord]] = field(default_factory=dict)
    pod_groups: PodGroups[PodRecord] = field(default_factory=PodGroups)
    _losses: dict[Hashable, Cost] = field(default_factory=dict, compare=False)

    def list_gang(self, pod: PodRecord) -> Collection[PodRecord]:
        """List a pod and the other running pods of its gang."""
        group = pod.scheduling_group
        if group is not None and not self.pod_groups.ends_together(group, pod.gang_size):
            return (pod,)
        members = self.gangs.get(pod.gang) if pod.gang is not None else None
        return members.values() if members and pod.uid in members else (pod,)

    def list_lost(self, victims: Iterable[PodRecord]) -> list[PodRecord]:
        """List victims, and the others of their gangs, each once."""
        return list({pod.uid: pod for victim in victims for pod in self.list_gang(victim)}.values())

    def get_priority(self, pod: PodRecord) -> int:
        """Return the priority that is lost with a pod: the largest in its gang."""
        return self._compute_loss(pod)[0]

    def make_loss_key(self, pod: PodRecord) -> tuple[int, int, int, float, str]:
        """Sort key of pods by what is lost with each, itself and the others of its gang: the least first.

        kube-scheduler orders PodGroups and pods on their own in this way (MoreImportantVictim).
        """
        return (*self._compute_loss(pod), pod.uid)

    def _compute_loss(self, pod: PodRecord) -> Cost:
        """Compute the cost of a pod with all of its gang, once for a gang of however many pods."""
        lost = self.list_gang(pod)
        key: Hashable = pod.uid if len(lost) == 1 else pod.gang
        if key not in self._losses:
            self._losses[key] = compute_cost(lost)
        return self._losses[key]

    def compute_cost(self, victims: Iterable[PodRecord]) -> Cost:
        """Cost of a set of victims as for kube-scheduler, gangs with all of their pods; smaller is better."""
        return compute_cost(self.list_lost(victims))

    def get_cards_without(
        self, victims: Iterable[str], ended: Mapping[int, CardAmounts] = MappingProxyType({})
    ) -> tuple[Card, ...]:
        """Return the cards as they are once the victims are gone, and what ended pods have there is free."""
        gone = dict(ended)
        for uid in victims:
            add_amounts(gone, self.freed.get(uid, {}))
        cards = list(self.cards)
        for at, (units, percent) in gone.items():
            if self.open_units[at]:
                cards[at] = replace(
                    cards[at],
                    used_units=max(0, cards[at].used_units - units),
                    compute_used=max(0, cards[at].compute_used - percent),
                )
        return tuple(cards)

    def fits_without(self, query: SchedulingRequest, victims: Iterable[str]) -> bool:
        """Return True if the pod has its cards once the victims are gone."""
        return (
            place(self.get_cards_without(victims), query.request, query.policy_request.card_policy)
            is not None
        )

    def has_units_without(self, query: SchedulingRequest, victims: Iterable[str]) -> bool:
        """Return True if the sum of free units suffices once the victims are gone, on whatever cards."""
        cards = self.get_cards_without(victims)
        sizes = [size for size in self.open_units if size]
        asked = sum(
            demand.cards * min((demand.units_on(size) for size in sizes), default=0)
            for demand in query.request.demands
        )
        return sum(card.free_units for card in cards) >= asked

    def has_host_without(self, victims: Collection[str]) -> bool:
        """Return True if cpu, memory and the rest suffice once the victims are gone."""
        return self.asked.fits_in(self.get_left_without(victims))

    def get_left_without(self, victims: Iterable[str]) -> Amounts:
        return sum_amounts((self.pods[uid].amounts for uid in victims if uid in self.pods), self.left)


def view_node(state: ClusterState, node: str, query: SchedulingRequest) -> NodeUnderPreemption | None:
    """View a node as preemption sees it; None if it does not offer what the pod asks for."""
    record = state.node_records.get(node)
    row = state.nodes.rows.get(node)
    nodes, asked = state.nodes, query.policy_request
    if record is None or row is None or not nodes.mask_offering(query.request)[row]:
        return None
    open_units = tuple(nodes.evictable[row, : int(nodes.cards[row])].tolist())
    pod_cards = read_pod_cards(nodes, record)
    return NodeUnderPreemption(
        # More than a card has may be taken; all of it must go before anything is free.
        cards=tuple(map(pod_cards.count_all_compute, build_charged_cards(nodes, row))),
        left=record.left,
        asked=leave_out_undecided(asked.amounts, record.capacity).without_sums(),
        open_units=open_units,
        pods=record.pods,
        freed={uid: {} if pod.is_mirror else _pair_freed(pod_cards, uid) for uid, pod in record.pods.items()},
        gangs=state.gangs,
        pod_groups=state.pod_groups,
    )


def _pair_freed(pod_cards: PodCards, uid: str) -> dict[int, CardAmounts]:
    """Pair the units that certainly become free with the compute there; where no units do, none does."""
    compute = pod_cards.compute.get(uid, {})
    return {card: (units, compute.get(card, 0)) for card, units in pod_cards.get_freed_units(uid).items()}


def drop_needless(victims: Sequence[Victim], is_enough: Callable[[Sequence[Victim]], bool]) -> list[Victim]:
    """Drop victims that need not go, the last one first."""
    kept = list(victims)
    for victim in reversed(victims):
        fewer = [other for other in kept if other is not victim]
        if is_enough(fewer):
            kept = fewer
    return kept


def make_importance_key(pod: PodRecord) -> tuple[int, float, str]:
    """Sort key of pods by their own importance, the least first: kube-scheduler's MoreImportantPod."""
    return pod.priority, -_get_start_time(pod), pod.uid


def compute_cost(victims: Collection[PodRecord]) -> Cost:
    """Compare sets of victims as kube-scheduler does; smaller is better."""
    largest = max((pod.priority for pod in victims), default=-LIFT)
    since = min((_get_start_time(pod) for pod in victims if pod.priority == largest), default=float("inf"))
    return largest, sum(pod.priority + LIFT for pod in victims), len(victims), -since


def _get_start_time(pod: PodRecord) -> float:
    """Return when the kubelet took a pod, seconds since the epoch; infinite before that."""
    return pod.started_at or float("inf")
