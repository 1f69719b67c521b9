"""The preemptor: evict pods for one that waits for a card, and reserve the card for it.

kube-scheduler's own preemption comes first: a refused pod rests for a moment, and a pod for which
kube-scheduler was given victims is left to it. A round reviews the nominations, then handles the recently
refused pods one after the other. So no two plans are carried out at the same time. For a pod of a gang others
are evicted only together with those for the rest of it, and only if the gang can start then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import structlog

from allocator.errors import RequestError
from kubeapi.backoff import KeyedBackoff
from kubeapi.bounded import BoundedDict
from kubeapi.errors import UNREADABLE, KubeApiError, TooManyRequests, is_gone
from kubeapi.eviction import evict_pod
from kubeapi.lease import SOLE_PROCESS, LeaderStatus
from kubeapi.object_api import ObjectApi
from kubeapi.paths import make_pod_path
from kubeapi.ratelimit import TokenBucket
from scheduler_plugin.cache.amounts import Amounts, sum_amounts
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.pod_groups import GroupKey
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.gang_members import decode_alike, may_be_kept_off
from scheduler_plugin.preemption.nominations import Nomination, Nominations
from scheduler_plugin.preemption.victims import EvictionRules, PreemptionPlan, plan_on_node
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import POLICY_FAULTS
from scheduler_plugin.scheduling.pod_affinity import ExistingAntiAffinity
from scheduler_plugin.scheduling.request import SchedulingRequest

ROUND_INTERVAL_S: Final = 0.5
REFUSAL_REST_S: Final = 1.0
"""How long a refused pod rests: kube-scheduler may still preempt, and pods that ended may still be counted.
"""

REFUSAL_VALID_S: Final = 60.0
"""How long kube-scheduler's findings about the nodes of an attempt count."""

KUBE_PREEMPTION_S: Final = 30.0
"""A pod for which kube-scheduler preempts is left to it for so long."""

SPARED_VICTIM_S: Final = (30.0, 300.0)
"""Shortest and longest time for which a pod whose eviction was refused is no victim."""

BUSY_FAILURES: Final = 2
"""Failures in a row after which an API server that says it has too much to do means the victim."""

REST_S: Final = (5.0, 60.0)
"""Shortest and longest rest of a pod for which preemption failed or no victims were found."""

SEARCH_PAUSE_FACTOR: Final = 10
"""A search for victims is followed by a pause so many times as long: other calls need the processor."""

MAX_NOMINATIONS: Final = 16
"""Pods that cards are kept for at the same time; a gang that begins with fewer may have more."""

MAX_WAITING_MEMBERS: Final = 64
"""Waiting pods of a gang for which others are evicted."""

EVICTION_BURST, EVICTION_INTERVAL_S = 20, 1.0
"""Evictions at once, and seconds between those that follow."""

MAX_REFUSED_PODS: Final = 1024
"""Refused pods that are remembered."""

NODES_PER_SLICE: Final = 2
"""Nodes that are searched before other work has its turn."""

log = structlog.get_logger(__name__)


class RefusedPod(NamedTuple):
    """A pod that found no card; times are seconds of the clock.

    Attributes:
        nodes: Names of the nodes that lacked only a card when it was refused last.
    """

    nodes: Sequence[str]
    first_refused_at: float
    last_refused_at: float


class Preemptor:
    """Preemptor makes plans and carries them out.

    Invariant: a pod is evicted only for a preemptor

    - that was refused within REFUSAL_VALID_S for want of cards and for nothing else,
    - that has a larger priority,
    - that has no reservation yet,
    - and that fits once the victim is gone, with enough of its gang for that to start.

    Args:
        wall: Seconds since the epoch.
        stale: Why the view of the cluster cannot be trusted; empty when it can.

    Attributes:
        nominations: The reserved cards.
        existing: Pods that may keep those of a gang off a node.
        began: Signals the preempting pod and the plan that is carried out for it.
        evicted: Signals victim, preempting pod and node of an eviction that the API server accepted.
        failed: Signals the preempting pod, and why its plan failed.
    """

    def __init__(
        self,
        state: ClusterState,
        policies: ClusterPolicies,
        budgets: DisruptionBudgets,
        api: ObjectApi,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        leadership: LeaderStatus = SOLE_PROCESS,
        stale: Callable[[], str] = lambda: "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.state = state
        self.policies = policies
        self.budgets = budgets
        self.existing = ExistingAntiAffinity()
        self.evicted: Signal[[PodRecord, PodRecord, str]] = Signal()
        self.began: Signal[[PodRecord, PreemptionPlan]] = Signal()
        self.failed: Signal[[PodRecord, str]] = Signal()
        self._api = api
        self._clock = clock
        self._wall = wall
        self._leadership = leadership
        self._stale = stale
        self._sleep = sleep
        self._refused: BoundedDict[str, RefusedPod] = BoundedDict(MAX_REFUSED_PODS)
        self._left_until: dict[str, float] = {}
        self._resting: KeyedBackoff[str] = KeyedBackoff(*REST_S)
        self._spared: KeyedBackoff[str] = KeyedBackoff(*SPARED_VICTIM_S)
        self._next_search_at = float("-inf")
        self._tokens = TokenBucket(EVICTION_BURST, EVICTION_INTERVAL_S, clock)
        self.nominations = Nominations(state, api, clock, self._make_eviction_rules, self._make_plan)
        state.pod_resolved.connect(self._forget_pod)

    def record_refusal(self, uid: str, nodes: Sequence[str]) -> None:
        """Remember which nodes lacked only a card for a pod; empty: it found a node, or may not preempt."""
        before, now = self._refused.pop(uid, None), self._clock()
        if nodes:
            self._refused[uid] = RefusedPod(nodes, now if before is None else before.first_refused_at, now)

    def leave_to_kube_scheduler(self, uid: str) -> None:
        """Leave a pod to kube-scheduler, which preempts for it."""
        self._left_until[uid] = self._clock() + KUBE_PREEMPTION_S

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except Exception:
                # Whatever it was, the next round looks at everything afresh.
                log.exception("preemption failed")
            await self._sleep(ROUND_INTERVAL_S)

    async def run_once(self) -> None:
        """Run one round: review nominations, then preempt for the refused pods that are due."""
        now = self._clock()
        self._resting.pop_due(now)
        self._spared.pop_due(now)
        self._spared.forget_others(self.state.pods)
        for uid in [uid for uid, until in self._left_until.items() if until <= now]:
            del self._left_until[uid]
        if not self._can_act():
            return
        self.state.expire_tombstones(now)
        for pod, why in await self.nominations.review_all():
            self._report_failure(pod, why)
        for uid in [
            uid for uid, refusal in self._refused.items() if refusal.last_refused_at + REFUSAL_VALID_S <= now
        ]:
            del self._refused[uid]
        for uid in self._list_due(now):
            # Whoever came before took time, and perhaps the cards.
            refusal = self._refused.get(uid)
            if refusal is not None and self._clock() >= self._next_search_at and self._can_preempt(uid):
                await self._preempt(uid, refusal)

    def _list_due(self, now: float) -> list[str]:
        """List refused pods that are due: by priority, then never failed or longest ago failed first.

        Ordered by the first refusal alone, many pods without possible victims would starve the others,
        because each attempt is followed by a pause.
        """
        due = [
            (-self.state.pods[uid].priority, self._resting.get_last_end(uid), refusal.first_refused_at, uid)
            for uid, refusal in self._refused.items()
            if refusal.first_refused_at + REFUSAL_REST_S <= now and self._can_preempt(uid)
        ]
        return [uid for *_, uid in sorted(due)]

    def _forget_pod(self, pod: PodRecord) -> None:
        self._refused.pop(pod.uid, None)
        self._resting.forget(pod.uid)
        self._left_until.pop(pod.uid, None)
        self.nominations.remove_nomination(pod.uid)

    def _can_act(self) -> bool:
        """Return True if this process may evict pods now."""
        return self._leadership.is_leader and self.budgets.synced and not self._stale()

    def _can_preempt(self, uid: str) -> bool:
        return len(self.state.reservations) < MAX_NOMINATIONS and bool(self._list_members(uid))

    def _list_members(self, uid: str) -> list[PodRecord]:
        """List the pods for which others are evicted together with those for a pod: itself, or its gang's.

        Nobody if that must not be now, or cannot help.
        """
        pod = self.state.pods.get(uid)
        if pod is None:
            return []
        members = [pod]
        if (gang := self._get_gang(pod)) is not None:
            _, waiting = self.state.group_holds.split_members(gang)
            members = [self.state.pods[each] for each in sorted(waiting)]
            is_alike = all((each.request, each.amounts) == (pod.request, pod.amounts) for each in members)
            if not is_alike or len(members) > MAX_WAITING_MEMBERS or self._count_missing(pod) > len(members):
                return []
            groups = self.state.pod_groups
            if groups.explain_disagreement(gang, groups.list_counted(gang)):
                return []
        return members if all(map(self._may_begin, members)) else []

    def _may_begin(self, pod: PodRecord) -> bool:
        """Return True if others may be evicted for a pod now, as far as itself is concerned."""
        return (
            pod.request is not None
            and pod.can_be_scheduled
            and pod.uid not in self._left_until
            and self.nominations.get_nomination(pod.uid) is None
            and not self.nominations.is_foreign(pod)
            and not self._resting.is_paused(pod.uid)
            and self.state.get_assumed(pod.uid) is None
        )

    def _get_gang(self, pod: PodRecord) -> GroupKey | None:
        return pod.scheduling_group if self.state.pod_groups.ends_together(pod.scheduling_group) else None

    def _count_missing(self, pod: PodRecord) -> int:
        """Count the pods that have to get a place for a pod to start: of a gang, those it lacks, at least 1.

        More than there can be if its PodGroup is not known, is being placed, or has topology constraints, of
        which only kube-scheduler knows whether they hold.
        """
        gang, groups, holds = self._get_gang(pod), self.state.pod_groups, self.state.group_holds
        if gang is None:
            return 1
        if not groups.get_min_count(gang) or groups.has_topology(gang) or holds.list_held_nodes(gang):
            return MAX_WAITING_MEMBERS + 1
        placed, _ = holds.split_members(gang)
        return max(1, groups.get_min_count(gang) - len(placed))

    def _make_eviction_rules(self, before: Sequence[PreemptionPlan] = ()) -> EvictionRules:
        going = {victim.uid: victim for plan in before for victim in plan.victims}
        spared = [uid for uid in self._spared if self._spared.is_paused(uid)]
        return EvictionRules(self.budgets, spared, self._wall(), going)

    async def _preempt(self, uid: str, refusal: RefusedPod) -> None:
        began, pod, members = self._clock(), self.state.pods[uid], self._list_members(uid)
        nodes = [node for node in refusal.nodes if self._has_possible_victim(node, pod)]
        if nodes and self._get_gang(pod) is not None:
            nodes = list(dict.fromkeys([*nodes, *self._list_open(pod, refusal.nodes)]))
        found = await self._find_plans(pod, nodes)
        self._next_search_at = self._clock() + SEARCH_PAUSE_FACTOR * (self._clock() - began)
        if not found or not await self._can_start(members, found):
            self._rest(members)
            return
        # Others had their turn meanwhile: look once more at what matters, without waiting from here on.
        if not (self._can_act() and self._is_waiting(uid) and self._can_preempt(uid)):
            return
        before, members = {each.uid for each in members}, self._list_members(uid)
        plans = self._choose_plans(members, found) if before == {each.uid for each in members} else []
        victims = [victim for plan in plans for victim in plan.victims]
        if not self._are_enough(pod, plans) or (victims and not self._tokens.take()):
            return
        for _ in victims[1:]:
            # Whoever comes next waits for these too.
            self._tokens.reserve()
        await self._carry_out(uid, members, plans)

    def _are_enough(self, pod: PodRecord, plans: Sequence[PreemptionPlan]) -> bool:
        """Return True if a pod can start by plans, and not without.

        Where nobody need leave the pods fit by now: kube-scheduler will see that.
        """
        return len(plans) >= self._count_missing(pod) and any(plan.leaving_or_evicted for plan in plans)

    async def _can_start(self, members: Sequence[PodRecord], found: Mapping[str, PreemptionPlan]) -> bool:
        """Return True if enough pods of a gang find a place, also by what else kube-scheduler looks at.

        kube-scheduler has looked at all of it for a pod on its own.
        """
        if self._get_gang(members[0]) is None:
            return True
        plans = self._choose_plans(members, found)
        if not self._are_enough(members[0], plans):
            return False
        try:
            pods = decode_alike(
                {each.uid: await self._api.get(make_pod_path(each.namespace, each.name)) for each in members}
            )
        except (KubeApiError, *UNREADABLE) as error:
            log.info("gang not read", pod=members[0].full_name, error=str(error))
            return False
        gone = {uid for plan in plans for uid in plan.leaving_or_evicted}
        nodes = {plan.reservation.node for plan in plans}
        return bool(pods) and not any(
            may_be_kept_off(pod, self.existing, nodes, gone, self.state.pods) for pod in pods
        )

    async def _carry_out(
        self, uid: str, members: Sequence[PodRecord], plans: Sequence[PreemptionPlan]
    ) -> None:
        """Reserve the cards of all plans, and evict all victims."""
        nominations = [self.nominations.nominate(*each) for each in zip(members, plans, strict=False)]
        for nomination in nominations:
            log.info(
                "preempting",
                pod=nomination.pod.full_name,
                node=nomination.node,
                victims=[victim.full_name for victim in nomination.plan.victims],
            )
            self.began(nomination.pod, nomination.plan)
        victims = [(victim, each) for each in nominations for victim in each.plan.victims]
        try:
            for nomination in nominations:
                await self.nominations.announce(nomination)
            for victim, nomination in sorted(
                victims, key=lambda each: not self.budgets.list_covering(each[0])
            ):
                if not (self._can_act() and self._still_wait(uid, nominations)):
                    for each in nominations:
                        await self.nominations.withdraw_if_waiting(each)
                    return
                await self._evict(victim, nomination)
        except KubeApiError as error:
            self._report_failure(self.state.pods.get(uid, members[0]), str(error))
            self._rest([each for each in members if each.uid != uid])
            for nomination in nominations:
                await self.nominations.withdraw(nomination)

    def _still_wait(self, uid: str, nominations: Sequence[Nomination]) -> bool:
        """Return True if the pods of a plan are still to be served.

        Of a gang one pod may find a card after the first eviction, and the others do not yet.
        """
        if self._get_gang(nominations[0].pod) is None:
            return self._is_waiting(uid)
        pods = [self.state.pods.get(each.pod.uid) for each in nominations]
        return all(pod is not None and pod.can_be_scheduled for pod in pods)

    def _rest(self, pods: Iterable[PodRecord]) -> None:
        for pod in pods:
            self._resting.failed(pod.uid, self._clock())

    def _has_possible_victim(self, node: str, pod: PodRecord) -> bool:
        """Return True if a node has a possible victim, or a pod that is leaving anyway; a quick check."""
        record = self.state.node_records.get(node)
        others = () if record is None else record.pods.values()
        return any(other.priority < pod.priority or other.grace_ends_at is not None for other in others)

    def _list_open(self, pod: PodRecord, nodes: Sequence[str]) -> list[str]:
        """List the nodes that take a pod as they are: for others of its gang, which come first."""
        state, query = self.state, self._make_query(pod)
        known = [node for node in nodes if node in state.nodes.rows]
        if query is None or not known:
            return []
        rows = np.array([state.nodes.rows[node] for node in known], dtype=np.intp)
        try:
            with state.reservations.charged_against(state.nodes, pod.uid, pod.priority):
                fits = filter_nodes(state.nodes, query, rows)
        except POLICY_FAULTS:
            return []
        return [known[at] for at in np.flatnonzero(fits).tolist()]

    def _make_query(self, pod: PodRecord) -> SchedulingRequest | None:
        if pod.request is None:
            return None
        try:
            return self.policies.make_request(self.state.nodes, pod.request, pod.amounts)
        except RequestError:
            return None

    async def _find_plans(self, pod: PodRecord, nodes: Sequence[str]) -> dict[str, PreemptionPlan]:
        found: dict[str, PreemptionPlan] = {}
        for first in range(0, len(nodes), NODES_PER_SLICE):
            some = nodes[first : first + NODES_PER_SLICE]
            plans = zip(some, self._make_plans(pod, some), strict=True)
            found.update({node: plan for node, plan in plans if plan is not None})
            await self._sleep(0)
        return found

    def _choose_plans(
        self, members: Sequence[PodRecord], found: Mapping[str, PreemptionPlan]
    ) -> list[PreemptionPlan]:
        """Choose the node with the cheapest victims for one pod after the other, the first of them that fit.

        Args:
            found: What was found by node, maybe a while ago, for one pod alone.
        """
        chosen: list[PreemptionPlan] = []
        costs = {node: plan.cost for node, plan in found.items()}
        while costs and len(chosen) < len(members):
            node = min(costs, key=costs.__getitem__)
            plan = self._make_plan(members[len(chosen)], node, chosen)
            if plan is None:
                del costs[node]
            elif plan.cost > costs[node]:
                costs[node] = plan.cost
            else:
                chosen.append(plan)
        return chosen

    def _make_plan(
        self, pod: PodRecord, node: str, before: Sequence[PreemptionPlan] = ()
    ) -> PreemptionPlan | None:
        return self._make_plans(pod, [node], before)[0]

    def _make_plans(
        self, pod: PodRecord, nodes: Sequence[str], before: Sequence[PreemptionPlan] = ()
    ) -> list[PreemptionPlan | None]:
        """Make a plan on each node, where all plans `before` for others of its gang come true first."""
        state, query = self.state, self._make_query(pod)
        if query is None:
            return [None for _ in nodes]
        try:
            planned, rules = [plan.reservation for plan in before], self._make_eviction_rules(before)
            with state.reservations.charged_against(state.nodes, pod.uid, pod.priority, planned):
                return [
                    plan_on_node(state, node, query, pod, rules, self._sum_beside(pod, node, before))
                    for node in nodes
                ]
        except POLICY_FAULTS:
            return [None for _ in nodes]

    def _sum_beside(self, pod: PodRecord, node: str, before: Sequence[PreemptionPlan]) -> Amounts | None:
        """Add up what others of a pod's gang would ask of a node; None for a pod on its own."""
        if self._get_gang(pod) is None:
            return None
        uids = [plan.reservation.uid for plan in before if plan.reservation.node == node]
        return sum_amounts(self.state.pods[uid].amounts for uid in uids)

    def _is_waiting(self, uid: str) -> bool:
        """Return True if a pod's last attempt was refused and it still waits."""
        pod = self.state.pods.get(uid)
        return uid in self._refused and pod is not None and pod.can_be_scheduled

    async def _evict(self, victim: PodRecord, nomination: Nomination) -> None:
        """Evict a pod, unless it is leaving already."""
        known = self.state.pods.get(victim.uid)
        if known is None or known.ended or known.grace_ends_at is not None:
            return
        try:
            await evict_pod(self._api, victim.namespace, victim.name, victim.uid)
        except KubeApiError as error:
            if is_gone(error):
                return
            # While the API server has too much to do, another victim would be refused as well. If that does
            # not end, it may be a webhook that says so of this one.
            failures = self._resting.count_failures(nomination.pod.uid)
            stays_busy = isinstance(error, TooManyRequests) and failures >= BUSY_FAILURES
            if stays_busy or not error.can_be_repeated:
                self._spared.failed(victim.uid, self._clock())
            raise
        log.info("evicted", pod=victim.full_name, node=victim.node, preemptor=nomination.pod.full_name)
        self.evicted(victim, nomination.pod, victim.node)

    def _report_failure(self, pod: PodRecord, why: str) -> None:
        """Report a failed plan; the pod waits longer each time before the next one."""
        self._resting.failed(pod.uid, self._clock())
        log.warning("preemption came to nothing", pod=pod.full_name, error=why)
        self.failed(pod, why)
