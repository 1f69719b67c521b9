"""Backoff of equivalent pods and gangs: after kube-scheduler has refused one, others go one at a time. Pure.

kube-scheduler knows reasons that the queue cannot see: anti-affinity, volumes, the number of pods on a node.
If it refuses one pod of a template, it refuses the next one too. So all of them are held back until one is
bound; meanwhile a single one is tried after a pause that grows with each refusal.
"""

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from kubeapi.backoff import KeyedBackoff
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.queued_pods import QueuedPod
from scheduler_plugin.queue.capacity.requirements import PodRequirements

PAUSE_S: Final = (10.0, 300.0)
"""The shortest and the longest pause before another one is tried."""

REMEMBERED_S: Final = 300.0
"""What was refused and is gone is remembered for so long: whoever made it may make it again."""


class BackoffUnit(Protocol):
    """A unit that is admitted as a whole: `QueuedPod` or `Gang`.

    Attributes:
        template: Key that is equal for equivalent units; None: unknown.
    """

    template: Hashable

    @property
    def uid(self) -> str:
        """Key of the unit among those that are held back."""
        ...

    @property
    def waiting_since(self) -> float: ...

    @property
    def description(self) -> str: ...


U = TypeVar("U", bound=BackoffUnit)


@dataclass(slots=True)
class _RefusedGroup(Generic[U]):
    """The units of a template of which one was refused.

    Attributes:
        first_description: Kind and name of the unit that was refused first.
        last_seen: When a unit of the template was last seen, in seconds.
        refused_uids: UIDs of units that were refused and are still admitted.
    """

    first_uid: str
    first_description: str
    last_seen: float
    held_back: dict[str, U] = field(default_factory=dict)
    tried_uids: set[str] = field(default_factory=set)
    refused_uids: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)


def make_pod_template(
    record: PodRecord, queue_info: PodQueueInfo, requirements: PodRequirements | None
) -> Hashable:
    """Make the template of a pod, equal for equivalent pods; None for pods of gangs, which go together."""
    if requirements is None or queue_info.gang:
        return None
    return (
        queue_info.queue,
        record.namespace,
        queue_info.owner,
        queue_info.job,
        queue_info.data,
        requirements,
    )


def make_gang_template(queued_pods: Collection[QueuedPod]) -> Hashable:
    """Make the template of a gang, equal for gangs of equivalent pods whatever controllers created them.

    Labels and the affinity between pods do not count, though kube-scheduler goes by them: both mostly name
    the Job, and no two gangs would be equivalent. So a gang that is refused for these delays others, of which
    one is tried after each pause, and never stops them: who was refused least is tried first.
    """
    first = next(iter(queued_pods))
    pods = Counter((pod.requirements, pod.queue_info.data) for pod in queued_pods)
    return (
        first.queue_info.queue,
        first.record.namespace,
        first.queue_info.gang_size,
        frozenset(pods.items()),
    )


class EquivalenceBackoff(Generic[U]):
    """Holds units back, by their template."""

    def __init__(self) -> None:
        self._pauses: KeyedBackoff[Hashable] = KeyedBackoff(*PAUSE_S)
        self._groups: dict[Hashable, _RefusedGroup[U]] = {}

    @property
    def refused_templates(self) -> Collection[Hashable]:
        """Templates of which a unit was refused, and none was bound since."""
        return self._groups.keys()

    def record_refusal(self, unit: U, now: float) -> bool:
        """Record that an admitted unit was refused; return True if equivalent units must now be held back.

        Args:
            unit: The unit; calls after the first one change nothing.
        """
        if unit.template is None:
            return False
        group = self._groups.get(unit.template)
        if group is None:
            self._forget_old(now)
            group = self._groups[unit.template] = _RefusedGroup(unit.uid, unit.description, now)
        elif unit.uid not in group.tried_uids:
            # Admitted together with the first one: it tells nothing new.
            group.refused_uids.add(unit.uid)
            group.refusals[unit.uid] = max(1, group.refusals[unit.uid])
            return False
        group.tried_uids.discard(unit.uid)
        group.refused_uids.add(unit.uid)
        group.refusals[unit.uid] += 1
        self._pauses.failed(unit.template, now)
        return self._pauses.count_failures(unit.template) == 1

    def is_held_back(self, unit: U) -> bool:
        group = self._groups.get(unit.template)
        if group is None or unit.uid in group.tried_uids:
            return False
        group.refused_uids.discard(unit.uid)
        group.held_back[unit.uid] = unit
        return True

    def record_admission(self, unit: U, now: float) -> None:
        """Record an admission; the next unit is tried after another pause."""
        if unit.template in self._groups:
            self._pauses.pause_again(unit.template, now)

    def record_binding(self, unit: U) -> Collection[U]:
        """Record that a unit was bound; return its equivalent units, which are no longer held back."""
        self._pauses.forget(unit.template)
        group = self._groups.pop(unit.template, None)
        return group.held_back.values() if group is not None else ()

    def pop_due(self, now: float) -> list[U]:
        """Choose the units to try now: one of each template whose pause is over.

        It is the oldest of those that were refused least often: a unit that can never be bound for a reason
        of its own must not be tried for ever in place of the others.
        """
        due = []
        for each in self._pauses.pop_due(now):
            group = self._groups[each]
            if group.held_back or group.tried_uids or group.refused_uids:
                group.last_seen = now
            elif now - group.last_seen >= REMEMBERED_S:
                self._pauses.forget(each)
                del self._groups[each]
                continue
            self._pauses.pause_again(each, now)
            if group.held_back:
                refusals = group.refusals
                unit = min(
                    group.held_back.values(),
                    key=lambda unit: (refusals[unit.uid], unit.waiting_since, unit.uid),
                )
                del group.held_back[unit.uid]
                group.tried_uids.add(unit.uid)
                due.append(unit)
        return due

    def set_template(self, unit: U, template: Hashable) -> None:
        if template != unit.template:
            self.remove(unit)
            unit.template = template

    def remove(self, unit: U) -> None:
        """Forget a unit that was deleted, or whose template has changed."""
        group = self._groups.get(unit.template)
        if group is not None:
            group.held_back.pop(unit.uid, None)
            group.tried_uids.discard(unit.uid)
            group.refused_uids.discard(unit.uid)
            group.refusals.pop(unit.uid, None)

    def _forget_old(self, now: float) -> None:
        """Forget old templates as `pop_due` does, for a standby, which never calls that."""
        limit = now - REMEMBERED_S - PAUSE_S[1]
        for each, group in list(self._groups.items()):
            if group.last_seen < limit and not (group.held_back or group.tried_uids or group.refused_uids):
                self._pauses.forget(each)
                del self._groups[each]

    def explain_pause(self, unit: U) -> str:
        """Say why a unit is held back; empty when it is not."""
        group = self._groups.get(unit.template)
        if group is None or unit.uid not in group.held_back:
            return ""
        if group.first_uid == unit.uid:
            return "it could not be bound when it was admitted; it is tried again after a pause"
        same = f"{group.first_description} asks for the same and could not be bound"
        return f"{same}; one at a time is tried again"
