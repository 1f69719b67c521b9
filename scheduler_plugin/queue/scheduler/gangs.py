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
        alike: Those that are held back after one like them was refused.
    """

    def __init__(self, entries: Mapping[str, QueuedPod], tenants: Queues) -> None:
        self._entries = entries
        self._tenants = tenants
        self._known: dict[str, Gang] = {}
        self._found: set[str] = set()
        self.alike: EquivalenceBackoff[Gang] = EquivalenceBackoff()

    def get(self, uid: str) -> Gang | None:
        """A gang by its UID, see `QueuedPod.gang`."""
        return self._known.get(uid)

    def enter(self, entry: QueuedPod, *, ready: bool) -> None:
        """Take a pod into its gang, or what is new about it.

        Args:
            entry: The pod.
            ready: It could wait in a queue.
        """
        gang = self._known.setdefault(entry.gang, Gang(entry.gang))
        gang.members.add(entry.uid)
        if ready:
            gang.ready.add(entry.uid)
        else:
            gang.ready.discard(entry.uid)
        if entry.phase is not Phase.GATED and gang.released is None:
            gang.released = entry.released
            if entry.uid not in gang.going:
                self._found.add(gang.uid)
        if entry.phase is Phase.BOUND:
            gang.going.discard(entry.uid)
        self._queue(gang)
        if gang.binding and entry.phase is Phase.BOUND and not gang.going:
            gang.binding = False
            for other in self.alike.bound(gang):
                self._queue(other)

    def move(self, entry: QueuedPod, gang: str) -> None:
        """Take a pod out of its gang when it names another one now, or none."""
        if entry.gang and entry.ticket.gang != gang:
            self.leave(entry)

    def leave(self, entry: QueuedPod) -> None:
        """Take a pod out of its gang."""
        gang = self._known.get(entry.gang)
        if gang is None:
            return
        gang.members.discard(entry.uid)
        gang.ready.discard(entry.uid)
        gang.going.discard(entry.uid)
        self._queue(gang)
        if not gang.going:
            # Its last pod without a node was not bound, but is gone.
            gang.binding = False
        if not gang.members:
            self.alike.leave(gang)
            self._found.discard(gang.uid)
            del self._known[gang.uid]

    def released(self, uid: str, now: float) -> None:
        """A task was released; it may be one of a gang."""
        gang = self._known.get(uid)
        if gang is not None:
            if gang.whole or gang.released is None:
                # The rest of a gang has the time that the gang had.
                gang.released = now
            gang.waits_in = ""
            gang.going |= gang.ready
            gang.ready = {uid for uid in gang.ready if self._entries[uid].phase is Phase.GATED}
            gang.binding = True
            self.alike.released(gang, now)

    def unschedulable(self, entry: QueuedPod, now: float) -> None:
        """kube-scheduler found no node for a released pod: its gang keeps its room, others like it wait."""
        self._refused(self._known[entry.gang], now)

    def try_again(self, now: float) -> None:
        """Let gangs that are held back wait for their release, one of each template."""
        for uid in self._found:
            self._judge(self._known[uid])
        found, self._found = self._found, set()
        for uid in sorted(found):
            self._queue(self._known[uid])
        for gang in self.alike.due(now):
            self._queue(gang)

    def waiting(self) -> Iterator[Gang]:
        """Gangs that wait in a queue."""
        return (gang for gang in self._known.values() if gang.waits_in)

    def half_released(self) -> list[tuple[str, QueuedWorkload[Needs]]]:
        """Gangs of which a part was released, and the rest can be: tenants and tasks, the oldest first."""
        gangs = [gang for gang in self.waiting() if gang.released is not None and not gang.whole]
        tasks = [(gang.waits_in, self._tenants[gang.waits_in].waiting.get(gang.uid)) for gang in gangs]
        return sorted(
            ((tenant, task) for tenant, task in tasks if task is not None), key=lambda each: each[1].age_key
        )

    def half_bound(self, now: float, within_s: float) -> Iterator[tuple[list[QueuedPod], str]]:
        """Pods of gangs that are not bound whole so long after their release, and why they must go."""
        for gang in list(self._known.values()):
            if gang.released is None or now - gang.released < within_s:
                continue
            gang.released = now
            entries = [self._entries[uid] for uid in gang.members]
            late = [entry for entry in entries if entry.phase is Phase.RELEASED]
            behind = [] if gang.whole else [entry for entry in entries if entry.uid in gang.going]
            if gang.broken or not (late or behind):
                # Whoever should have gone could not; so it stays, and what waits joins it.
                gang.broken = False
                self._queue(gang)
                continue
            released = [entry for entry in entries if entry.phase is not Phase.GATED]
            bound = sum(entry.phase is Phase.BOUND for entry in entries)
            size = entries[0].ticket.gang_size
            # A bound pod that nobody makes again would be lost; it keeps its room, and nothing is said of it.
            going = [
                each for each in (late if gang.whole else released) if each.ticket.owned or _has_room(each)
            ]
            gang.broken = any(each.phase is Phase.BOUND for each in going)
            if going:
                self._refused(gang, now)
                why = f"{bound} of {size} pods of its gang are bound {within_s:g} s after its release"
                yield going, why

    def _refused(self, gang: Gang, now: float) -> None:
        if self.alike.refused(gang, now):
            for other in list(self._known.values()):
                if other.waits_in and other.template == gang.template:
                    self._queue(other)

    def _judge(self, gang: Gang) -> None:
        """Tell for a gang that another process released which of its pods were to go with the others.

        Some may wear their gate still, where that process has ended between two writes. What is made again
        for a gang that was bound was created after that.
        """
        entries = [self._entries[uid] for uid in gang.members]
        bound = [entry.ticket.scheduled for entry in entries if entry.phase is Phase.BOUND]
        first = min(bound, default=math.inf)
        gang.going = {
            entry.uid for entry in entries if entry.phase is not Phase.BOUND and entry.ticket.created <= first
        }
        gang.whole = not gang.going

    def _queue(self, gang: Gang) -> None:
        """Let the gang wait as one task when all of its pods could; of one that is whole those made again."""
        entries = [self._entries[uid] for uid in gang.members]
        released = [entry for entry in entries if entry.phase is not Phase.GATED]
        if not released:
            gang.released, gang.whole, gang.broken = None, False, False
            gang.going.clear()
        elif not gang.broken and not gang.going and gang.uid not in self._found:
            gang.whole = gang.whole or all(entry.phase is Phase.BOUND for entry in released)
        gang.fault = gang.disagreement(entries)
        size = entries[0].ticket.gang_size if entries else 0
        if not gang.fault and len(entries) > size:
            gang.fault = f"it has {len(entries)} pods and gpupack.io/gang-size is {size}"
        goes = bool(entries) and not gang.fault
        goes = goes and (len(gang.ready) == size or self._may_join(gang, entries, released))
        task = self._task(gang, entries, released) if goes else None
        if gang.waits_in:
            waiting = self._tenants[gang.waits_in].waiting
            if (
                task is not None
                and waiting.get(gang.uid) == task
                and gang.waits_in == entries[0].ticket.queue
            ):
                return
            waiting.remove(gang.uid)
            self._tenants.forget(gang.waits_in)
            gang.waits_in = ""
        if task is not None:
            gang.waits_in = entries[0].ticket.queue
            gang.began = min(entry.began for entry in entries if entry.uid in gang.ready)
            self._tenants[gang.waits_in].waiting.add(task)

    def _may_join(self, gang: Gang, entries: Sequence[QueuedPod], released: Sequence[QueuedPod]) -> bool:
        """Tell whether those that are ready may join the others, which were released before.

        What is made again joins a gang that was whole one by one. Of others the rest goes together.
        """
        if not gang.ready or gang.broken or gang.uid in self._found:
            return False
        rest = gang.whole or len(gang.ready) + len(released) == len(entries)
        return rest and any(not entry.ticket.ending for entry in released)

    def _task(
        self, gang: Gang, entries: list[QueuedPod], released: Sequence[QueuedPod]
    ) -> QueuedWorkload[Needs] | None:
        """The task that waits for those that are ready; None where others like it were refused."""
        task = gang.task(entries)
        gang.since = task.since
        if released and not gang.whole:
            # Its rest, which asks for less, must not wait for others, nor make others wait that ask for that.
            if gang.template is None:
                self.alike.move(gang, make_gang_template(entries))
            return task
        self.alike.move(gang, make_gang_template([entry for entry in entries if entry.uid in gang.ready]))
        return None if self.alike.holds(gang) else task


def _has_room(entry: QueuedPod) -> bool:
    """Whether a pod has room that it does not use yet."""
    return entry.phase is Phase.RELEASED and not entry.given_back
