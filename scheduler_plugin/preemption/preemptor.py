"""The preemptor: evicts pods for one that waits for a card, and keeps the card for it.

kube-scheduler's own preemption comes first: a refused pod rests for a moment, and one for which
kube-scheduler was told whom to evict is left to it. A round looks at what is being kept and at the pods
refused lately, in that order, one after the other, so no two plans are carried out at the same time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from allocator.errors import RequestError
from kubeapi.backoff import Backoff
from kubeapi.errors import KubeApiError, NotFound, TooManyRequests
from kubeapi.eviction import EvictionApi, evict
from kubeapi.ratelimit import TokenBucket
from scheduler_plugin.binding.binder import Leadership
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.nominations import Nomination, Nominations, waits
from scheduler_plugin.preemption.victims import Eligible, Plan, plan_on
from scheduler_plugin.scheduling.cluster_policies import Policies
from scheduler_plugin.scheduling.placing import POLICY_FAULTS

TICK_S: Final = 0.5
"""Between two rounds."""

SETTLE_S: Final = 1.0
"""A refused pod rests so long: kube-scheduler may still preempt, and pods that ended may still be counted."""

FRESH_S: Final = 60.0
"""What kube-scheduler found of the nodes in an attempt is believed for so long."""

LEFT_S: Final = 30.0
"""A pod for which kube-scheduler preempts is left to it for so long."""

SPARED_S: Final = 30.0
"""A pod whose eviction was refused is no victim for so long, unless the API server asks for more."""

REST_FIRST_S, REST_MOST_S = 5.0, 60.0
"""A pod for which preemption failed, or no victims were found, rests, from so long to so long."""

SHARE: Final = 10
"""After a look for victims there is none for so many times as long: other calls need the processor."""

AT_ONCE: Final = 16
"""Pods that cards are kept for at the same time."""

BURST, EVICTION_S = 20, 1.0
"""So many evictions at once, then one every so many seconds."""

REMEMBERED: Final = 1024
"""Refused pods that are remembered."""

SLICE: Final = 2
"""Nodes that are looked at before other work has its turn."""

log = structlog.get_logger(__name__)


class Refusal(NamedTuple):
    """A pod that found no card.

    Attributes:
        nodes: Those that only lacked a card when it was refused last.
        since: When it was refused first, seconds of the clock.
        at: When it was refused last.
    """

    nodes: Sequence[str]
    since: float
    at: float


class Preemptor:
    """Makes plans and carries them out.

    Invariant: a pod is evicted only for one that was refused within FRESH_S for want of cards and for nothing
    else, that has a larger priority, for which nothing is being kept yet, and which fits once it is gone.

    Args:
        state: The cluster.
        policies: Of the cluster.
        budgets: PodDisruptionBudgets.
        api: The API server.
        clock: Monotonic seconds.
        wall: Seconds since the epoch.
        leadership: None when nobody else can be preempting.
        stale: Why the view of the cluster cannot be trusted; empty when it can.
        sleep: Waits, as asyncio.sleep.

    Attributes:
        nominations: What is being kept.
        began: Says the preemptor and the plan that is carried out for it.
        evicted: Says victim, preemptor and node of an eviction that the API server accepted.
        failed: Says the preemptor, and why a plan came to nothing.
    """

    def __init__(
        self,
        state: ClusterState,
        policies: Policies,
        budgets: DisruptionBudgets,
        api: EvictionApi,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        leadership: Leadership | None = None,
        stale: Callable[[], str] = lambda: "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.state = state
        self.policies = policies
        self.budgets = budgets
        self.evicted: Signal[[PodRecord, PodRecord, str]] = Signal()
        self.began: Signal[[PodRecord, Plan]] = Signal()
        self.failed: Signal[[PodRecord, str]] = Signal()
        self._api = api
        self._clock = clock
        self._wall = wall
        self._leadership = leadership
        self._stale = stale
        self._sleep = sleep
        self._refused: OrderedDict[str, Refusal] = OrderedDict()
        self._left: dict[str, float] = {}
        self._resting: dict[str, tuple[Backoff, float]] = {}
        self._spared: dict[str, float] = {}
        self._looks_again_at = float("-inf")
        self._tokens = TokenBucket(BURST, EVICTION_S, clock)
        self.nominations = Nominations(
            state, api, clock, self._eligible, lambda pod, node: self._plans(pod, [node])[0]
        )
        state.pod_resolved.connect(self._settled)

    def note(self, uid: str, nodes: Sequence[str]) -> None:
        """Remember which nodes lacked only a card for a pod; none: it was let pass, or may not preempt."""
        before, now = self._refused.pop(uid, None), self._clock()
        if nodes:
            self._refused[uid] = Refusal(nodes, now if before is None else before.since, now)
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)

    def leave(self, uid: str) -> None:
        """Leave a pod to kube-scheduler, which preempts for it."""
        self._left[uid] = self._clock() + LEFT_S

    async def run(self) -> None:
        """Preempt until cancelled."""
        while True:
            try:
                await self.round()
            except Exception:
                # Whatever it was, the next round looks at everything afresh.
                log.exception("preemption failed")
            await self._sleep(TICK_S)

    async def round(self) -> None:
        """Look once at everything."""
        now = self._clock()
        for memory in (self._left, self._spared):
            for uid in [uid for uid, until in memory.items() if until <= now]:
                del memory[uid]
        if not self._may_act():
            return
        for pod, why in await self.nominations.follow():
            self._rest(pod, why)
        for uid in [uid for uid, refusal in self._refused.items() if refusal.at + FRESH_S <= now]:
            del self._refused[uid]
        for uid in self._due(now):
            # Whoever came before took time, and perhaps the cards.
            refusal = self._refused.get(uid)
            if refusal is not None and self._clock() >= self._looks_again_at and self._may_preempt(uid):
                await self._preempt(self.state.pods[uid], refusal)

    def _due(self, now: float) -> list[str]:
        """Refused pods whose turn may have come, the most important first, then the one refused first."""
        due = [
            (-self.state.pods[uid].priority, refusal.since, uid)
            for uid, refusal in self._refused.items()
            if refusal.since + SETTLE_S <= now and self._may_preempt(uid)
        ]
        return [uid for _, _, uid in sorted(due)]

    def _settled(self, pod: PodRecord) -> None:
        """The pod was bound, or is gone: nothing need be kept for it."""
        self._refused.pop(pod.uid, None)
        self._resting.pop(pod.uid, None)
        self._left.pop(pod.uid, None)
        self.nominations.drop(pod.uid)

    def _may_act(self) -> bool:
        """Whether this process may evict anybody now."""
        leads = self._leadership is None or self._leadership.is_leader
        return leads and self.budgets.synced and not self._stale()

    def _may_preempt(self, uid: str) -> bool:
        """Whether a refused pod's turn has come."""
        pod = self.state.pods.get(uid)
        return (
            pod is not None
            and pod.request is not None
            and waits(pod)
            and uid not in self._left
            and self.nominations.of(uid) is None
            and not self.nominations.is_foreign(pod)
            and self._resting.get(uid, (None, 0.0))[1] <= self._clock()
            and len(self.state.reservations) < AT_ONCE
            and self.state.get_assumed(uid) is None
        )

    def _eligible(self) -> Eligible:
        return Eligible(self.budgets, self._spared.keys(), self._wall())

    async def _preempt(self, pod: PodRecord, refusal: Refusal) -> None:
        """Choose victims for a pod and evict them."""
        began = self._clock()
        found = await self._best(pod, [node for node in refusal.nodes if self._has_lesser(node, pod)])
        self._looks_again_at = self._clock() + SHARE * (self._clock() - began)
        if found is None:
            self._back_off(pod)
            return
        # Others had their turn meanwhile: look once more at what matters, without waiting from here on.
        if not (self._may_act() and self._waits(pod.uid) and self._may_preempt(pod.uid)):
            return
        pod = self.state.pods[pod.uid]
        plan = self._plans(pod, [found])[0]
        # Where nobody need leave the pod fits by now: kube-scheduler will see that.
        if plan is None or not plan.going or (plan.victims and not self._tokens.take()):
            return
        for _ in plan.victims[1:]:
            # Whoever comes next waits for these too.
            self._tokens.reserve()
        nomination = self.nominations.begin(pod, plan)
        log.info("preempting", pod=_name(pod), node=found, victims=[_name(victim) for victim in plan.victims])
        self.began(pod, plan)
        try:
            await self.nominations.announce(nomination)
            for victim in sorted(plan.victims, key=lambda victim: not self.budgets.list_covering(victim)):
                if not (self._may_act() and self._waits(pod.uid)):
                    await self.nominations.leave(nomination)
                    return
                await self._evict(victim, nomination)
        except KubeApiError as error:
            self._rest(pod, str(error))
            await self.nominations.end(nomination)

    def _has_lesser(self, node: str, pod: PodRecord) -> bool:
        """Tell quickly whether anybody on a node could go, or goes anyway."""
        record = self.state.node_records.get(node)
        others = () if record is None else record.pods.values()
        return any(other.priority < pod.priority or other.grace_ends_at is not None for other in others)

    async def _best(self, pod: PodRecord, nodes: Sequence[str]) -> str | None:
        """Name the node with the cheapest victims."""
        best: Plan | None = None
        for first in range(0, len(nodes), SLICE):
            for plan in self._plans(pod, nodes[first : first + SLICE]):
                if plan is not None and (best is None or plan.cost < best.cost):
                    best = plan
            await self._sleep(0)
        return None if best is None else best.reservation.node

    def _plans(self, pod: PodRecord, nodes: Sequence[str]) -> list[Plan | None]:
        """Make a plan for each node."""
        state, request = self.state, pod.request
        if request is None:
            return [None for _ in nodes]
        try:
            query = self.policies.query(state.nodes, request, pod.cpu_milli, pod.memory_bytes)
        except RequestError:
            return [None for _ in nodes]
        try:
            with state.reservations.charged_against(state.nodes, pod.uid, pod.priority):
                return [plan_on(state, node, query, pod, self._eligible()) for node in nodes]
        except POLICY_FAULTS:
            return [None for _ in nodes]

    def _waits(self, uid: str) -> bool:
        """Whether a pod was refused when it was tried last, and is still there."""
        pod = self.state.pods.get(uid)
        return uid in self._refused and pod is not None and waits(pod)

    async def _evict(self, victim: PodRecord, nomination: Nomination) -> None:
        """Evict a pod, unless it is leaving already.

        Raises:
            KubeApiError: it could not be evicted.
        """
        known = self.state.pods.get(victim.uid)
        if known is None or known.ended or known.grace_ends_at is not None:
            return
        try:
            await evict(self._api, victim.namespace, victim.name, victim.uid)
        except NotFound:
            return
        except KubeApiError as error:
            if getattr(error, "cause", None) == "uid":
                return
            asked_s = error.retry_after_s if isinstance(error, TooManyRequests) else None
            self._spared[victim.uid] = self._clock() + max(SPARED_S, asked_s or 0.0)
            raise
        log.info("evicted", pod=_name(victim), node=victim.node, preemptor=_name(nomination.pod))
        self.evicted(victim, nomination.pod, victim.node)

    def _rest(self, pod: PodRecord, why: str) -> None:
        """Let a pod wait, longer each time, before anybody is evicted for it again."""
        self._back_off(pod)
        log.warning("preemption came to nothing", pod=_name(pod), error=why)
        self.failed(pod, why)

    def _back_off(self, pod: PodRecord) -> None:
        backoff, _ = self._resting.get(pod.uid) or (Backoff(REST_FIRST_S, REST_MOST_S), 0.0)
        self._resting[pod.uid] = backoff, self._clock() + backoff.failed()


def _name(pod: PodRecord) -> str:
    return f"{pod.namespace}/{pod.name}"
