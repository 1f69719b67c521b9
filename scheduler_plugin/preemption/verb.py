"""The preemptor's parts put together: the work, and Events about it."""

import time
from collections.abc import Callable
from typing import Protocol

from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder, EventType, pod_ref
from scheduler_plugin.binding.binder import Leadership
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.preemptor import Preemptor
from scheduler_plugin.preemption.victims import Plan
from scheduler_plugin.scheduling.cluster_policies import Policies


class View(Protocol):
    """A view of the cluster that may grow old."""

    @property
    def stale(self) -> str:
        """Why it cannot be trusted; empty when it can."""
        ...


class Preemption:
    """Everything that preempting takes.

    Args:
        state: The cluster.
        policies: Of the cluster.
        budgets: PodDisruptionBudgets.
        client: The API server.
        clock: Monotonic seconds.
        events: Takes Events.
        view: Of the API server; `cache.watcher.Watcher` is one.
        leadership: None when nobody else can be preempting.

    Attributes:
        preemptor: Hears of refusals.
    """

    def __init__(
        self,
        state: ClusterState,
        policies: Policies,
        budgets: DisruptionBudgets,
        client: KubeClient,
        clock: Callable[[], float],
        events: EventRecorder,
        view: View,
        leadership: Leadership | None,
    ) -> None:
        self.preemptor = Preemptor(
            state,
            policies,
            budgets,
            client,
            clock,
            time.time,
            leadership=leadership,
            stale=lambda: view.stale,
        )
        self._events = events
        self.preemptor.began.connect(self._began)
        self.preemptor.evicted.connect(self._evicted)
        self.preemptor.failed.connect(self._failed)

    async def run(self) -> None:
        """Preempt until cancelled."""
        await self.preemptor.run()

    def _began(self, pod: PodRecord, plan: Plan) -> None:
        names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in plan.victims)
        what = f"evicting {names}" if names else "waiting for pods that are leaving"
        self._tell(pod, "Nominated", f"Keeping GPU memory on node {plan.reservation.node} for it: {what}")

    def _evicted(self, victim: PodRecord, pod: PodRecord, node: str) -> None:
        why = f"for pod {pod.namespace}/{pod.name} of priority {pod.priority}, which needs its GPU memory"
        self._tell(victim, "Preempted", f"Evicted from node {node} {why}")

    def _failed(self, pod: PodRecord, why: str) -> None:
        self._tell(pod, "PreemptionFailed", why, "Warning")

    def _tell(self, pod: PodRecord, reason: str, message: str, kind: EventType = "Normal") -> None:
        self._events.event(pod_ref(pod.namespace, pod.name, pod.uid), kind, reason, message)
