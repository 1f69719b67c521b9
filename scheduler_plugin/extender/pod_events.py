"""Log lines and Events about pods. Nothing in here waits."""

import math
from collections.abc import Callable

import structlog

from allocator.names import BATCH_SCHEDULER
from allocator.quantity import format_memory
from allocator.texts import list_some
from kubeapi.bounded import BoundedDict
from kubeapi.events import EventRecorder, EventType, ObjectRef, make_pod_group_ref, make_pod_ref
from kubeapi.lease import SOLE_PROCESS, LeaderStatus
from kubeapi.objects import Pod
from scheduler_plugin.cache.pod_groups import GroupKey
from scheduler_plugin.cache.pods import PodRecord, is_placeholder
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.protocol import BindArgs
from scheduler_plugin.extender.unschedulable_pods import REPEAT_AFTER_S, UnschedulablePod, UnschedulablePods
from scheduler_plugin.extender.verbs import Extender

ASSIGNED = "CardsAssigned"
WAITING = "WaitingForCards"
BOUND_IN_PART = "PodGroupBoundInPart"
MAX_GROUPS_IN_PART = 1024
MAX_NAMES = 5
SHORT_UUID = 12
"""Characters of a card's UUID that tell cards apart for people: "GPU-1b6f6ef2"."""

log = structlog.get_logger(__name__)


class PodReporter:
    """Logs, and writes Events about, what became of pods; only the leader writes Events."""

    def __init__(
        self,
        state: ClusterState,
        clock: Callable[[], float],
        events: EventRecorder,
        leadership: LeaderStatus = SOLE_PROCESS,
    ) -> None:
        self._state = state
        self._clock = clock
        self._events = events
        self._leadership = leadership
        self.unschedulable_pods = UnschedulablePods(state.pods)
        self._groups_in_part: BoundedDict[str, float] = BoundedDict(MAX_GROUPS_IN_PART)
        state.pod_resolved.connect(self._report_resolved)

    def report_filter(self, reply: FilterReply) -> None:
        if reply.unschedulable is not None:
            self._report_refusal(reply.unschedulable)
        elif reply.passed:
            self._report_no_longer_waiting(reply.passed, "a node has room")
        if reply.group_in_part is not None:
            refusal = reply.unschedulable
            why = (
                "the API server refuses the Binding." if refusal is None else refusal.format_text(self._state)
            )
            self._report_bound_in_part(reply.group_in_part, why)

    def _report_bound_in_part(self, key: GroupKey, why: str) -> None:
        """Report a PodGroup that is bound in part, in Events of the group and of its pods."""
        groups, now = self._state.pod_groups, self._clock()
        group = groups.get_group(key)
        if group is None or now - self._groups_in_part.get(group.metadata.uid, -math.inf) < REPEAT_AFTER_S:
            return
        self._groups_in_part[group.metadata.uid] = now
        placed, unplaced = self._state.group_holds.split_members(key)
        pods = [pod for uid, pod in groups.get_members(key).items() if uid in placed | unplaced]
        waiting = sorted(pod.name for pod in pods if not pod.node)
        text = (
            f"Only {len(pods) - len(waiting)} of the {groups.get_min_count(key)} pods of PodGroup {key[1]} "
            f"that start together are bound. Not bound: {list_some(waiting, MAX_NAMES)}, because {why} "
            "Make a card free for each, or delete the pods of the group, so that it starts anew."
        )
        log.warning("PodGroup is bound in part", group="/".join(key), waiting=len(waiting), why=why)
        for ref in (
            make_pod_group_ref(*key, group.metadata.uid),
            *(make_pod_ref(pod.namespace, pod.name, pod.uid) for pod in pods),
        ):
            self._send_event(ref, "Warning", BOUND_IN_PART, text)

    def report_unasked(self, extender: Extender, pod: Pod) -> None:
        """Report a pod that kube-scheduler says is unschedulable and never asked the extender about.

        It adds up a node's GPU memory before it asks. So a request beyond every sum is refused without us,
        and the message has no numbers.
        """
        if (
            self._leadership.is_leader
            and pod.status.is_unschedulable
            and not self.unschedulable_pods.has_refused(pod.metadata.uid)
            and pod.spec.scheduler_name != BATCH_SCHEDULER
            and not is_placeholder(pod)
        ):
            refusal = extender.explain_unasked(pod, self._clock())
            message = "" if pod.status.scheduled is None else pod.status.scheduled.message
            # A message with a reason of ours: the extender of the other replica was asked, and reports it.
            if refusal is not None and not any(why in message for why in refusal.list_reasons(self._state)):
                self._report_refusal(refusal)

    def report_bound(self, args: BindArgs, took_s: float) -> None:
        cards = self._format_cards(args.pod_uid, args.node)
        log.info(
            "bound",
            pod=f"{args.pod_namespace}/{args.pod_name}",
            node=args.node,
            cards=cards,
            ms=round(took_s * 1000, 1),
        )
        self._report_no_longer_waiting(args.pod_uid, "bound")
        if cards:
            pod = make_pod_ref(args.pod_namespace, args.pod_name, args.pod_uid)
            self._send_event(pod, "Normal", ASSIGNED, f"Assigned on node {args.node}: {cards}")

    def _report_refusal(self, refusal: UnschedulablePod) -> None:
        if not self.unschedulable_pods.record_refusal(refusal, self._clock()):
            return
        pod = refusal.metadata
        text = refusal.format_text(self._state)
        log.info("pod waits", pod=pod.full_name, why=text)
        self._send_event(make_pod_ref(pod.namespace, pod.name, pod.uid), "Warning", WAITING, text)

    def _report_resolved(self, pod: PodRecord) -> None:
        """Report a pod that was bound (by any scheduler), has ended or is gone."""
        self._report_no_longer_waiting(pod.uid, f"bound to node {pod.node}" if pod.node else "gone")

    def _report_no_longer_waiting(self, uid: str, why: str) -> None:
        pod = self.unschedulable_pods.remove_pod(uid)
        if pod is not None:
            waited_s = round(self._clock() - pod.since, 1)
            log.info("pod waits no longer", pod=pod.pod, why=why, waited_s=waited_s)

    def _send_event(self, pod: ObjectRef, kind: EventType, reason: str, message: str) -> None:
        if self._leadership.is_leader:
            self._events.event(pod, kind, reason, message)

    def _format_cards(self, uid: str, node: str) -> str:
        """Format the cards of a bound pod by container; the container is named where there are several."""
        assumed = self._state.get_assumed(uid)
        pod = self._state.pods.get(uid)
        assigned = assumed.assigned if assumed is not None else None if pod is None else pod.assigned
        if not assigned:
            return ""
        record = self._state.node_records.get(node)
        index_of = dict(zip(record.uuids, record.indexes, strict=True)) if record is not None else {}
        unit_mib = self._state.unit_mib
        texts = [
            (f"{container}: " if len(assigned) > 1 else "")
            + ", ".join(
                f"card {index_of.get(uuid, '?')} ({uuid[:SHORT_UUID]}) {format_memory(units, unit_mib)}"
                for uuid, units in shares
            )
            for container, shares in assigned.items()
        ]
        return "; ".join(texts)
