"""Which pods the jobs wait for: each pod of a first stage counts for one job of one queue. Pure."""

from scheduler_plugin.queue.tenants import Tenants


class Stages:
    """The pods of first stages that have not succeeded, and where each counts.

    A pod may be given another queue, job or data while it waits or runs. So it is remembered where it counts,
    and it ends there.

    Args:
        tenants: Whose jobs they are.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._of: dict[str, tuple[str, str]] = {}

    def begin(self, uid: str, queue: str, job: str) -> None:
        """Count a pod for a job of a queue, and for no other one."""
        if self._of.get(uid) != (queue, job):
            self.end(uid)
        self._of[uid] = (queue, job)
        self._tenants[queue].waiting.begun(uid, job)

    def end(self, uid: str) -> None:
        """Count a pod no more, if it was counted."""
        known = self._of.pop(uid, None)
        if known is not None:
            queue, job = known
            self._tenants[queue].waiting.finished(uid, job)
            self._tenants.forget(queue)

    def configure(self) -> None:
        """Count all of them again, after the tenants took another configuration."""
        for uid, (queue, job) in self._of.items():
            self._tenants[queue].waiting.begun(uid, job)
