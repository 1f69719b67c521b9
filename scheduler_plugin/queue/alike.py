"""Pods that are alike, after kube-scheduler found no node for one of them: the others go one at a time. Pure.

kube-scheduler knows reasons that the queue cannot see: anti-affinity, volumes, the number of pods on a node.
What it refuses for one pod of a template it refuses for the next one too. So they are held back until one is
bound; meanwhile one is tried after a pause that grows with each refusal.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.queue.backoffs import Backoffs
from scheduler_plugin.queue.entries import Entry
from scheduler_plugin.queue.pods import Ticket
from scheduler_plugin.queue.wants import Wants

PAUSE_S: Final = (10.0, 300.0)
"""The shortest and the longest pause before another pod is tried."""


@dataclass(slots=True)
class _Held:
    """Gated pods that are alike, by UID.

    Attributes:
        why: Why they are held back, in words.
        back: Those that are held back.
        tried: Those that may go; the newest of them first of all.
    """

    why: str
    back: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)


def template(record: PodRecord, ticket: Ticket, wants: Wants | None) -> Hashable:
    """What pods of one template have in common; None for pods of gangs, which go together."""
    if wants is None or ticket.gang:
        return None
    return (ticket.queue, record.namespace, ticket.owner, ticket.job, ticket.data, wants)


class Alike:
    """Holds pods back, by their `Entry.template`."""

    def __init__(self) -> None:
        self._pauses: Backoffs[Hashable] = Backoffs(*PAUSE_S)
        self._held: dict[Hashable, _Held] = {}

    def refused(self, entry: Entry, now: float) -> bool:
        """A released pod was refused; tell whether pods like it must be held back from now on."""
        if entry.template is None:
            return False
        held = self._held.get(entry.template)
        if held is None:
            name = f"{entry.record.namespace}/{entry.record.name}"
            why = f"pod {name} asks for the same and could not be bound; one pod at a time is tried again"
            self._held[entry.template] = _Held(why)
        elif entry.uid not in held.tried:
            # Released together with the first one: it tells nothing new.
            return False
        else:
            held.tried.discard(entry.uid)
        self._pauses.refused(entry.template, now)
        return held is None

    def holds(self, entry: Entry) -> bool:
        """Whether a gated pod that could wait for its release is held back."""
        held = self._held.get(entry.template)
        if held is None or entry.uid in held.tried:
            return False
        held.back.add(entry.uid)
        return True

    def released(self, entry: Entry, now: float) -> None:
        """A pod was released: the next one is tried a pause later."""
        if entry.template in self._held:
            self._pauses.again(entry.template, now)

    def bound(self, entry: Entry) -> Collection[str]:
        """A pod was bound: those like it are held back no more; their UIDs."""
        self._pauses.forget(entry.template)
        held = self._held.pop(entry.template, None)
        return held.back if held is not None else ()

    def due(self, now: float, entries: Mapping[str, Entry]) -> list[Entry]:
        """Choose the pods that may be tried now: of each template whose pause is over the oldest."""
        found = []
        for each in self._pauses.due(now):
            held = self._held[each]
            if not held.back and not held.tried:
                self._pauses.forget(each)
                del self._held[each]
                continue
            self._pauses.again(each, now)
            if held.back:
                uid = min(held.back, key=lambda uid: (entries[uid].since, uid))
                held.back.discard(uid)
                held.tried.add(uid)
                found.append(entries[uid])
        return found

    def move(self, entry: Entry, found: Hashable) -> None:
        """Take what a pod has in common with others now."""
        if found != entry.template:
            self.leave(entry)
            entry.template = found

    def leave(self, entry: Entry) -> None:
        """A pod is gone, or is another one's like from now on."""
        held = self._held.get(entry.template)
        if held is not None:
            held.back.discard(entry.uid)
            held.tried.discard(entry.uid)

    def why(self, entry: Entry) -> str:
        """Why a gated pod is held back, in words; empty when it is not."""
        held = self._held.get(entry.template)
        return held.why if held is not None and entry.uid in held.back else ""
