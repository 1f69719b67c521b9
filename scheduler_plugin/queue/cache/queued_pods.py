"""Pods and gangs as the queue knows them. Pure.

The life of a pod in the queue; the words in capitals are its `Phase`:

      created with        admit: quota, slot           seen on
         our gate         and capacity are charged     its node
            |                      |                      |
            v                      |                      v          ended or gone
          GATED  ------------------+---> ADMITTED ----> BOUND ------------------> (forgotten,
            ^                                |            |        uncharged       uncharged)
            |  the API server refused it, or |            |
            |  requeue: bound too late,      |            |  reclaim: evicted, or the node's
            |  or kube-scheduler finds no    |            |  pod is made again by its controller
            +--- node; uncharged ------------+            v
            ^                                          (a new pod,
            +------------------------------------------ with its gate)

A GATED pod waits in its queue or with its gang; if something is wrong with it, it is in no queue. An ADMITTED
pod is charged to its queue; `capacity_freed` is set while its cards are offered to others again and its
requeue is being written. A BOUND pod stays charged until it has ended. A pod that shows its gate again after
it was BOUND is GATED: the API server was restored from an older state.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final

from allocator.names import POD_GANG_SIZE, POD_JOB, QUEUE_NAME
from allocator.texts import list_some
from scheduler_plugin.cache.pod_groups import VALUES_SHOWN, GroupKey
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements

GATED_AGAIN_S: Final = 60.0
"""An admitted pod that wears the gate so long after that was taken away waits again: no news are so late."""


class Phase(StrEnum):
    """The state of a pod in the queue, as the module's drawing shows."""

    GATED = "gated"
    """The pod has our scheduling gate."""
    ADMITTED = "admitted"
    """Its gate is gone, or on its way to be; it has no node."""
    BOUND = "bound"
    """The pod is on a node."""


def make_gang_uid(namespace: str, name: str) -> str:
    """Make the UID of a gang; empty if the name is."""
    return f"gang {namespace}/{name}" if name else ""


@dataclass(slots=True)
class QueuedPod:
    """A pod that waits, is admitted or is bound.

    Attributes:
        requirements: What the pod needs of a node; None if its request cannot be met.
        fault: Why the pod's request cannot be met, in words.
        waiting_since: When it began to wait, by the API server's clock; it orders the queue.
        wait_start: When it began to wait, in seconds of the queue's clock; below 0 if before this process
            started.
        admitted_at: When it was admitted, in seconds; if the queue started later, when it first saw the pod.
        bound_at: When the pod was bound, in seconds of the queue's clock; only while it has a node.
        deleted_at: When it was deleted, in seconds of the queue's clock; None if it is not being deleted.
        charged_queue: Queue whose quota counts the pod, empty for none.
        last_queue: The queue of its namespace that it belonged to last, empty for none.
        waiting_queue: Queue in which the pod waits, empty for none; pods of gangs wait with their gang.
        capacity_freed: Whether the capacity of the admitted pod is offered to others again; its queue stays
            charged until it is requeued.
        earlier_unschedulable: What kube-scheduler had said of the pod when it was requeued.
        ungated: Whether the API server has confirmed that the newest admission removed the gate.
        requeue_asked: Whether a requeue was already asked for after its newest admission.
        template: What the pod has in common with the others of its template, see `EquivalenceBackoff`.
    """

    record: PodRecord
    queue_info: PodQueueInfo
    requirements: PodRequirements | None
    fault: str
    phase: Phase
    waiting_since: float
    wait_start: float
    admitted_at: float
    bound_at: float = 0.0
    deleted_at: float | None = None
    charged_queue: str = ""
    last_queue: str = ""
    waiting_queue: str = ""
    capacity_freed: bool = False
    earlier_unschedulable: str = ""
    ungated: bool = False
    requeue_asked: bool = False
    template: Hashable = None

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def description(self) -> str:
        return f"pod {self.record.full_name}"

    @property
    def kind(self) -> SlotType:
        """The class of the pod: whether it needs data near."""
        return SlotType.LOCAL if self.queue_info.data else SlotType.FREE

    @property
    def job(self) -> str:
        return f"{self.record.namespace}/{self.queue_info.job}" if self.queue_info.job else ""

    @property
    def gang(self) -> str:
        return make_gang_uid(self.record.namespace, self.queue_info.gang)

    @property
    def workload_uid(self) -> str:
        """UID of the workload as which it waits: its gang's or its own."""
        return self.gang or self.uid

    @property
    def can_be_removed(self) -> bool:
        """Whether it belongs to a queue, is not being deleted, and its controller would create it again."""
        return bool(self.charged_queue) and self.queue_info.has_controller and not self.queue_info.ending

    def admit(self, queue: str, now: float) -> None:
        self.phase, self.admitted_at, self.charged_queue, self.waiting_queue = Phase.ADMITTED, now, queue, ""
        self.capacity_freed = self.ungated = self.requeue_asked = False

    def is_unschedulable(self) -> bool:
        """Return True if kube-scheduler has found no node for the pod since its admission.

        The condition from before the requeue stays in the pod until kube-scheduler writes another one, so it
        does not count. If a node is nominated, pods are being evicted there for this one, and it has as long
        as every admission.
        """
        if self.phase is not Phase.ADMITTED or self.queue_info.gated or self.record.nominated:
            return False
        return self.queue_info.unschedulable not in {"", self.earlier_unschedulable}

    def waits_again(self, newest: PodQueueInfo) -> bool:
        """Return True if the newest version of the pod ends its admission.

        It was requeued; or it was bound and shows its gate, because the API server was restored from an older
        state.
        """
        requeued = self.phase is Phase.ADMITTED and newest.requeued and not self.queue_info.gated
        return requeued or (self.phase is Phase.BOUND and newest.gated)

    def is_gated_again(self, now: float) -> bool:
        """Return True if the gate was removed a while ago and the newest version of the pod has it again."""
        again = self.phase is Phase.ADMITTED and self.ungated and self.queue_info.gated
        return again and now - self.admitted_at >= GATED_AGAIN_S

    def update(
        self,
        record: PodRecord,
        queue_info: PodQueueInfo,
        requirements: PodRequirements | None,
        fault: str,
        phase: Phase,
    ) -> None:
        self.record, self.queue_info, self.requirements, self.fault, self.phase = (
            record,
            queue_info,
            requirements,
            fault,
            phase,
        )
        if queue_info.requeued:
            self.earlier_unschedulable = queue_info.unschedulable

    def make_workload(self) -> QueuedWorkload[Needs] | None:
        """Make the workload of a pod that waits by itself; None: it waits with its gang, or not at all."""
        if self.gang or self.requirements is None:
            return None
        return QueuedWorkload(
            self.uid, self.kind, self.waiting_since, self.requirements, self.queue_info.data, self.job
        )


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that are evicted together: all running pods of a gang, or a single pod."""

    pods: tuple[QueuedPod, ...]

    @property
    def priority(self) -> int:
        return max(pod.record.priority for pod in self.pods)


class GangState(Enum):
    """The state of a gang as a whole.

            admitted              all are bound
    WAITING ---------> IN_PART ----------------------> WHOLE
       ^                |   ^                            |
       |                |   +----------------------------+
       |                |   a pod is lost without success
       |  all are gone  v                                |  reclaim evicts it
       +------------ LEAVING <---------------------------+

    A gang that has been IN_PART for `gangWithin` and still has an unbound pod becomes LEAVING. It becomes
    IN_PART or WHOLE again if the API server refuses to remove its pods.
    """

    WAITING = auto()
    """No pod of it is admitted."""
    IN_PART = auto()
    """Some are admitted, and fewer than its size are bound or have succeeded."""
    WHOLE = auto()
    """As many as its size are bound or have succeeded."""
    LEAVING = auto()
    """It is being removed, and some are still there: none joins them."""


@dataclass(slots=True)
class Gang:
    """The pods of one gang.

    Attributes:
        members: UIDs of its pods that exist and have not ended, in the order in which they were first seen.
        size: How many of them start together, at least; 0: not known.
        outside: Pods of its PodGroup that are in no queue, but count for its minCount; `size` is the rest.
        group: Its PodGroup of Kubernetes; None for a gang of annotations or labels. kube-scheduler tries no
            pod of a PodGroup while another one has a scheduling gate, so all gates go together.
        ready_uids: UIDs of its pods that have no fault and can be queued.
        state: What they are as a whole.
        countdown_since: Start of the time `gangWithin` in which it must be bound whole, or be gone, in
            seconds; None: it need not.
        waiting_since: When the first of the pods that are admitted together began to wait.
        template: What it has in common with other gangs, see `EquivalenceBackoff`.
        binding: The gang was admitted, and not all of its pods have been bound since; for
            `EquivalenceBackoff`.
        succeeded_owners: Controllers of the pods that have succeeded and still exist, by the pods' UIDs. Such
            a pod is of this run if its controller makes pods of it, and of an earlier run if not.
        unbound: UIDs of the pods that were admitted together and have not been bound since.
        wait_start: When its first waiting pod began to wait, in seconds, see `QueuedPod.wait_start`.
        fault: Why it is in no queue, in words.
    """

    uid: str
    members: dict[str, None] = field(default_factory=dict)
    size: int = 0
    outside: int = 0
    group: GroupKey | None = None
    ready_uids: set[str] = field(default_factory=set)
    unbound: set[str] = field(default_factory=set)
    state: GangState = GangState.WAITING
    countdown_since: float | None = None
    waiting_since: float = 0.0
    template: Hashable = None
    binding: bool = False
    succeeded: int = 0
    succeeded_owners: dict[str, str] = field(default_factory=dict)
    waiting_queue: str = ""
    wait_start: float = 0.0
    fault: str = ""

    @property
    def description(self) -> str:
        return self.uid

    def make_workload(self, queued_pods: list[QueuedPod]) -> QueuedWorkload[Needs]:
        """Make the workload for those pods of the gang that are ready."""
        ready = (queued_pod for queued_pod in queued_pods if queued_pod.uid in self.ready_uids)
        pods = [
            (queued_pod.uid, queued_pod.requirements)
            for queued_pod in ready
            if queued_pod.requirements is not None
        ]
        pods.sort(key=lambda pod: (pod[1].request.make_hardness_key(0), pod[0]))
        first = min(queued_pods, key=lambda queued_pod: (queued_pod.waiting_since, queued_pod.uid))
        requirements = GangRequirements(self.uid, tuple(pods))
        data = frozenset().union(*(queued_pod.queue_info.data for queued_pod in queued_pods))
        if data:
            # Its job waits for its pods with data, each by itself, and not for the gang, which never ends.
            return QueuedWorkload(self.uid, SlotType.LOCAL, first.waiting_since, requirements, data)
        return QueuedWorkload(self.uid, SlotType.FREE, first.waiting_since, requirements, data, first.job)

    def explain_disagreement(self, pods: list[QueuedPod]) -> str:
        """Say what the pods of the gang do not agree on; empty for nothing."""
        for what, values in (
            (POD_GANG_SIZE, {str(pod.queue_info.gang_size) for pod in pods if self.group is None}),
            (QUEUE_NAME, {pod.queue_info.queue for pod in pods}),
            (POD_JOB, {pod.queue_info.job for pod in pods}),
        ):
            if len(values) > 1:
                named = list_some(sorted(values), VALUES_SHOWN)
                return f"its pods disagree on {what}: {named}; allowed: one"
        return ""


class RequeueWrite(Enum):
    """What is written about an admitted pod whose room is given to others again."""

    NOTHING = auto()
    """Its quota and slot are charged until kube-scheduler binds it, or its turn to be requeued comes."""
    MARK = auto()
    """It gets the annotation that keeps it from being placed, and returns to its queue."""
    REMOVE = auto()
    """It is deleted; its controller creates it again, with its gate."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """An admitted pod whose room is given to others again.

    Attributes:
        is_first: It is the first requeue of this admission.
    """

    queued_pod: QueuedPod
    why: str
    write: RequeueWrite = RequeueWrite.NOTHING
    is_first: bool = True

    @property
    def removes(self) -> bool:
        return self.write is RequeueWrite.REMOVE
