"""What the extender says of pods: lines of its log, and Events on the pods. Nothing in here waits."""

from collections.abc import Callable

import structlog

from kubeapi.events import EventRecorder, EventType, ObjectRef, pod_ref
from scheduler_plugin.binding.binder import Leadership
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.filter_reply import Filtered
from scheduler_plugin.extender.protocol import BindArgs
from scheduler_plugin.extender.unschedulable_pods import Refusal, Waiting
from scheduler_plugin.scheduling.reasons import memory

ASSIGNED = "CardsAssigned"
WAITING = "WaitingForCards"
SHORT_UUID = 12
"""Characters of a card's UUID that tell cards apart for people: "GPU-1b6f6ef2"."""

log = structlog.get_logger(__name__)


class Reporter:
    """Tells people what became of pods.

    Args:
        state: The cluster.
        clock: Monotonic seconds.
        events: Takes Events; None for log lines only.
        leadership: Only the leader writes Events; None without an election.

    Attributes:
        waiting: The pods that wait.
    """

    def __init__(
        self,
        state: ClusterState,
        clock: Callable[[], float],
        events: EventRecorder | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        self._state = state
        self._clock = clock
        self._events = events
        self._leadership = leadership
        self.waiting = Waiting(state.pods)
        state.pod_resolved.connect(self._settled)

    def filtered(self, found: Filtered) -> None:
        """A filter call was answered."""
        if found.refusal is not None:
            self._refused(found.refusal)
        elif found.passed:
            self._no_longer(found.passed, "a node has room")

    def bound(self, args: BindArgs, took_s: float) -> None:
        """A pod was bound."""
        cards = self._cards(args.pod_uid, args.node)
        log.info(
            "bound",
            pod=f"{args.pod_namespace}/{args.pod_name}",
            node=args.node,
            cards=cards,
            ms=round(took_s * 1000, 1),
        )
        self._no_longer(args.pod_uid, "bound")
        if cards:
            pod = pod_ref(args.pod_namespace, args.pod_name, args.pod_uid)
            self._event(pod, "Normal", ASSIGNED, f"Assigned on node {args.node}: {cards}")

    def _refused(self, refusal: Refusal) -> None:
        if not self.waiting.refused(refusal, self._clock()):
            return
        pod = refusal.metadata
        text = refusal.text(self._state)
        log.info("pod waits", pod=f"{pod.namespace}/{pod.name}", why=text)
        self._event(pod_ref(pod.namespace, pod.name, pod.uid), "Warning", WAITING, text)

    def _settled(self, pod: PodRecord) -> None:
        """A pod was seen bound, by anybody, or ended or is gone."""
        self._no_longer(pod.uid, f"bound to node {pod.node}" if pod.node else "gone")

    def _no_longer(self, uid: str, why: str) -> None:
        pod = self.waiting.ended(uid)
        if pod is not None:
            waited_s = round(self._clock() - pod.since, 1)
            log.info("pod waits no longer", pod=pod.pod, why=why, waited_s=waited_s)

    def _event(self, pod: ObjectRef, kind: EventType, reason: str, message: str) -> None:
        leads = self._leadership is None or self._leadership.is_leader
        if self._events is not None and leads:
            self._events.event(pod, kind, reason, message)

    def _cards(self, uid: str, node: str) -> str:
        """The cards that a pod was bound with: each container's, the container named where there are more."""
        take = self._state.get_assumed(uid)
        pod = self._state.pods.get(uid)
        assigned = take.assigned if take is not None else None if pod is None else pod.assigned
        if not assigned:
            return ""
        record = self._state.node_records.get(node)
        index_of = dict(zip(record.uuids, record.indexes, strict=True)) if record is not None else {}
        unit_mib = self._state.unit_mib
        texts = [
            (f"{container}: " if len(assigned) > 1 else "")
            + ", ".join(
                f"card {index_of.get(uuid, '?')} ({uuid[:SHORT_UUID]}) {memory(units, unit_mib)}"
                for uuid, units in shares
            )
            for container, shares in assigned.items()
        ]
        return "; ".join(texts)
