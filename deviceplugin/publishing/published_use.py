"""Decides when a pod's memory use is written to its `gpupack.io/allocation` annotation.

This happens at most once a minute, and only after a change of 256 MiB or an eighth of the share.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator.records import Assignment, MemoryRecord
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.monitoring.container_use import ContainerUse

EVERY_S: Final = 60.0
"""Least time between two writes for the use of one pod: each wakes everybody who watches pods."""

STEP_MIB: Final = 256
STEP_SHARE: Final = 8
"""A change of less than so many MiB, or than this part of the promise, is not told."""

Place = tuple[str, str]
"""Container and card."""


@dataclass(slots=True)
class _PublishedPod:
    published: dict[Place, int | None] = field(default_factory=dict)
    at_s: float = float("-inf")
    current: dict[Place, int | None] = field(default_factory=dict)
    is_due: bool = False


class PublishedUse:
    """PublishedUse remembers what was written for each pod, by the UID that the kubelet uses.

    Args:
        holding: how a container is held on a card, by the card's UUID, its units there, and its cards in all.
    """

    def __init__(self, holding: Callable[[str, int, int], Enforcement], clock: Callable[[], float]) -> None:
        self._holding = holding
        self._clock = clock
        self._pods: dict[str, _PublishedPod] = {}

    def apply_use(self, rows: Iterable[ContainerUse]) -> bool:
        """Apply what containers use now; return whether something is worth a write."""
        now_s, before = self._clock(), self._pods
        self._pods = {}
        for row in rows:
            pod = self._pods.get(row.uid)
            if pod is None:
                pod = self._pods[row.uid] = before.get(row.uid, _PublishedPod())
                pod.current, pod.is_due = {}, False
            place = row.container, row.uuid
            pod.current[place] = row.used_mib
            pod.is_due |= now_s - pod.at_s >= EVERY_S and _differs(pod.published.get(place), row)
        return any(pod.is_due for pod in self._pods.values())

    def list_records(
        self,
        uid: str,
        assignment: Assignment,
        written: Callable[[], Mapping[str, Mapping[str, MemoryRecord]]],
    ) -> dict[str, dict[str, MemoryRecord]]:
        """Say what to write of a pod.

        Args:
            uid: UID of the pod, as the kubelet knows it.
            written: what its annotation says already, from a daemon before this one perhaps.
        """
        pod = self._pods.setdefault(uid, _PublishedPod())
        if not pod.published:
            pod.published = {
                (name, uuid): record.used
                for name, cards in written().items()
                for uuid, record in cards.items()
            }
        if pod.is_due:
            pod.published, pod.at_s, pod.is_due = dict(pod.current), self._clock(), False
        return {
            name: {
                uuid: MemoryRecord(
                    self._holding(uuid, units, len(shares)).value, pod.published.get((name, uuid))
                )
                for uuid, units in shares
            }
            for name, shares in assignment.items()
        }


def _differs(told_mib: int | None, row: ContainerUse) -> bool:
    if told_mib is None or row.used_mib is None:
        return told_mib != row.used_mib
    return abs(told_mib - row.used_mib) >= max(STEP_MIB, row.promised_mib // STEP_SHARE)
