"""What the queue knows of one pod, and of one gang. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.queue.pods import Ticket
from scheduler_plugin.queue.waiting import Kind
from scheduler_plugin.queue.wants import Wants


class Phase(StrEnum):
    """Where a pod is on its way."""

    REFUSED = "refused"
    """Something is wrong with it: it waits until it is changed."""
    WAITING = "waiting"
    """It wears the gate and is in its tenant's queue, or its gang is not complete, or others hold it."""
    RELEASED = "released"
    """Its gate is going or gone; kube-scheduler has not bound it."""
    BOUND = "bound"
    """It is on a node."""


@dataclass(slots=True)
class Entry:
    """One pod.

    Attributes:
        record: As the cluster state reads it.
        ticket: What it says to the queue.
        wants: What it needs of a node, None when it cannot be given anything.
        phase: Where it is.
        seen: When the queue saw it first, seconds.
        released: When it was released, seconds; when the queue found it released where it began later.
        fault: Why it is refused, in words.
        held: Its tenant's quota counts it.
    """

    record: PodRecord
    ticket: Ticket
    wants: Wants | None
    phase: Phase
    seen: float
    released: float = 0.0
    fault: str = ""
    held: bool = False

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.record.uid

    @property
    def tenant(self) -> str:
        """Name of its queue."""
        return self.ticket.queue

    @property
    def kind(self) -> Kind:
        """Bound to data, or not."""
        return Kind.LOCAL if self.ticket.data else Kind.FREE

    @property
    def job(self) -> str:
        """Its job, told apart by namespace; empty for none."""
        return f"{self.record.namespace}/{self.ticket.job}" if self.ticket.job else ""

    @property
    def gang(self) -> str:
        """UID of its gang, empty for none."""
        return f"gang {self.record.namespace}/{self.ticket.gang}" if self.ticket.gang else ""


@dataclass(slots=True)
class Gang:
    """The pods of one gang, by where they are.

    Attributes:
        members: UIDs of all that exist and have not ended.
        released: When its first pod was released, seconds; 0: none is.
        queued: Its task waits in the queue of this tenant, empty when it does not.
        fault: Why it is refused, in words.
    """

    members: set[str] = field(default_factory=set)
    released: float = 0.0
    queued: str = ""
    fault: str = ""
