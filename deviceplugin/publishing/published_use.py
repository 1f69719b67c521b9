"""Decides when a pod's use is written to its `gpupack.io/allocation` annotation.

This happens at most once a minute, and only after a change of 256 MiB or an eighth of the share, of 20
percent of a card's compute, or of what limits a container. Compute is written for containers that ask for
some, as the average of the last minute: it rises and falls all the time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from allocator.records import Assignment, MemoryRecord
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.monitoring.container_use import NOT_YET, ContainerUse

EVERY_S: Final = 60.0
"""Shortest time between two writes for the use of one pod: each wakes everybody who watches pods."""

STEP_MIB: Final = 256
STEP_SHARE: Final = 8
"""A change of less than so many MiB, or than this part of the promise, is not published."""

STEP_PERCENT: Final = 20
"""A change of less than so much of the compute is not published."""

Place = tuple[str, str]
"""Container and card."""


@dataclass(slots=True)
class _PublishedPod:
    """What was written of a pod, and what it uses; `compute` is the average percent of the last minute.

    Attributes:
        first_used_at_s: When its use was first looked at.
    """

    published: dict[Place, MemoryRecord] = field(default_factory=dict)
    at_s: float = float("-inf")
    first_used_at_s: float = float("inf")
    current: dict[Place, MemoryRecord] = field(default_factory=dict)
    compute: dict[Place, float] = field(default_factory=dict)
    is_due: bool = False


class PublishedUse:
    """Remembers what was written for each pod, by the UID that the kubelet uses.

    Args:
        holding: what should limit the memory of a pod's container on a card, with the units that it has
            there, and how many cards it has in all. It is written of a container until its use is known.
    """

    def __init__(
        self, holding: Callable[[str, str, str, int, int], Enforcement], clock: Callable[[], float]
    ) -> None:
        self._holding = holding
        self._clock = clock
        self._pods: dict[str, _PublishedPod] = {}
        self._looked_s = float("-inf")

    def apply_use(self, rows: Iterable[ContainerUse]) -> bool:
        """Apply what containers use now; return whether something is worth a write."""
        now_s, before = self._clock(), self._pods
        weight = min(1.0, (now_s - self._looked_s) / EVERY_S)
        self._pods, self._looked_s = {}, now_s
        for row in rows:
            pod = self._pods.get(row.uid)
            if pod is None:
                pod = self._pods[row.uid] = before.get(row.uid, _PublishedPod())
                pod.first_used_at_s = min(pod.first_used_at_s, now_s)
                pod.current, pod.is_due = {}, False
            place = row.container, row.uuid
            compute, held = (row.used_compute, row.compute_enforcement.value) if row.compute else (None, "")
            average = _average(pod.compute, place, compute, weight)
            told = pod.published.get(place, MemoryRecord(""))
            # A container that uses nothing yet gets its limit as it starts, and it is read back soon after.
            starts = row.problem == NOT_YET and (row.used_mib == 0 or now_s - pod.first_used_at_s < EVERY_S)
            memory_held = told.held if starts else row.enforcement.value
            use = pod.current[place] = MemoryRecord(memory_held, row.used_mib, average, held)
            pod.is_due |= now_s - pod.at_s >= EVERY_S and _differs(told, use, row.promised_mib)
        return any(pod.is_due for pod in self._pods.values())

    def list_records(
        self,
        uid: str,
        assignment: Assignment,
        written: Callable[[], Mapping[str, Mapping[str, MemoryRecord]]],
    ) -> dict[str, dict[str, MemoryRecord]]:
        """Say what to write of a pod."""
        pod = self._pods.setdefault(uid, _PublishedPod())
        if not pod.published:
            pod.published = {
                (name, uuid): record for name, cards in written().items() for uuid, record in cards.items()
            }
        if pod.is_due:
            pod.published, pod.at_s, pod.is_due = dict(pod.current), self._clock(), False
        for name, shares in assignment.items():
            for uuid, units in shares:
                record = pod.published.get((name, uuid), MemoryRecord(""))
                if not record.held:
                    held = self._holding(uid, name, uuid, units, len(shares))
                    record = msgspec.structs.replace(record, held=held.value)
                pod.published[name, uuid] = record
        return {
            name: {uuid: pod.published[name, uuid] for uuid, _ in shares}
            for name, shares in assignment.items()
        }


def _average(averages: dict[Place, float], place: Place, percent: int | None, weight: float) -> int | None:
    if percent is None:
        averages.pop(place, None)
        return None
    before = averages.get(place, percent)
    averages[place] = before + (percent - before) * weight
    return round(averages[place])


def _differs(told: MemoryRecord, now: MemoryRecord, promised_mib: int) -> bool:
    return (
        (told.held, told.compute_held) != (now.held, now.compute_held)
        or _is_step(told.used, now.used, max(STEP_MIB, promised_mib // STEP_SHARE))
        or _is_step(told.compute, now.compute, STEP_PERCENT)
    )


def _is_step(told: int | None, now: int | None, step: int) -> bool:
    return told != now if told is None or now is None else abs(told - now) >= step
