"""Pods or gangs that are alike, after kube-scheduler found no node for one: others go one at a time. Pure.

kube-scheduler knows reasons that the queue cannot see: anti-affinity, volumes, the number of pods on a node.
What it refuses for one pod of a template it refuses for the next one too. So they are held back until one is
bound; meanwhile one is tried after a pause that grows with each refusal.
"""

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.queued_pods import QueuedPod
from scheduler_plugin.queue.capacity.requirements import PodRequirements
from scheduler_plugin.queue.scheduler.backoff import KeyedBackoff

PAUSE_S: Final = (10.0, 300.0)
"""The shortest and the longest pause before another one is tried."""

REMEMBERED_S: Final = 300.0
"""What was refused and is gone is remembered for so long: whoever made it may make it again."""


class BackoffUnit(Protocol):
    """What is released as a whole: `entries.Entry`, `entries.Gang`.

    Attributes:
        template: What it has in common with those like it; None: nothing is known of that.
    """

    template: Hashable

    @property
    def uid(self) -> str:
        """It, among those that are held back."""
        ...

    @property
    def since(self) -> float:
        """Since when it waits."""
        ...

    @property
    def called(self) -> str:
        """What it is, and its name."""
        ...


U = TypeVar("U", bound=BackoffUnit)


@dataclass(slots=True)
class _HeldGroup(Generic[U]):
    """Those that are alike, by UID.

    Attributes:
        first: UID of the one that was refused first.
        called: What that is called.
        seen: When there was one of them last, seconds.
        back: Those that are held back.
        tried: UIDs of those that may go.
        lost: UIDs of those that were refused, and are released still.
        refusals: How often each was refused, by UID.
    """

    first: str
    called: str
    seen: float
    back: dict[str, U] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)


def make_pod_template(record: PodRecord, ticket: PodQueueInfo, wants: PodRequirements | None) -> Hashable:
    """What pods of one template have in common; None for pods of gangs, which go together."""
    if wants is None or ticket.gang:
        return None
    return (ticket.queue, record.namespace, ticket.owner, ticket.job, ticket.data, wants)


def make_gang_template(entries: Collection[QueuedPod]) -> Hashable:
    """What gangs have in common that ask for the same pods, whoever made them: each has its own controller.

    Args:
        entries: Pods of the gang that go together, at least one.
    """
    first = next(iter(entries))
    pods = Counter((entry.wants, entry.ticket.data) for entry in entries)
    return (first.ticket.queue, first.record.namespace, first.ticket.gang_size, frozenset(pods.items()))


class EquivalenceBackoff(Generic[U]):
    """Holds them back, by their template."""

    def __init__(self) -> None:
        self._pauses: KeyedBackoff[Hashable] = KeyedBackoff(*PAUSE_S)
        self._held: dict[Hashable, _HeldGroup[U]] = {}

    @property
    def templates(self) -> Collection[Hashable]:
        """Those of which one was refused, and none was bound since."""
        return self._held.keys()

    def refused(self, unit: U, now: float) -> bool:
        """One that was released is refused; tell whether those like it must be held back from now on.

        Args:
            unit: It; told again and again is as good as told once.
            now: Seconds.
        """
        if unit.template is None:
            return False
        held = self._held.get(unit.template)
        if held is None:
            self._forget_old(now)
            held = self._held[unit.template] = _HeldGroup(unit.uid, unit.called, now)
        elif unit.uid not in held.tried:
            # Released together with the first one: it tells nothing new.
            held.lost.add(unit.uid)
            held.refusals[unit.uid] = max(1, held.refusals[unit.uid])
            return False
        held.tried.discard(unit.uid)
        held.lost.add(unit.uid)
        held.refusals[unit.uid] += 1
        self._pauses.refused(unit.template, now)
        return self._pauses.refusals(unit.template) == 1

    def holds(self, unit: U) -> bool:
        """Whether one that could wait for its release is held back."""
        held = self._held.get(unit.template)
        if held is None or unit.uid in held.tried:
            return False
        held.lost.discard(unit.uid)
        held.back[unit.uid] = unit
        return True

    def released(self, unit: U, now: float) -> None:
        """One was released: the next one is tried a pause later."""
        if unit.template in self._held:
            self._pauses.again(unit.template, now)

    def bound(self, unit: U) -> Collection[U]:
        """One was bound: those like it are held back no more; they."""
        self._pauses.forget(unit.template)
        held = self._held.pop(unit.template, None)
        return held.back.values() if held is not None else ()

    def due(self, now: float) -> list[U]:
        """Choose those that may be tried now: of each template whose pause is over one.

        That is the oldest of those that were refused least often. One that can never be bound, for a reason
        of its own, must not be tried for ever in place of the others.
        """
        found = []
        for each in self._pauses.due(now):
            held = self._held[each]
            if held.back or held.tried or held.lost:
                held.seen = now
            elif now - held.seen >= REMEMBERED_S:
                self._pauses.forget(each)
                del self._held[each]
                continue
            self._pauses.again(each, now)
            if held.back:
                refusals = held.refusals
                unit = min(held.back.values(), key=lambda unit: (refusals[unit.uid], unit.since, unit.uid))
                del held.back[unit.uid]
                held.tried.add(unit.uid)
                found.append(unit)
        return found

    def move(self, unit: U, found: Hashable) -> None:
        """Take what one has in common with others now."""
        if found != unit.template:
            self.leave(unit)
            unit.template = found

    def leave(self, unit: U) -> None:
        """One is gone, or is like others from now on."""
        held = self._held.get(unit.template)
        if held is not None:
            held.back.pop(unit.uid, None)
            held.tried.discard(unit.uid)
            held.lost.discard(unit.uid)
            held.refusals.pop(unit.uid, None)

    def _forget_old(self, now: float) -> None:
        """Forget templates that `due` would have forgotten: who stands by is never asked who may be tried."""
        limit = now - REMEMBERED_S - PAUSE_S[1]
        for each, held in list(self._held.items()):
            if held.seen < limit and not (held.back or held.tried or held.lost):
                self._pauses.forget(each)
                del self._held[each]

    def why(self, unit: U) -> str:
        """Why one is held back, in words; empty when it is not."""
        held = self._held.get(unit.template)
        if held is None or unit.uid not in held.back:
            return ""
        if held.first == unit.uid:
            return "it could not be bound when it was released; it is tried again after a pause"
        return f"{held.called} asks for the same and could not be bound; one at a time is tried again"
