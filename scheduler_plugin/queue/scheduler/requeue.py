"""Find admitted pods to requeue: those without a Binding, and pods of drained queues. Pure.

A requeue is one of two writes. Either the pod gets an annotation that keeps it from being placed, and waits
in its queue again; or it is deleted, and its controller creates it again. The queue deletes a pod only if it
could not be placed elsewhere: its admission has pinned it to a node, or other pods of its gang run already.

A pod whose queue does not admit its namespace is charged to no quota, and its turn never comes. So such a pod
only loses its room.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kubeapi.backoff import KeyedBackoff
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod, Requeue, RequeueWrite
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.scheduler.gangs import Gangs

REMOVED_S: Final = (5.0, 60.0)
"""The shortest and the longest pause before a removal or requeue of the same pod is asked for again."""


class RequeueFinder:
    """Finds admitted pods to requeue, again and again: a budget may protect a pod from removal."""

    def __init__(
        self,
        pods: Mapping[str, QueuedPod],
        queues: Queues,
        gangs: Gangs,
        give_back: Callable[[QueuedPod, float], None],
    ) -> None:
        self._queued_pods = pods
        self._queues = queues
        self._gangs = gangs
        self._free_capacity = give_back
        self._removals: KeyedBackoff[str] = KeyedBackoff(*REMOVED_S)
        self._requeues: KeyedBackoff[str] = KeyedBackoff(*REMOVED_S)
        self._refused: dict[str, Requeue] = {}

    def record_unschedulable(self, pod: QueuedPod, now: float) -> None:
        """Record that kube-scheduler found no node for an admitted pod."""
        self._free_capacity(pod, now)
        self._refused[pod.uid] = Requeue(pod, "kube-scheduler found no node for it")

    def forget_pod(self, uid: str) -> None:
        """Forget a deleted pod; a standby calls this too, although it requeues nothing."""
        self._refused.pop(uid, None)

    def find_requeues(self, config: QueueConfig, now: float) -> list[Requeue]:
        self._removals.pop_due(now)
        self._requeues.pop_due(now)
        admitted = [pod for pod in self._queued_pods.values() if _has_no_node(pod)]
        refused = self._refused.values()
        whys = {requeue.queued_pod.uid: requeue.why for requeue in refused}
        requeues = [
            requeue
            for requeue in refused
            if _has_no_node(requeue.queued_pod) and _is_removed(requeue.queued_pod, config)
        ]
        self._refused.clear()
        must_go: dict[str, tuple[QueuedPod, str]] = {}
        for pod in admitted:
            if pod.gang or now - pod.admitted_at < config.bind_within_s:
                continue
            why = f"not bound within {config.bind_within_s:g} s of its admission"
            if not pod.capacity_freed:
                self._free_capacity(pod, now)
                whys[pod.uid] = why
            if _is_removed(pod, config):
                must_go[pod.uid] = (pod, why)
        must_go |= self._list_drained(config)
        requeues += self._find_removals(must_go, now)
        for pods, why in self._gangs.find_half_bound(now, config.gang_within_s):
            for pod in pods:
                if pod.phase is Phase.ADMITTED and not pod.capacity_freed:
                    self._free_capacity(pod, now)
            whys |= {pod.uid: why for pod in pods}
            requeues += [Requeue(pod, why, RequeueWrite.REMOVE) for pod in pods if pod.can_be_removed]
        requeues += self._find_lost([pod for pod in admitted if pod.uid not in must_go], whys, config, now)
        return [_mark_first(requeue) for requeue in requeues]

    def _list_drained(self, config: QueueConfig) -> dict[str, tuple[QueuedPod, str]]:
        """List the admitted pods of drained queues, and why each must go; no eviction ends a static pod."""
        return {
            uid: (pod, f"queue {name} is drained")
            for name, form in config.queues.items()
            if form.stop_policy == "HoldAndDrain"
            for uid in self._queues[name].admitted
            if not (pod := self._queued_pods[uid]).record.is_mirror
        }

    def _find_lost(
        self, admitted: Iterable[QueuedPod], whys: Mapping[str, str], config: QueueConfig, now: float
    ) -> list[Requeue]:
        """Give the pods that have lost their room and must be requeued, unless that was just asked for."""
        waits = [
            pod
            for pod in admitted
            if pod.charged_queue
            and pod.capacity_freed
            and not pod.queue_info.ending
            and not _is_removed(pod, config)
        ]
        self._requeues.forget_others({pod.uid for pod in waits})
        requeues = []
        for pod in waits:
            if not self._requeues.is_paused(pod.uid):
                self._requeues.failed(pod.uid, now)
                why = whys.get(pod.uid, "it could not be bound")
                requeues.append(Requeue(pod, why, RequeueWrite.MARK))
        return requeues

    def _find_removals(self, must_go: Mapping[str, tuple[QueuedPod, str]], now: float) -> list[Requeue]:
        """Give the pods that must be removed, unless that was just asked for."""
        self._removals.forget_others(must_go)
        requeues = []
        for uid, (pod, why) in must_go.items():
            if not pod.queue_info.ending and not self._removals.is_paused(uid):
                self._removals.failed(uid, now)
                requeues.append(Requeue(pod, why, RequeueWrite.REMOVE))
        return requeues


def _has_no_node(pod: QueuedPod) -> bool:
    return pod.phase is Phase.ADMITTED and not pod.queue_info.gated


def _is_removed(pod: QueuedPod, config: QueueConfig) -> bool:
    """Return True if a pod without a node must be removed where others would be requeued."""
    return pod.can_be_removed and bool(pod.gang or pod.queue_info.pinned_nodes or config.mode == "batch")


def _mark_first(requeue: Requeue) -> Requeue:
    """Mark whether it is the first requeue of its admission: the same pod may be removed later."""
    first, requeue.queued_pod.requeue_asked = not requeue.queued_pod.requeue_asked, True
    return replace(requeue, is_first=first)
