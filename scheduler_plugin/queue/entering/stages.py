"""Which pods the jobs wait for: each pod of a first stage counts for one job of one queue. Pure."""

from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.queue.entering.entries import Failed
from scheduler_plugin.queue.entering.pods import Ticket
from scheduler_plugin.queue.sharing.tenants import Tenants


class Stages:
    """The pods of first stages that have not succeeded, and where each counts.

    A pod may be given another queue, job or data while it waits or runs. So it is remembered where it counts,
    and it ends there.

    Args:
        tenants: Whose jobs they are.

    Attributes:
        failed: Failed pods that a job waits for, by UID.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self.failed: dict[str, Failed] = {}
        self._of: dict[str, tuple[str, str]] = {}

    def begin(self, uid: str, queue: str, job: str) -> None:
        """Count a pod for a job of a queue, and for no other one."""
        known = self._of.get(uid)
        if known is not None and known != (queue, job):
            self._count_no_more(uid)
        self._of[uid] = (queue, job)
        self._tenants[queue].waiting.begun(uid, job)

    def fail(self, record: PodRecord, ticket: Ticket) -> None:
        """A pod has failed: if it was of a first stage, its job waits for whatever is made in its place."""
        if ticket.data and ticket.job:
            self.failed[record.uid] = Failed(f"{record.namespace}/{record.name}")
            self.begin(record.uid, ticket.queue, f"{record.namespace}/{ticket.job}")

    def end(self, uid: str) -> None:
        """Count a pod no more, if it was counted."""
        self.failed.pop(uid, None)
        self._count_no_more(uid)

    def configure(self) -> None:
        """Count all of them again, after the tenants took another configuration."""
        for uid, (queue, job) in self._of.items():
            self._tenants[queue].waiting.begun(uid, job)

    def _count_no_more(self, uid: str) -> None:
        known = self._of.pop(uid, None)
        if known is not None:
            queue, job = known
            self._tenants[queue].waiting.finished(uid, job)
            self._tenants.forget(queue)
