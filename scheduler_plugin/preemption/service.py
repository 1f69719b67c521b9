"""The preemption service: the preemptor, and the Events about its work."""

import time
from collections.abc import Callable

from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder, EventType, make_pod_ref
from kubeapi.lease import LeaderStatus
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.preemptor import Preemptor
from scheduler_plugin.preemption.victims import PreemptionPlan
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies


class PreemptionService:
    """Runs the preemptor and reports its work as Events."""

    def __init__(
        self,
        state: ClusterState,
        policies: ClusterPolicies,
        budgets: DisruptionBudgets,
        client: KubeClient,
        clock: Callable[[], float],
        events: EventRecorder,
        stale: Callable[[], str],
        leadership: LeaderStatus,
    ) -> None:
        self.preemptor = Preemptor(
            state,
            policies,
            budgets,
            client,
            clock,
            time.time,
            leadership=leadership,
            stale=stale,
        )
        self._events = events
        self.preemptor.began.connect(self._report_began)
        self.preemptor.evicted.connect(self._report_evicted)
        self.preemptor.failed.connect(self._report_failed)

    async def run(self) -> None:
        await self.preemptor.run()

    def _report_began(self, pod: PodRecord, plan: PreemptionPlan) -> None:
        names = ", ".join(victim.full_name for victim in plan.victims)
        what = f"evicting {names}" if names else "waiting for pods that are leaving"
        self._send_event(
            pod, "Nominated", f"Keeping GPU memory on node {plan.reservation.node} for it: {what}"
        )

    def _report_evicted(self, victim: PodRecord, pod: PodRecord, node: str) -> None:
        why = f"for pod {pod.full_name} of priority {pod.priority}, which needs its GPU memory"
        self._send_event(victim, "Preempted", f"Evicted from node {node} {why}")

    def _report_failed(self, pod: PodRecord, why: str) -> None:
        self._send_event(pod, "PreemptionFailed", why, "Warning")

    def _send_event(self, pod: PodRecord, reason: str, message: str, kind: EventType = "Normal") -> None:
        self._events.event(make_pod_ref(pod.namespace, pod.name, pod.uid), kind, reason, message)
