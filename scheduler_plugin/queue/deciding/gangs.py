"""Gangs: pods that are released together or not at all. Pure."""

from collections.abc import Iterator, Mapping

from scheduler_plugin.queue.deciding.alike import Alike, gang_template
from scheduler_plugin.queue.entering.entries import Entry, Gang, Phase
from scheduler_plugin.queue.sharing.tenants import Tenants


class Gangs:
    """All gangs. Each waits as one task in its tenant's queue, when all of its pods could.

    Args:
        entries: All pods by UID, kept up to date by the queue.
        tenants: Whose queues they wait in.

    Attributes:
        alike: Those that are held back after one like them was refused.
    """

    def __init__(self, entries: Mapping[str, Entry], tenants: Tenants) -> None:
        self._entries = entries
        self._tenants = tenants
        self._known: dict[str, Gang] = {}
        self.alike: Alike[Gang] = Alike()

    def get(self, uid: str) -> Gang | None:
        """A gang by its UID, see `Entry.gang`."""
        return self._known.get(uid)

    def enter(self, entry: Entry, *, ready: bool) -> None:
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
        self._queue(gang)
        if gang.binding and entry.phase is Phase.BOUND and not self._waits_for_node(gang):
            gang.binding = False
            for other in self.alike.bound(gang):
                self._queue(other)

    def move(self, entry: Entry, gang: str) -> None:
        """Take a pod out of its gang when it names another one now, or none."""
        if entry.gang and entry.ticket.gang != gang:
            self.leave(entry)

    def leave(self, entry: Entry) -> None:
        """Take a pod out of its gang."""
        gang = self._known.get(entry.gang)
        if gang is None:
            return
        gang.members.discard(entry.uid)
        gang.ready.discard(entry.uid)
        self._queue(gang)
        if not self._waits_for_node(gang):
            # Its last pod without a node was not bound, but is gone.
            gang.binding = False
        if not gang.members:
            self.alike.leave(gang)
            del self._known[gang.uid]

    def released(self, uid: str, now: float) -> None:
        """A task was released; it may be one of a gang."""
        gang = self._known.get(uid)
        if gang is not None:
            gang.released, gang.waits_in = now, ""
            gang.ready = {uid for uid in gang.ready if self._entries[uid].phase is Phase.GATED}
            gang.binding = True
            self.alike.released(gang, now)

    def unschedulable(self, entry: Entry, now: float) -> None:
        """kube-scheduler found no node for a released pod: its gang keeps its room, others like it wait."""
        self._refused(self._known[entry.gang], now)

    def try_again(self, now: float) -> None:
        """Let gangs that are held back wait for their release, one of each template."""
        for gang in self.alike.due(now):
            self._queue(gang)

    def waiting(self) -> Iterator[Gang]:
        """Gangs that wait in a queue."""
        return (gang for gang in self._known.values() if gang.waits_in)

    def half_bound(self, now: float, within_s: float) -> Iterator[tuple[list[Entry], str]]:
        """Pods of gangs that wait for a node so long after their release, and why they must go."""
        for gang in list(self._known.values()):
            if gang.released is None or now - gang.released < within_s:
                continue
            gang.released = now
            entries = [self._entries[uid] for uid in gang.members]
            late = [entry for entry in entries if entry.phase is Phase.RELEASED]
            if not late:
                # Whoever should have gone could not; so it stays, and what is made again joins it.
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

    def _waits_for_node(self, gang: Gang) -> bool:
        """Whether some of its pods are released and not bound."""
        return any(self._entries[uid].phase is Phase.RELEASED for uid in gang.members)

    def _queue(self, gang: Gang) -> None:
        """Let the gang wait as one task when all of its pods could; of one that is whole those made again."""
        entries = [self._entries[uid] for uid in gang.members]
        released = [entry for entry in entries if entry.phase is not Phase.GATED]
        if not released:
            gang.released, gang.whole, gang.broken = None, False, False
        elif not gang.broken and all(entry.phase is Phase.BOUND for entry in released):
            gang.whole = True
        gang.fault = gang.disagreement(entries)
        size = entries[0].ticket.gang_size if entries else 0
        if not gang.fault and len(entries) > size:
            gang.fault = f"it has {len(entries)} pods and gpupack.io/gang-size is {size}"
        joins = gang.whole and gang.ready and any(not entry.ticket.ending for entry in released)
        complete = entries and not gang.fault and (len(gang.ready) == size or joins)
        task = gang.task(entries) if complete else None
        if task is not None:
            gang.since = task.since
            self.alike.move(gang, gang_template([entry for entry in entries if entry.uid in gang.ready]))
            if self.alike.holds(gang):
                task = None
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


def _has_room(entry: Entry) -> bool:
    """Whether a pod has room that it does not use yet."""
    return entry.phase is Phase.RELEASED and not entry.given_back
