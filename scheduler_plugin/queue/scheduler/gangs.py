"""Gangs: pods that are released together or not at all. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence

from scheduler_plugin.queue.cache.queued_pods import Gang, Phase, QueuedPod
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.cache.waiting import QueuedWorkload
from scheduler_plugin.queue.capacity.requirements import Needs
from scheduler_plugin.queue.scheduler.equivalence_backoff import EquivalenceBackoff, make_gang_template


class Gangs:
    """All gangs. Each waits as one task in its tenant's queue, when all of its pods could.

    Args:
        entries: All pods by UID, kept up to date by the queue.
        tenants: Whose queues they wait in.

    Attributes:
        equivalence_backoff: Those that are held back after one like them was refused.
    """

    def __init__(self, entries: Mapping[str, QueuedPod], tenants: Queues) -> None:
        self._queued_pods = entries
        self._queues = tenants
        self._known: dict[str, Gang] = {}
        self._found: set[str] = set()
        self.equivalence_backoff: EquivalenceBackoff[Gang] = EquivalenceBackoff()

    def get(self, uid: str) -> Gang | None:
        """A gang by its UID, see `QueuedPod.gang`."""
        return self._known.get(uid)

    def update_pod(self, entry: QueuedPod, *, ready: bool) -> None:
        """Take a pod into its gang, or what is new about it.

        Args:
            entry: The pod.
            ready: It could wait in a queue.
        """
        gang = self._known.setdefault(entry.gang, Gang(entry.gang))
        gang.members[entry.uid] = None
        if ready:
            gang.ready_uids.add(entry.uid)
        else:
            gang.ready_uids.discard(entry.uid)
        if entry.phase is not Phase.GATED and gang.admitted_at is None:
            gang.admitted_at = entry.admitted_at
            if entry.uid not in gang.unbound:
                self._found.add(gang.uid)
        if entry.phase is Phase.BOUND:
            gang.unbound.discard(entry.uid)
        self._update_waiting(gang)
        if gang.binding and entry.phase is Phase.BOUND and not gang.unbound:
            gang.binding = False
            for other in self.equivalence_backoff.record_binding(gang):
                self._update_waiting(other)

    def move_pod(self, entry: QueuedPod, gang: str) -> None:
        """Take a pod out of its gang when it names another one now, or none."""
        if entry.gang and entry.queue_info.gang != gang:
            self.remove_pod(entry)

    def remove_pod(self, entry: QueuedPod) -> None:
        """Take a pod out of its gang."""
        gang = self._known.get(entry.gang)
        if gang is None:
            return
        gang.members.pop(entry.uid, None)
        gang.ready_uids.discard(entry.uid)
        gang.unbound.discard(entry.uid)
        self._update_waiting(gang)
        if not gang.unbound:
            # Its last pod without a node was not bound, but is gone.
            gang.binding = False
        if not gang.members:
            self.equivalence_backoff.remove(gang)
            self._found.discard(gang.uid)
            del self._known[gang.uid]

    def record_admission(self, uid: str, now: float) -> None:
        """A task was released; it may be one of a gang."""
        gang = self._known.get(uid)
        if gang is not None:
            if gang.is_whole or gang.admitted_at is None:
                # The rest of a gang has the time that the gang had.
                gang.admitted_at = now
            gang.waiting_queue = ""
            gang.unbound |= gang.ready_uids
            gang.ready_uids = {uid for uid in gang.ready_uids if self._queued_pods[uid].phase is Phase.GATED}
            gang.binding = True
            self.equivalence_backoff.record_admission(gang, now)

    def record_unschedulable(self, entry: QueuedPod, now: float) -> None:
        """kube-scheduler found no node for a released pod: its gang keeps its room, others like it wait."""
        self._record_gang_refusal(self._known[entry.gang], now)

    def retry_due(self, now: float) -> None:
        """Let gangs that are held back wait for their release, one of each template."""
        for uid in self._found:
            self._adopt_admission(self._known[uid])
        found, self._found = self._found, set()
        for uid in sorted(found):
            self._update_waiting(self._known[uid])
        for gang in self.equivalence_backoff.pop_due(now):
            self._update_waiting(gang)

    def list_waiting(self) -> Iterator[Gang]:
        """Gangs that wait in a queue."""
        return (gang for gang in self._known.values() if gang.waiting_queue)

    def list_half_admitted(self) -> list[tuple[str, QueuedWorkload[Needs]]]:
        """Gangs of which a part was released, and the rest can be: tenants and tasks, the oldest first."""
        gangs = [gang for gang in self.list_waiting() if gang.admitted_at is not None and not gang.is_whole]
        tasks = [
            (gang.waiting_queue, self._queues[gang.waiting_queue].waiting.get(gang.uid)) for gang in gangs
        ]
        return sorted(
            ((tenant, task) for tenant, task in tasks if task is not None), key=lambda each: each[1].age_key
        )

    def find_half_bound(self, now: float, within_s: float) -> Iterator[tuple[list[QueuedPod], str]]:
        """Pods of gangs that are not bound whole so long after their release, and why they must go."""
        for gang in list(self._known.values()):
            if gang.admitted_at is None or now - gang.admitted_at < within_s:
                continue
            gang.admitted_at = now
            entries = [self._queued_pods[uid] for uid in gang.members]
            late = [entry for entry in entries if entry.phase is Phase.ADMITTED]
            behind = [] if gang.is_whole else [entry for entry in entries if entry.uid in gang.unbound]
            if gang.is_broken or not (late or behind):
                # Whoever should have gone could not; so it stays, and what waits joins it.
                gang.is_broken = False
                self._update_waiting(gang)
                continue
            released = [entry for entry in entries if entry.phase is not Phase.GATED]
            bound = sum(entry.phase is Phase.BOUND for entry in entries)
            size = entries[0].queue_info.gang_size
            # A bound pod that nobody makes again would be lost; it keeps its room, and nothing is said of it.
            going = [
                each
                for each in (late if gang.is_whole else released)
                if each.queue_info.has_controller or _has_room(each)
            ]
            gang.is_broken = any(each.phase is Phase.BOUND for each in going)
            if going:
                self._record_gang_refusal(gang, now)
                why = f"{bound} of {size} pods of its gang are bound {within_s:g} s after its release"
                yield going, why

    def _record_gang_refusal(self, gang: Gang, now: float) -> None:
        if self.equivalence_backoff.record_refusal(gang, now):
            for other in list(self._known.values()):
                if other.waiting_queue and other.template == gang.template:
                    self._update_waiting(other)

    def _adopt_admission(self, gang: Gang) -> None:
        """Tell for a gang that another process released which of its pods were to go with the others.

        Some may wear their gate still, where that process has ended between two writes. What is made again
        for a gang that was bound was created after that.
        """
        entries = [self._queued_pods[uid] for uid in gang.members]
        bound = [entry.queue_info.scheduled for entry in entries if entry.phase is Phase.BOUND]
        first = min(bound, default=math.inf)
        gang.unbound = {
            entry.uid
            for entry in entries
            if entry.phase is not Phase.BOUND and entry.queue_info.created <= first
        }
        gang.is_whole = not gang.unbound

    def _update_waiting(self, gang: Gang) -> None:
        """Let the gang wait as one task when all of its pods could; of one that is whole those made again."""
        entries = [self._queued_pods[uid] for uid in gang.members]
        released = [entry for entry in entries if entry.phase is not Phase.GATED]
        if not released:
            gang.admitted_at, gang.is_whole, gang.is_broken = None, False, False
            gang.unbound.clear()
        elif not gang.is_broken and not gang.unbound and gang.uid not in self._found:
            gang.is_whole = gang.is_whole or all(entry.phase is Phase.BOUND for entry in released)
        gang.fault = gang.explain_disagreement(entries)
        size = entries[0].queue_info.gang_size if entries else 0
        if not gang.fault and len(entries) > size:
            gang.fault = f"it has {len(entries)} pods and gpupack.io/gang-size is {size}"
        goes = bool(entries) and not gang.fault
        goes = goes and (len(gang.ready_uids) == size or self._can_join(gang, entries, released))
        task = self._make_workload(gang, entries, released) if goes else None
        if gang.waiting_queue:
            waiting = self._queues[gang.waiting_queue].waiting
            if (
                task is not None
                and waiting.get(gang.uid) == task
                and gang.waiting_queue == entries[0].queue_info.queue
            ):
                return
            waiting.remove(gang.uid)
            self._queues.forget_if_unused(gang.waiting_queue)
            gang.waiting_queue = ""
        if task is not None:
            gang.waiting_queue = entries[0].queue_info.queue
            gang.wait_start = min(entry.wait_start for entry in entries if entry.uid in gang.ready_uids)
            self._queues[gang.waiting_queue].waiting.add(task)

    def _can_join(self, gang: Gang, entries: Sequence[QueuedPod], released: Sequence[QueuedPod]) -> bool:
        """Tell whether those that are ready may join the others, which were released before.

        What is made again joins a gang that was whole one by one. Of others the rest goes together.
        """
        if not gang.ready_uids or gang.is_broken or gang.uid in self._found:
            return False
        rest = gang.is_whole or len(gang.ready_uids) + len(released) == len(entries)
        return rest and any(not entry.queue_info.ending for entry in released)

    def _make_workload(
        self, gang: Gang, entries: list[QueuedPod], released: Sequence[QueuedPod]
    ) -> QueuedWorkload[Needs] | None:
        """The task that waits for those that are ready; None where others like it were refused."""
        task = gang.make_workload(entries)
        gang.waiting_since = task.waiting_since
        if released and not gang.is_whole:
            # Its rest, which asks for less, must not wait for others, nor make others wait that ask for that.
            if gang.template is None:
                self.equivalence_backoff.set_template(gang, make_gang_template(entries))
            return task
        self.equivalence_backoff.set_template(
            gang, make_gang_template([entry for entry in entries if entry.uid in gang.ready_uids])
        )
        return None if self.equivalence_backoff.is_held_back(gang) else task


def _has_room(entry: QueuedPod) -> bool:
    """Whether a pod has room that it does not use yet."""
    return entry.phase is Phase.ADMITTED and not entry.capacity_freed
