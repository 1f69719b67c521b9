"""The preemptor: evict pods for one that waits for a card, and reserve the card for it.

kube-scheduler's own preemption comes first: a refused pod rests for a moment, and a pod for which
kube-scheduler was given victims is left to it. A round reviews the nominations, then handles the recently
refused pods one after the other. So no two plans are carried out at the same time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from allocator.errors import RequestError
from kubeapi.backoff import KeyedBackoff
from kubeapi.bounded import BoundedDict
from kubeapi.errors import KubeApiError, NotFound, TooManyRequests
from kubeapi.eviction import EvictionApi, evict_pod
from kubeapi.lease import SOLE_PROCESS, LeaderStatus
from kubeapi.ratelimit import TokenBucket
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.nominations import Nomination, Nominations, is_waiting
from scheduler_plugin.preemption.victims import EvictionRules, PreemptionPlan, plan_on_node
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.placing import POLICY_FAULTS

ROUND_INTERVAL_S: Final = 0.5
"""Between two rounds."""

REFUSAL_REST_S: Final = 1.0
"""A refused pod rests so long: kube-scheduler may still preempt, and pods that ended may still be counted."""

REFUSAL_VALID_S: Final = 60.0
"""What kube-scheduler found of the nodes in an attempt is believed for so long."""

KUBE_PREEMPTION_S: Final = 30.0
"""A pod for which kube-scheduler preempts is left to it for so long."""

SPARED_VICTIM_S: Final = 30.0
"""A pod whose eviction was refused is no victim for so long, unless the API server asks for more."""

REST_S: Final = (5.0, 60.0)
"""A pod for which preemption failed, or no victims were found, rests, from so long to so long."""

SEARCH_PAUSE_FACTOR: Final = 10
"""After a look for victims there is none for so many times as long: other calls need the processor."""

MAX_NOMINATIONS: Final = 16
"""Pods that cards are kept for at the same time."""

EVICTION_BURST, EVICTION_INTERVAL_S = 20, 1.0
"""So many evictions at once, then one every so many seconds."""

MAX_REFUSED_PODS: Final = 1024
"""Refused pods that are remembered."""

NODES_PER_SLICE: Final = 2
"""Nodes that are looked at before other work has its turn."""

log = structlog.get_logger(__name__)


class RefusedPod(NamedTuple):
    """RefusedPod is a pod that found no card.

    Attributes:
        nodes: Names of the nodes that lacked only a card when it was refused last.
        first_refused_at: Time of the first refusal, seconds of the clock.
        last_refused_at: Time of the last refusal.
    """

    nodes: Sequence[str]
    first_refused_at: float
    last_refused_at: float


class Preemptor:
    """Preemptor makes plans and carries them out.

    Invariant: a pod is evicted only for a preemptor

    - that was refused within FRESH_S for want of cards and for nothing else,
    - that has a larger priority,
    - that has no reservation yet,
    - and that fits once the victim is gone.

    Args:
        wall: Seconds since the epoch.
        stale: Why the view of the cluster cannot be trusted; empty when it can.

    Attributes:
        nominations: The reserved cards.
        began: Signals the preempting pod and the plan that is carried out for it.
        evicted: Signals victim, preempting pod and node of an eviction that the API server accepted.
        failed: Signals the preempting pod, and why its plan failed.
    """

    def __init__(
        self,
        state: ClusterState,
        policies: ClusterPolicies,
        budgets: DisruptionBudgets,
        api: EvictionApi,
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
        self._spared_until: dict[str, float] = {}
        self._next_search_at = float("-inf")
        self._tokens = TokenBucket(EVICTION_BURST, EVICTION_INTERVAL_S, clock)
        self.nominations = Nominations(
            state, api, clock, self._make_eviction_rules, lambda pod, node: self._make_plans(pod, [node])[0]
        )
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
        for memory in (self._left_until, self._spared_until):
            for uid in [uid for uid, until in memory.items() if until <= now]:
                del memory[uid]
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
                await self._preempt(self.state.pods[uid], refusal)

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
        pod = self.state.pods.get(uid)
        return (
            pod is not None
            and pod.request is not None
            and is_waiting(pod)
            and uid not in self._left_until
            and self.nominations.get_nomination(uid) is None
            and not self.nominations.is_foreign(pod)
            and not self._resting.is_paused(uid)
            and len(self.state.reservations) < MAX_NOMINATIONS
            and self.state.get_assumed(uid) is None
        )

    def _make_eviction_rules(self) -> EvictionRules:
        return EvictionRules(self.budgets, self._spared_until.keys(), self._wall())

    async def _preempt(self, pod: PodRecord, refusal: RefusedPod) -> None:
        began = self._clock()
        node_name = await self._find_best_node(
            pod, [node for node in refusal.nodes if self._has_possible_victim(node, pod)]
        )
        self._next_search_at = self._clock() + SEARCH_PAUSE_FACTOR * (self._clock() - began)
        if node_name is None:
            self._resting.failed(pod.uid, self._clock())
            return
        # Others had their turn meanwhile: look once more at what matters, without waiting from here on.
        if not (self._can_act() and self._is_waiting(pod.uid) and self._can_preempt(pod.uid)):
            return
        pod = self.state.pods[pod.uid]
        plan = self._make_plans(pod, [node_name])[0]
        # Where nobody need leave the pod fits by now: kube-scheduler will see that.
        if plan is None or not plan.leaving_or_evicted or (plan.victims and not self._tokens.take()):
            return
        for _ in plan.victims[1:]:
            # Whoever comes next waits for these too.
            self._tokens.reserve()
        nomination = self.nominations.nominate(pod, plan)
        log.info(
            "preempting",
            pod=_format_name(pod),
            node=node_name,
            victims=[_format_name(victim) for victim in plan.victims],
        )
        self.began(pod, plan)
        try:
            await self.nominations.announce(nomination)
            for victim in sorted(plan.victims, key=lambda victim: not self.budgets.list_covering(victim)):
                if not (self._can_act() and self._is_waiting(pod.uid)):
                    await self.nominations.withdraw_if_waiting(nomination)
                    return
                await self._evict(victim, nomination)
        except KubeApiError as error:
            self._report_failure(pod, str(error))
            await self.nominations.withdraw(nomination)

    def _has_possible_victim(self, node: str, pod: PodRecord) -> bool:
        """Return True if a node has a possible victim, or a pod that is leaving anyway; a quick check."""
        record = self.state.node_records.get(node)
        others = () if record is None else record.pods.values()
        return any(other.priority < pod.priority or other.grace_ends_at is not None for other in others)

    async def _find_best_node(self, pod: PodRecord, nodes: Sequence[str]) -> str | None:
        """Name the node with the cheapest victims."""
        best: PreemptionPlan | None = None
        for first in range(0, len(nodes), NODES_PER_SLICE):
            for plan in self._make_plans(pod, nodes[first : first + NODES_PER_SLICE]):
                if plan is not None and (best is None or plan.cost < best.cost):
                    best = plan
            await self._sleep(0)
        return None if best is None else best.reservation.node

    def _make_plans(self, pod: PodRecord, nodes: Sequence[str]) -> list[PreemptionPlan | None]:
        state, request = self.state, pod.request
        if request is None:
            return [None for _ in nodes]
        try:
            query = self.policies.make_request(state.nodes, request, pod.amounts)
        except RequestError:
            return [None for _ in nodes]
        try:
            with state.reservations.charged_against(state.nodes, pod.uid, pod.priority):
                return [plan_on_node(state, node, query, pod, self._make_eviction_rules()) for node in nodes]
        except POLICY_FAULTS:
            return [None for _ in nodes]

    def _is_waiting(self, uid: str) -> bool:
        """Return True if a pod's last attempt was refused and it still waits."""
        pod = self.state.pods.get(uid)
        return uid in self._refused and pod is not None and is_waiting(pod)

    async def _evict(self, victim: PodRecord, nomination: Nomination) -> None:
        """Evict a pod, unless it is leaving already.

        Raises:
            KubeApiError: it could not be evicted.
        """
        known = self.state.pods.get(victim.uid)
        if known is None or known.ended or known.grace_ends_at is not None:
            return
        try:
            await evict_pod(self._api, victim.namespace, victim.name, victim.uid)
        except NotFound:
            return
        except KubeApiError as error:
            if getattr(error, "cause", None) == "uid":
                return
            asked_s = error.retry_after_s if isinstance(error, TooManyRequests) else None
            self._spared_until[victim.uid] = self._clock() + max(SPARED_VICTIM_S, asked_s or 0.0)
            raise
        log.info(
            "evicted", pod=_format_name(victim), node=victim.node, preemptor=_format_name(nomination.pod)
        )
        self.evicted(victim, nomination.pod, victim.node)

    def _report_failure(self, pod: PodRecord, why: str) -> None:
        """Report a failed plan; the pod waits longer each time before the next one."""
        self._resting.failed(pod.uid, self._clock())
        log.warning("preemption came to nothing", pod=_format_name(pod), error=why)
        self.failed(pod, why)


def _format_name(pod: PodRecord) -> str:
    return f"{pod.namespace}/{pod.name}"
