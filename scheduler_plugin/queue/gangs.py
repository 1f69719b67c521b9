"""Gangs: pods that are released together or not at all. Pure."""

from collections.abc import Iterator, Mapping

from scheduler_plugin.queue.entries import Entry, Gang, Phase
from scheduler_plugin.queue.tenants import Tenants


class Gangs:
    """All gangs. Each waits as one task in its tenant's queue, when all of its pods could.

    Args:
        entries: All pods by UID, kept up to date by the queue.
        tenants: Whose queues they wait in.
    """

    def __init__(self, entries: Mapping[str, Entry], tenants: Tenants) -> None:
        self._entries = entries
        self._tenants = tenants
        self._known: dict[str, Gang] = {}

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

    def leave(self, entry: Entry) -> None:
        """Take a pod out of its gang."""
        gang = self._known.get(entry.gang)
        if gang is None:
            return
        gang.members.discard(entry.uid)
        gang.ready.discard(entry.uid)
        if not any(self._entries[uid].phase is not Phase.GATED for uid in gang.members):
            gang.released = None
        self._queue(gang)
        if not gang.members:
            del self._known[gang.uid]

    def released(self, uid: str, now: float) -> None:
        """A task was released; it may be one of a gang."""
        gang = self._known.get(uid)
        if gang is not None:
            gang.released, gang.waits_in = now, ""

    def half_bound(self, now: float, within_s: float) -> Iterator[tuple[list[Entry], str]]:
        """Pods of gangs that were released so long ago and are not bound whole, and why they must go."""
        for gang in list(self._known.values()):
            if gang.released is None or now - gang.released < within_s:
                continue
            gang.released = now
            entries = [self._entries[uid] for uid in gang.members]
            bound = sum(entry.phase is Phase.BOUND for entry in entries)
            size = entries[0].ticket.gang_size
            if bound not in {size, len(entries)}:
                yield (
                    entries,
                    f"{bound} of {size} pods of its gang are bound {within_s:g} s after its release",
                )

    def _queue(self, gang: Gang) -> None:
        """Let the gang wait as one task when all of its pods could; a gang that grew by one pod waits too."""
        entries = [self._entries[uid] for uid in gang.members]
        gang.fault = gang.disagreement(entries)
        size = entries[0].ticket.gang_size if entries else 0
        if not gang.fault and len(entries) > size:
            gang.fault = f"it has {len(entries)} pods and gpupack.io/gang-size is {size}"
        complete = entries and not gang.fault and len(gang.ready) == size
        task = gang.task(entries) if complete else None
        if gang.waits_in:
            waiting = self._tenants[gang.waits_in].waiting
            if task is not None and waiting.get(gang.uid) == task:
                return
            waiting.remove(gang.uid)
            gang.waits_in = ""
        if task is not None:
            gang.waits_in = entries[0].ticket.queue
            self._tenants[gang.waits_in].waiting.add(task)
