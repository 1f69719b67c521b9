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

A GATED pod waits in its queue, or with its gang, or nowhere where something is wrong with it. An ADMITTED
pod is charged to its queue; `capacity_freed` is set while others have its cards again and the requeue is on
its way. A BOUND pod stays charged until it has ended. A pod that shows its gate again after it was BOUND
is GATED: the API server was put back to an older state.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final

from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements

GATED_AGAIN_S: Final = 60.0
"""An admitted pod that wears the gate so long after that was taken away waits again: no news are so late."""

VALUES_SHOWN: Final = 3
"""Values that a message names of those on which the pods of a gang disagree."""


class Phase(StrEnum):
    """Phase is where a pod is on its way, as the module's drawing shows."""

    GATED = "gated"
    """The pod has our scheduling gate."""
    ADMITTED = "admitted"
    """Its gate is gone, or on its way to be; it has no node."""
    BOUND = "bound"
    """The pod is on a node."""


@dataclass(slots=True)
class QueuedPod:
    """QueuedPod is a pod that waits, is admitted or is bound.

    Attributes:
        record: What the cluster state reads of the pod.
        queue_info: What the pod's labels and annotations say to the queue.
        requirements: What the pod needs of a node; None when it asks for what cannot be given.
        fault: Why the pod cannot be given anything, in words.
        phase: Where the pod is on its way.
        waiting_since: Start of the wait by the API server's clock: the order in its queue.
        wait_start: Start of the wait by the queue's clock, seconds; below 0 if before its process began.
        admitted_at: Time of the admission, seconds; where the queue began later, when it saw the pod first.
        bound_at: Time when the pod came to its node, seconds of the queue's clock; only while it has one.
        charged_queue: Queue whose quota counts the pod, empty for none.
        last_queue: Newest queue of its namespace that it belonged to, empty for none.
        waiting_queue: Queue in which the pod waits, empty for none; pods of gangs wait with their gang.
        capacity_freed: Whether others have the pod's capacity again although it was admitted; the queue is
            charged for the pod until it is requeued.
        earlier_unschedulable: What kube-scheduler had said of the pod when it was requeued.
        ungated: Whether the API server has said of the newest admission that the gate is gone.
        is_requeued: Whether it was told that the pod was requeued after its newest admission.
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
    charged_queue: str = ""
    last_queue: str = ""
    waiting_queue: str = ""
    capacity_freed: bool = False
    earlier_unschedulable: str = ""
    ungated: bool = False
    is_requeued: bool = False
    template: Hashable = None

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def description(self) -> str:
        return f"pod {self.record.namespace}/{self.record.name}"

    @property
    def kind(self) -> SlotType:
        """Bound to data, or not."""
        return SlotType.LOCAL if self.queue_info.data else SlotType.FREE

    @property
    def job(self) -> str:
        """Its job, told apart by namespace; empty for none."""
        return f"{self.record.namespace}/{self.queue_info.job}" if self.queue_info.job else ""

    @property
    def gang(self) -> str:
        """UID of its gang, empty for none."""
        return f"gang {self.record.namespace}/{self.queue_info.gang}" if self.queue_info.gang else ""

    def admit(self, queue: str, now: float) -> None:
        """Record the admission, on a queue's quota."""
        self.phase, self.admitted_at, self.charged_queue, self.waiting_queue = Phase.ADMITTED, now, queue, ""
        self.capacity_freed = self.ungated = self.is_requeued = False

    def is_unschedulable(self) -> bool:
        """Tell whether kube-scheduler has found no node for it since its admission.

        What it said before the pod was requeued stands in the pod until it says something else. From a node
        that is nominated others are going on the pod's behalf: it has the time that every admission has.
        """
        if self.phase is not Phase.ADMITTED or self.queue_info.gated or self.record.nominated:
            return False
        return self.queue_info.unschedulable not in {"", self.earlier_unschedulable}

    def is_gated_again(self, now: float) -> bool:
        """Tell whether the gate was removed a while ago and the newest version of the pod shows it again."""
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
        """Take its newest version; for arguments see the attributes."""
        self.record, self.queue_info, self.requirements, self.fault, self.phase = (
            record,
            queue_info,
            requirements,
            fault,
            phase,
        )
        if queue_info.requeued:
            self.earlier_unschedulable = queue_info.unschedulable

    def make_workload(self, requirements: Needs) -> QueuedWorkload[Needs]:
        """The workload that waits for it, where it is in no gang."""
        return QueuedWorkload(
            self.uid, self.kind, self.waiting_since, requirements, self.queue_info.data, self.job
        )


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that are evicted together: all of a gang that run, or one by itself.

    Attributes:
        pods: They, one at least.
    """

    pods: tuple[QueuedPod, ...]

    @property
    def priority(self) -> int:
        """The largest priority of its pods."""
        return max(pod.record.priority for pod in self.pods)


class GangState(Enum):
    """GangState is what a gang's pods are as a whole.

            admitted              all are bound
    WAITING ---------> IN_PART ----------------------> WHOLE
       ^                |   ^                            |
       |                |   +----------------------------+
       |                |   a pod is lost without success
       |  all are gone  v                                |  reclaim evicts it
       +------------ LEAVING <---------------------------+

    A gang that is IN_PART for `gangWithin`, while one of its pods is there and not bound, is LEAVING. It is
    IN_PART or WHOLE again when the API server refuses to remove its pods.
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
        uid: UID of the gang's workload.
        members: UIDs of all that exist and have not ended, in the order in which they were seen.
        ready_uids: UIDs of those that could wait in a queue.
        state: What they are as a whole.
        behind_since: Since when it is being removed, or some of it is to be bound and is not, seconds; None:
            nothing is.
        waiting_since: Since when the pods wait that go together, the first of them.
        template: What it has in common with other gangs, see `EquivalenceBackoff`.
        binding: The gang was admitted, and not all of its pods have been bound since; for
            `EquivalenceBackoff`.
        succeeded: Pods that have succeeded since its admission.
        unbound: UIDs of those that were to be admitted together, and have not been bound since.
        waiting_queue: Queue in whose queue its workload waits, empty for none.
        wait_start: When the first of the pods that wait began to, seconds, see `QueuedPod.wait_start`.
        fault: Why it waits in none, in words.
    """

    uid: str
    members: dict[str, None] = field(default_factory=dict)
    ready_uids: set[str] = field(default_factory=set)
    unbound: set[str] = field(default_factory=set)
    state: GangState = GangState.WAITING
    behind_since: float | None = None
    waiting_since: float = 0.0
    template: Hashable = None
    binding: bool = False
    succeeded: int = 0
    waiting_queue: str = ""
    wait_start: float = 0.0
    fault: str = ""

    @property
    def description(self) -> str:
        return self.uid

    def make_workload(self, queued_pods: list[QueuedPod]) -> QueuedWorkload[Needs]:
        """The workload that waits for all of them that are ready."""
        ready = (queued_pod for queued_pod in queued_pods if queued_pod.uid in self.ready_uids)
        pods = [
            (queued_pod.uid, queued_pod.requirements)
            for queued_pod in ready
            if queued_pod.requirements is not None
        ]
        pods.sort(key=lambda pod: (-pod[1].compute_hardness(0), pod[0]))
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
            ("gang-size", {str(pod.queue_info.gang_size) for pod in pods}),
            ("queue-name", {pod.queue_info.queue for pod in pods}),
            ("job", {pod.queue_info.job for pod in pods}),
        ):
            if len(values) > 1:
                named = ", ".join(sorted(values)[:VALUES_SHOWN])
                more = " ..." if len(values) > VALUES_SHOWN else ""
                return f"its pods disagree on gpupack.io/{what}: {named}{more}; allowed: one"
        return ""


@dataclass(frozen=True, slots=True)
class FailedStagePod:
    """A pod of a job's first stage that has failed: the job waits for whatever is made in its place.

    Attributes:
        name: Name of the pod, with its namespace.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """An admitted pod whose room others have again.

    Attributes:
        why: In words.
        remove: The pod is in the way where it is: whoever made it makes it again, with its gate.
        requeue: The pod is to wait in its queue again.
        is_repeated: That was told before, and it is there still.
        is_first: The pod was not told before of this admission.
    """

    queued_pod: QueuedPod
    why: str
    remove: bool
    requeue: bool = False
    is_repeated: bool = False
    is_first: bool = True
