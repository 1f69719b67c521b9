"""Containers that use more of a card than they were given: reported once, counted, and optionally evicted.

Working limits prevent this. Without them a process can take memory that was promised to others.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from deviceplugin.allocation.objects import PodObject
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.monitoring.container_use import ContainerUse
from deviceplugin.node_events import Record, refer_to_pod
from deviceplugin.option_values import DEFAULT_TOLERANCE_MIB
from kubeapi.backoff import KeyedBackoff
from kubeapi.errors import KubeApiError, is_gone

log = structlog.get_logger(__name__)

LOOK_S: Final = 5.0
"""How often the owner of this should check."""

COMPUTE_OVER_USE_S: Final = 60.0
"""How long a container must use too much compute before that is reported: a burst takes nothing from anybody.
"""

COMPUTE_TOLERANCE: Final = 10
"""Points of percent beyond its request that are not reported."""

OVER_USE: Final = "GPUMemoryOverUse"
OVER_USE_ENDED: Final = "GPUMemoryOverUseEnded"
COMPUTE_OVER_USE: Final = "GPUComputeOverUse"
NOT_LIMITED: Final = "GPUMemoryNotLimited"
EVICTED: Final = "GPUMemoryEvicted"

Key = tuple[str, str, str]
"""UID as the kubelet knows it, container, card."""


class OverUseWatcher:
    """Compares what containers use with what they were given.

    Args:
        find: a pod by the UID that the kubelet uses; None while the API server has not shown it.
        tolerance_mib: MiB beyond its promise that a container may use.
        evict_after_s: seconds of over-use, from measurement to measurement, after which its pod is evicted;
            0: never.

    Attributes:
        found: times that a container began to use too much.
        errors: evictions that were refused.
    """

    def __init__(
        self,
        find: Callable[[str], PodObject | None],
        record: Record,
        evict: Callable[[str, str, str], Awaitable[None]],
        *,
        tolerance_mib: int = DEFAULT_TOLERANCE_MIB,
        evict_after_s: float = 0.0,
        clock: Callable[[], float],
    ) -> None:
        self._find = find
        self._record = record
        self._evict = evict
        self._tolerance_mib = tolerance_mib
        self._evict_after_s = evict_after_s
        self._clock = clock
        self._reported: set[Key] = set()
        self._over_s: dict[Key, tuple[float, float]] = {}
        self._compute_over_s: dict[Key, float] = {}
        self._compute_reported: set[Key] = set()
        self._evicted: set[str] = set()
        self._refused: KeyedBackoff[str] = KeyedBackoff(LOOK_S, 300.0, random.uniform)
        self.found = 0
        self.evictions = 0
        self.errors = 0

    def is_over_use(self, row: ContainerUse) -> bool:
        return row.beyond_mib > self._tolerance_mib

    def record_not_limited(self, uid: str, container: str, problem: str) -> None:
        """Write an Event on a pod whose container's limit is not in force."""
        pod = self._find(uid)
        if pod is not None:
            said = f"the memory of container {container} is accounted, not limited: {problem}"
            self._record(refer_to_pod(pod.metadata), "Warning", NOT_LIMITED, said)

    async def check_rows(self, rows: Sequence[ContainerUse]) -> None:
        """Compare use with promises once.

        A container that nobody measures is passed over, and its time of grace begins again. A pod is evicted
        only for use that was measured at both ends of that time.
        """
        present = {(row.uid, row.container, row.uuid) for row in rows}
        for row in rows:
            self._record_use(row)
            self._record_compute(row)
        self._reported &= present
        self._compute_reported &= present
        self._compute_over_s = {key: at_s for key, at_s in self._compute_over_s.items() if key in present}
        self._over_s = {key: times for key, times in self._over_s.items() if key in present}
        uids = {uid for uid, _, _ in present}
        self._evicted &= uids
        self._refused.forget_others(uids)
        self._refused.pop_due(self._clock())
        if self._evict_after_s > 0:
            for uid in {
                key[0]
                for key, (first_s, last_s) in self._over_s.items()
                if last_s - first_s >= self._evict_after_s
            }:
                await self._evict_pod(uid)

    def _record_use(self, row: ContainerUse) -> None:
        key = row.uid, row.container, row.uuid
        if row.measured_s is None or not self.is_over_use(row):
            self._over_s.pop(key, None)
        else:
            self._over_s[key] = self._over_s.get(key, (row.measured_s,))[0], row.measured_s
        before = key in self._reported
        if row.measured_s is None or self.is_over_use(row) == before:
            return
        pod = self._find(row.uid)
        if pod is None:
            # Reported once the API server has shown the pod.
            return
        if before:
            self._reported.remove(key)
            said = f"container {row.container} is back within its {row.promised_mib} MiB of card {row.uuid}"
            log.info("memory over-use ended", pod=row.uid, said=said)
            self._record(refer_to_pod(pod.metadata), "Normal", OVER_USE_ENDED, said)
            return
        self._reported.add(key)
        self.found += 1
        end = f"; evicted if that lasts {self._evict_after_s:g} s" if self._evict_after_s > 0 else ""
        said = (
            f"container {row.container} uses {row.used_mib} MiB of card {row.uuid}, it was given "
            f"{row.promised_mib}; up to {self._tolerance_mib} more are tolerated{end}"
        )
        log.warning("memory over-use", pod=row.uid, said=said)
        self._record(refer_to_pod(pod.metadata), "Warning", OVER_USE, said)

    def _record_compute(self, row: ContainerUse) -> None:
        """Report once a container that uses more compute than it asks for, all the time for a while.

        MPS limits the multiprocessors, not the time: its clients may keep a card busy all the time.
        """
        key = row.uid, row.container, row.uuid
        used = row.used_compute
        if not row.compute or row.compute_enforcement is Enforcement.MPS or key in self._compute_reported:
            return
        if used is None or used <= row.compute + COMPUTE_TOLERANCE:
            self._compute_over_s.pop(key, None)
            return
        first_s = self._compute_over_s.setdefault(key, self._clock())
        pod = self._find(row.uid)
        if pod is None or self._clock() - first_s < COMPUTE_OVER_USE_S:
            return
        self._compute_reported.add(key)
        said = (
            f"container {row.container} kept card {row.uuid} busy for {used} percent of the time, it asked "
            f"for {row.compute} percent of its compute; nothing limits it here"
        )
        log.warning("compute over-use", pod=row.uid, said=said)
        self._record(refer_to_pod(pod.metadata), "Warning", COMPUTE_OVER_USE, said)

    async def _evict_pod(self, uid: str) -> None:
        """Evict a pod, exactly that one; a refusal, as of a PodDisruptionBudget, is tried again later."""
        pod = self._find(uid)
        if pod is None or pod.is_mirror or uid in self._evicted or self._refused.is_paused(uid):
            return
        try:
            await self._evict(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        except KubeApiError as error:
            if is_gone(error):
                self._evicted.add(uid)
                return
            self.errors += 1
            # Not the first alone is a warning: the card's memory stays overrun.
            self._refused.log_failure(
                uid, self._clock(), log, "pod not evicted", error, loud=True, pod=pod.full_name
            )
        else:
            self._evicted.add(uid)
            self.evictions += 1
            log.warning("pod evicted for memory over-use", pod=pod.full_name, uid=uid)
            said = f"used more GPU memory than it was given for {self._evict_after_s:g} s"
            self._record(refer_to_pod(pod.metadata), "Warning", EVICTED, said)
