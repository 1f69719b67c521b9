"""Events on pods that say why they wait, written when the reason changes, at little cpu cost."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from kubeapi.correlation import EventType, ObjectRef, make_pod_ref
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod
from scheduler_plugin.queue.controller.status import WaitReason, explain_pod
from scheduler_plugin.queue.scheduler.queue import Queue

SLICE_S: Final = 0.02
"""Longest time of explaining at a stretch: for many pods it takes seconds, and decisions come in between."""

SHARE: Final = 0.01
"""Share of the processor's time for pods that have a report: the more pods, the less often each comes."""

UNCHANGED_S: Final = 30.0
"""How often reasons are checked while nothing has changed: time alone may change one."""

AGAIN_S: Final = 600.0
"""Shortest time between two Events about a pod that waits for the same reason, but for other pods."""

_WAITS_FOR_PODS: Final = frozenset({WaitReason.STAGE, WaitReason.GANG})


class ReportedReason(NamedTuple):
    """The newest Event that says why a pod waits, with its message if a new message needs a new Event."""

    reason: WaitReason
    message: str
    at_s: float


class EventSink(Protocol):
    """Takes Events; `kubeapi.events.EventRecorder` does."""

    def event(self, ref: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        """Note something about an object."""


class Explainer:
    """Reports why pods wait: for newly waiting pods at once, for all others in rounds."""

    def __init__(self, queue: Queue, recorder: EventSink, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._recorder = recorder
        self._clock = clock
        self._reported: dict[str, ReportedReason] = {}
        self._left: list[str] = []
        self._changed = False
        self._took_s = 0.0
        self._next_s = float("-inf")
        self._began_s = float("-inf")
        self.reported: Signal[[QueuedPod, WaitReason, str]] = Signal()

    def begin_round(self, *, changed: bool) -> None:
        """Begin a round if it is time for one, else look for waiting pods that have no report yet.

        Args:
            changed: Whether anything that reasons depend on has changed since the last call.
        """
        self._changed |= changed
        if self._left:
            return
        pods = self._queue.queued_pods
        for uid in [uid for uid in self._reported if uid not in pods]:
            del self._reported[uid]
        now = self._clock()
        every = now >= self._next_s and (self._changed or now - self._began_s >= UNCHANGED_S)
        if every:
            self._began_s, self._took_s, self._changed = now, 0.0, False
        self._left = [
            uid
            for uid, pod in pods.items()
            if pod.phase is Phase.GATED and (every or uid not in self._reported)
        ]
        self._left.reverse()

    def continue_round(self) -> bool:
        """Explain pods for a short time slice; return True if some are left."""
        if not self._left:
            return False
        began = self._clock()
        now = began
        while self._left and now < began + SLICE_S:
            pod = self._queue.queued_pods.get(self._left.pop())
            if pod is not None and pod.phase is Phase.GATED:
                self.explain_pod(pod)
            now = self._clock()
        self._took_s += now - began
        self._next_s = self._began_s + self._took_s / SHARE
        return bool(self._left)

    def forget_reports(self) -> None:
        """Report every pod anew: another process may have reported other reasons meanwhile."""
        self._reported.clear()

    def forget_pod(self, uid: str) -> None:
        self._reported.pop(uid, None)

    def explain_pod(self, pod: QueuedPod) -> None:
        now = self._clock()
        waiting = explain_pod(self._queue, pod, now, position=0)
        lasts = waiting.reason in _WAITS_FOR_PODS or waiting.reason is WaitReason.REFUSED
        reported = self._reported.get(pod.uid)
        new = ReportedReason(waiting.reason, waiting.message if lasts else "", now)
        if reported is not None and reported.reason is new.reason:
            soon = new.reason in _WAITS_FOR_PODS and now - reported.at_s < AGAIN_S
            if soon or reported.message == new.message:
                return
        self._reported[pod.uid] = new
        type_: EventType = "Warning" if waiting.reason in {WaitReason.REFUSED, WaitReason.GANG} else "Normal"
        record = pod.record
        ref = make_pod_ref(record.namespace, record.name, record.uid)
        self._recorder.event(ref, type_, "Waiting", f"{waiting.reason}: {waiting.message}")
        self.reported(pod, waiting.reason, waiting.message)
