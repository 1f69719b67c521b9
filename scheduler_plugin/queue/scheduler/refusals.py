"""Why gated pods are in no queue: what is wrong with them, or their admission was refused. Pure."""

from collections.abc import Collection
from typing import Final

from allocator.names import PERCENT_RESOURCE
from allocator.texts import list_some
from kubeapi.backoff import KeyedBackoff
from scheduler_plugin.queue.cache.batch_pods import BatchPods
from scheduler_plugin.queue.cache.membership import QueueMembership
from scheduler_plugin.queue.cache.queued_pods import QueuedPod
from scheduler_plugin.queue.scheduler.admission import AdmissionScheduler

ADMISSION_RETRY_S: Final = (1.0, 300.0)
"""The shortest and the longest pause before an admission that the API server has refused is tried again."""

GATES_SHOWN: Final = 10


class PodRefusals:
    """Knows which gated pods cannot be in a queue now, and why.

    A pod pauses after the API server, or in batch mode the committer, has refused its admission.
    """

    def __init__(self, membership: QueueMembership, batch: BatchPods, admission: AdmissionScheduler) -> None:
        self._membership = membership
        self._batch = batch
        self._admission = admission
        self._pauses: KeyedBackoff[str] = KeyedBackoff(*ADMISSION_RETRY_S)

    def record(self, pod: QueuedPod, now: float, why: str, rejected: Collection[str]) -> None:
        """Begin a pause; the arguments are those of `Queue.record_refused_admission`."""
        if rejected and pod.requirements is not None:
            self._admission.rejected_nodes.add(pod.requirements, rejected, now)
            if self._has_untried_nodes(pod):
                self._pauses.forget(pod.uid)
        self._pauses.failed(pod.uid, now, why)

    def forget(self, uid: str) -> None:
        """End the pause of a pod and forget its refusals."""
        self._pauses.forget(uid)

    @property
    def next_end_s(self) -> float:
        return self._pauses.next_end_s

    def pop_due(self, now: float) -> list[str]:
        """End the pauses that are over, and return the UIDs of their pods."""
        return self._pauses.pop_due(now)

    def is_denied(self, pod: QueuedPod) -> bool:
        """Return True if the API server has refused a pod's admission, with a reason.

        In batch mode the committer answers first, and a single refusal of it may be temporary.
        """
        failures = self._pauses.count_failures(pod.uid)
        return bool(self._pauses.get_last_reason(pod.uid)) and failures > pod.queue_info.is_batch

    def can_be_queued(self, pod: QueuedPod) -> bool:
        return not (self._pauses.is_paused(pod.uid) or self._explain_fault(pod))

    def explain(self, pod: QueuedPod) -> str:
        """Say why a gated pod is in no queue; empty if it can be in one, or pauses without a reason."""
        wrong = self._explain_fault(pod)
        why = self._pauses.explain_pause(pod.uid)
        if wrong or not why:
            return wrong
        is_batch = pod.queue_info.is_batch
        said = "the scheduler does not bind it" if is_batch else "the API server refuses its admission"
        return f"{said}: {why}"

    def is_rejected_everywhere(self, pod: QueuedPod) -> bool:
        """Return True if a pod pauses because every node that it fits on has rejected an equivalent pod."""
        return (
            pod.queue_info.is_batch
            and self._pauses.is_paused(pod.uid)
            and pod.requirements in self._admission.rejected_nodes
            and not self._explain_fault(pod)
            and not self._has_untried_nodes(pod)
        )

    def _has_untried_nodes(self, pod: QueuedPod) -> bool:
        return pod.requirements is not None and self._admission.has_untried_nodes(
            pod.requirements, pod.workload_uid
        )

    def _explain_fault(self, pod: QueuedPod) -> str:
        """Say what is wrong with a gated pod itself, apart from pauses; empty for nothing."""
        if pod.requirements is None:
            resource = self._admission.capacity.state.resource
            none = f"it asks for no {resource} and no {PERCENT_RESOURCE}; allowed: 1 or more of one of them"
            return pod.fault or none
        wrong = pod.fault or self._membership.explain_wrong_queue(pod)
        if wrong:
            return wrong
        info = pod.queue_info
        if info.foreign_gates:
            return f"it waits for the scheduling gates {list_some(info.foreign_gates, GATES_SHOWN)}"
        if info.ending:
            return "it is being deleted"
        return self._batch.explain_refusal(pod.uid) if info.is_batch else ""
