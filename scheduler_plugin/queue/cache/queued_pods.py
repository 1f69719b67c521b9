"""What the queue knows of one pod, and of one gang. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements

GATED_AGAIN_S: Final = 60.0
"""A released pod that wears the gate so long after that was taken away waits again: no news are so late."""

VALUES_SHOWN: Final = 3
"""Values that a message names of those on which the pods of a gang disagree."""


class Phase(StrEnum):
    """Where a pod is on its way."""

    GATED = "gated"
    """It wears our gate."""
    RELEASED = "released"
    """Its gate is gone, or on its way to be; it has no node."""
    BOUND = "bound"
    """It is on a node."""


@dataclass(slots=True)
class QueuedPod:
    """One pod.

    Attributes:
        record: As the cluster state reads it.
        ticket: What it says to the queue.
        wants: What it needs of a node; None when it asks for what cannot be given.
        fault: Why it cannot be given anything, in words.
        phase: Where it is.
        since: Since when it waits, by the API server's clock: the order in its queue.
        began: When it began to wait, seconds of the queue's clock; below 0 where that was before its process.
        released: When it was released, seconds; when the queue found it released where it began later.
        bound: When it came to its node, seconds of the queue's clock; without a meaning while it is on none.
        holder: Tenant whose quota counts it, empty for none.
        waits_in: Tenant in whose queue it waits, empty for none; pods of gangs wait with their gang.
        given_back: It was released and others have its room again; its quota is its own until it is requeued.
        refused: What kube-scheduler had said of it when it was requeued, see `PodQueueInfo.unschedulable`.
        ungated: The API server has said of its newest release that the gate is gone.
        taken_back: It was told that its newest release is taken back.
        template: What it has in common with the other pods of its template, see `alike`.
    """

    record: PodRecord
    ticket: PodQueueInfo
    wants: PodRequirements | None
    fault: str
    phase: Phase
    since: float
    began: float
    released: float
    bound: float = 0.0
    holder: str = ""
    waits_in: str = ""
    given_back: bool = False
    refused: str = ""
    ungated: bool = False
    taken_back: bool = False
    template: Hashable = None

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.record.uid

    @property
    def called(self) -> str:
        """In words."""
        return f"pod {self.record.namespace}/{self.record.name}"

    @property
    def kind(self) -> SlotType:
        """Bound to data, or not."""
        return SlotType.LOCAL if self.ticket.data else SlotType.FREE

    @property
    def job(self) -> str:
        """Its job, told apart by namespace; empty for none."""
        return f"{self.record.namespace}/{self.ticket.job}" if self.ticket.job else ""

    @property
    def gang(self) -> str:
        """UID of its gang, empty for none."""
        return f"gang {self.record.namespace}/{self.ticket.gang}" if self.ticket.gang else ""

    def release(self, tenant: str, now: float) -> None:
        """It was released, on a tenant's quota."""
        self.phase, self.released, self.holder, self.waits_in = Phase.RELEASED, now, tenant, ""
        self.given_back = self.ungated = self.taken_back = False

    def is_unschedulable(self) -> bool:
        """Tell whether kube-scheduler has found no node for it since its release.

        What it said before the pod was requeued stands in the pod until it says something else. From a node
        that is nominated others are going on the pod's behalf: it has the time that every release has.
        """
        if self.phase is not Phase.RELEASED or self.ticket.gated or self.record.nominated:
            return False
        return self.ticket.unschedulable not in {"", self.refused}

    def is_gated_again(self, now: float) -> bool:
        """Whether the gate was taken away a while ago, and the newest that is known of it shows the gate."""
        again = self.phase is Phase.RELEASED and self.ungated and self.ticket.gated
        return again and now - self.released >= GATED_AGAIN_S

    def update(
        self, record: PodRecord, ticket: PodQueueInfo, wants: PodRequirements | None, fault: str, phase: Phase
    ) -> None:
        """Take its newest version; for arguments see the attributes."""
        self.record, self.ticket, self.wants, self.fault, self.phase = record, ticket, wants, fault, phase
        if ticket.requeued:
            self.refused = ticket.unschedulable

    def task(self, wants: Needs) -> QueuedWorkload[Needs]:
        """The task that waits for it, where it is in no gang."""
        return QueuedWorkload(self.uid, self.kind, self.since, wants, self.ticket.data, self.job)


@dataclass(slots=True)
class Gang:
    """The pods of one gang.

    Attributes:
        uid: Of the gang's task.
        members: UIDs of all that exist and have not ended.
        ready: UIDs of those that could wait in a queue.
        released: When it was released, seconds; None: it was not.
        since: Since when the pods wait that go together, the first of them.
        template: What it has in common with other gangs, see `alike`.
        binding: It was released, and not all of its pods have been bound since; for `alike`.
        whole: After its release all pods were bound, those that were left; what is made again joins them.
        broken: It was taken back, and some of its pods are still bound.
        going: UIDs of those that were released, or were to be with the others, and are not bound.
        waits_in: Tenant in whose queue its task waits, empty for none.
        began: When the first of the pods that wait began to, seconds, see `QueuedPod.began`.
        fault: Why it waits in none, in words.
    """

    uid: str
    members: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    going: set[str] = field(default_factory=set)
    released: float | None = None
    since: float = 0.0
    template: Hashable = None
    binding: bool = False
    whole: bool = False
    broken: bool = False
    waits_in: str = ""
    began: float = 0.0
    fault: str = ""

    @property
    def called(self) -> str:
        """In words."""
        return self.uid

    def task(self, entries: list[QueuedPod]) -> QueuedWorkload[Needs]:
        """The task that waits for all of them that are ready.

        Args:
            entries: Its pods.
        """
        ready = (entry for entry in entries if entry.uid in self.ready)
        pods = [(entry.uid, entry.wants) for entry in ready if entry.wants is not None]
        pods.sort(key=lambda pod: (-pod[1].hardness(0), pod[0]))
        first = min(entries, key=lambda entry: (entry.since, entry.uid))
        wants = GangRequirements(self.uid, tuple(pods))
        data = frozenset().union(*(entry.ticket.data for entry in entries))
        if data:
            # Its job waits for its pods with data, each by itself, and not for the gang, which never ends.
            return QueuedWorkload(self.uid, SlotType.LOCAL, first.since, wants, data)
        return QueuedWorkload(self.uid, SlotType.FREE, first.since, wants, data, first.job)

    def disagreement(self, entries: list[QueuedPod]) -> str:
        """What the pods of the gang do not agree on, in words; empty: nothing."""
        for what, values in (
            ("gang-size", {str(entry.ticket.gang_size) for entry in entries}),
            ("queue-name", {entry.ticket.queue for entry in entries}),
            ("job", {entry.ticket.job for entry in entries}),
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
        name: Of the pod, with its namespace.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """A released pod whose room others have again.

    Attributes:
        entry: The pod.
        why: In words.
        remove: It is in the way where it is: whoever made it makes it again, with its gate.
        requeue: It is to wait in its queue again.
        again: That was told before, and it is there still.
        first: Of its release nothing was taken back before.
    """

    entry: QueuedPod
    why: str
    remove: bool
    requeue: bool = False
    again: bool = False
    first: bool = True
