"""Memory limits of simulated cards: simulated processes that grow beyond them are refused.

A limit is like the driver's: of one cgroup on one card, for every process in the cgroup and below. The limit
ends with the cgroup. A limit below what is used already stops growth only. Where NVIDIA's documents allow
several ways, a profile's `limits` chooses one (`LimitBehaviour`).

Source: NVIDIA's "MPS v3 Memory Partitioning" (docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html),
"Hierarchy and Containers" and "dmem versus misc"; the unit of a limit is in its example of nvidia-smi.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from deviceplugin.errors import GpuError, LimitError
from deviceplugin.gpus.api.memory_limits import (
    DMEM_FILE,
    HELD,
    NO_FILES,
    NOT_ON_INSTANCES,
    LimitReading,
    LimitSupport,
)
from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.nvidia.mig import INSTANCE_PREFIX

REQUEST_ENV: Final = "SIMULATED_GPU_MEMORY_REQUEST"
LIMIT_ENV: Final = "SIMULATED_GPU_MEMORY_LIMIT"

FORBIDDEN: Final = LimitSupport(
    can_limit=False,
    reason="the driver refuses to limit memory: Insufficient Permissions",
    since="the right to set limits",
    is_forbidden=True,
)

_SWEEP: Final = 256
"""Limits up to which those of cgroups that are gone are not searched."""


@dataclass(frozen=True, slots=True)
class _SimulatedLimit:
    """MiB, and which directory it was set for: the same path made again is another cgroup."""

    hard_mib: int
    folder: tuple[int, int]
    soft_mib: int = 0


@dataclass(frozen=True, slots=True)
class LimitBehaviour:
    """A behaviour of limits that the driver's documents allow.

    Attributes:
        unset: what a read returns if no limit is set: `unlimited`, or an error.
        backend: with `dmem` all limits above a process hold it; soft limits are added to the cgroups above,
            and stay there when theirs is deleted. With `misc` the nearest limit holds it alone, and a read
            of a cgroup without one tells that of the nearest limited cgroup above.
        files: with `dmem`: only cgroups that have a file `dmem.max` can have a limit. A read of others tells
            the limit of the nearest one above that has the file.
        step_mib: limits are rounded up to multiples of this.
        set: what setting one says: that it is `allowed`, or `no_permission`, as to a process without the
            right. Reading stays allowed.
    """

    unset: Literal["unlimited", "not_found", "not_supported"] = "unlimited"
    backend: Literal["misc", "dmem"] = "misc"
    files: bool = False
    step_mib: Annotated[int, Meta(ge=1, le=1024)] = 1
    set: Literal["allowed", "no_permission"] = "allowed"


@dataclass(frozen=True, slots=True)
class _LimitedProcess:
    used_mib: int
    cgroup: Path | None


class SimulatedLimits:
    """`MemoryLimits` of simulated cards, and the processes that they hold."""

    def __init__(self, sizes_mib: Mapping[str, int], support: LimitSupport = HELD) -> None:
        self._sizes_mib = sizes_mib
        self._support = support
        self._lock = threading.Lock()
        self._limits: dict[tuple[str, Path], _SimulatedLimit] = {}
        self._processes: dict[str, dict[int, _LimitedProcess]] = defaultdict(dict)
        self._sweep_at = _SWEEP
        self._reserved_mib: dict[tuple[str, Path], int] = defaultdict(int)
        self._proven: dict[str, LimitSupport] = {}
        self.least_mib = 1
        self.behaviour = LimitBehaviour()

    def say(self, support: LimitSupport) -> None:
        """Act as another driver from now on."""
        self._support = support
        self._proven.clear()

    def support(self, uuid: str) -> LimitSupport:
        """Tell what the simulated driver can do; asked once, as long as no limit is refused."""
        if uuid.startswith(INSTANCE_PREFIX):
            return NOT_ON_INSTANCES
        if not self._support.can_limit:
            return self._support
        return self._proven.setdefault(uuid, HELD if self.behaviour.set == "allowed" else FORBIDDEN)

    def set(self, uuid: str, cgroup: Path, hard_mib: int) -> None:
        self._set(uuid, cgroup, hard_mib, 0)

    def clear(self, uuid: str, cgroup: Path) -> None:
        self._check(uuid)
        with self._lock:
            limit = self._limits.pop((uuid, cgroup), None)
            if limit is not None and self.behaviour.backend == "dmem":
                self._reserve(uuid, cgroup, -limit.soft_mib)

    def apply_envs(self, uuid: str, cgroup: Path, envs: Mapping[str, str]) -> None:
        """Set what a container's variables say, as the vendor's toolkit does before the first process.

        Raises:
            LimitError: like `set`.
        """
        self._set(uuid, cgroup, int(envs[LIMIT_ENV]), int(envs[REQUEST_ENV]))

    def reserved_mib(self, uuid: str, cgroup: Path) -> int:
        """Tell what soft limits below a cgroup have added to it."""
        return self._reserved_mib[uuid, cgroup]

    def _set(self, uuid: str, cgroup: Path, hard_mib: int, soft_mib: int) -> None:
        self._check(uuid)
        if self.behaviour.set != "allowed":
            self._proven[uuid] = FORBIDDEN
            raise LimitError("forbidden", f"limit of {hard_mib} MiB on card {uuid}: {FORBIDDEN.reason}")
        if hard_mib < self.least_mib:
            allowed = f"allowed: {self.least_mib} MiB or more"
            raise LimitError("refused", f"limit of {hard_mib} MiB on card {uuid}; {allowed}")
        folder = _folder(cgroup)
        if folder is None:
            raise LimitError("gone", f"limit of {hard_mib} MiB on card {uuid}: cgroup {cgroup} is gone")
        if not self._can_be_set(cgroup):
            raise LimitError("failed", f"limit of {hard_mib} MiB on card {uuid}: cgroup {cgroup} {NO_FILES}")
        hard_mib = -(-hard_mib // self.behaviour.step_mib) * self.behaviour.step_mib
        with self._lock:
            before = self._limit(uuid, cgroup)
            self._limits[uuid, cgroup] = _SimulatedLimit(hard_mib, folder, soft_mib)
            if self.behaviour.backend == "dmem":
                self._reserve(uuid, cgroup, soft_mib - (before.soft_mib if before else 0))
            if len(self._limits) > self._sweep_at:
                self._sweep()

    def _reserve(self, uuid: str, cgroup: Path, more_mib: int) -> None:
        for above in cgroup.parents:
            self._reserved_mib[uuid, above] += more_mib

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        self._check(uuid)
        if _folder(cgroup) is None:
            raise LimitError("gone", f"the limit on card {uuid}: cgroup {cgroup} is gone")
        with self._lock:
            limit = self._limit(uuid, self._told_by(uuid, cgroup))
            if limit is None and self.behaviour.unset != "unlimited":
                raise LimitError(
                    "unset", f"the limit on card {uuid}: {self.behaviour.unset} for cgroup {cgroup}"
                )
            used_mib = self._used_of(uuid, cgroup)
            return (
                LimitReading(limit.hard_mib, used_mib, limit.soft_mib)
                if limit
                else LimitReading(None, used_mib)
            )

    def container_envs(self, hard_mib: int) -> Mapping[str, str]:
        return {REQUEST_ENV: "0", LIMIT_ENV: str(hard_mib)}

    def use(self, uuid: str, pid: int, used_mib: int, cgroup: Path | None = None) -> None:
        """Set the memory that a simulated process uses of a card; 0 ends it.

        Args:
            pid: in the host's pid namespace.
            cgroup: that the process is in, None for one in no limited cgroup.

        Raises:
            GpuError: no such card, or no memory left of a limit or of the card; the process keeps its part.
        """
        if uuid not in self._sizes_mib:
            raise GpuError(f"card {uuid[:256]!r}; allowed: {', '.join(self._sizes_mib)}")
        with self._lock:
            self._bury(uuid)
            processes = self._processes[uuid]
            before = processes.get(pid, _LimitedProcess(0, cgroup))
            growth_mib = used_mib - before.used_mib
            if growth_mib > 0:
                self._refuse(uuid, pid, growth_mib, cgroup)
            if used_mib > 0:
                processes[pid] = _LimitedProcess(used_mib, cgroup)
            else:
                processes.pop(pid, None)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        with self._lock:
            self._bury(uuid)
            found = sorted(self._processes[uuid].items())
        return tuple(GpuProcess(pid, process.used_mib) for pid, process in found)

    def _refuse(self, uuid: str, pid: int, growth_mib: int, cgroup: Path | None) -> None:
        """Raise GpuError unless the card and every limit above the process have room."""
        size_mib = self._sizes_mib[uuid]
        used_mib = sum(process.used_mib for process in self._processes[uuid].values())
        if used_mib + growth_mib > size_mib:
            raise GpuError(
                f"out of memory: process {pid} wants {growth_mib} MiB more on card {uuid} of {size_mib}"
            )
        for place in (cgroup, *cgroup.parents) if cgroup is not None else ():
            limit = self._limit(uuid, place)
            if limit is None:
                continue
            if self._used_of(uuid, place) + growth_mib > limit.hard_mib:
                raise GpuError(
                    f"out of memory: process {pid} wants {growth_mib} MiB more on card {uuid}, the limit of "
                    f"cgroup {place} is {limit.hard_mib} MiB"
                )
            if self.behaviour.backend == "misc":
                return

    def _used_of(self, uuid: str, cgroup: Path) -> int:
        """Add up what counts in a cgroup; with `misc` not what counts in a limited one below."""
        place = self._told_by(uuid, cgroup)
        flat = self.behaviour.backend == "misc" and self._limit(uuid, place) is not None
        return sum(
            process.used_mib
            for process in self._processes[uuid].values()
            if process.cgroup is not None
            and process.cgroup.is_relative_to(place)
            and not (flat and self._told_by(uuid, process.cgroup) != place)
        )

    def _can_be_set(self, cgroup: Path) -> bool:
        return self.behaviour.backend == "misc" or not self.behaviour.files or (cgroup / DMEM_FILE).exists()

    def _told_by(self, uuid: str, cgroup: Path) -> Path:
        """Find the cgroup whose limit a read of this one returns; itself if no cgroup above has one."""
        for place in (cgroup, *cgroup.parents):
            if self.behaviour.backend == "dmem" and self._can_be_set(place):
                return place
            if self.behaviour.backend == "misc" and self._limit(uuid, place) is not None:
                return place
        return cgroup

    def _limit(self, uuid: str, cgroup: Path) -> _SimulatedLimit | None:
        """Find a limit; that of a cgroup that is gone is dropped."""
        limit = self._limits.get((uuid, cgroup))
        if limit is not None and _folder(cgroup) != limit.folder:
            del self._limits[uuid, cgroup]
            return None
        return limit

    def _sweep(self) -> None:
        self._limits = {key: limit for key, limit in self._limits.items() if _folder(key[1]) == limit.folder}
        self._sweep_at = 2 * len(self._limits) + _SWEEP

    def _bury(self, uuid: str) -> None:
        """End the processes on a card whose cgroups are gone."""
        processes = self._processes[uuid]
        for pid, process in list(processes.items()):
            if process.cgroup is not None and not process.cgroup.is_dir():
                del processes[pid]

    def _check(self, uuid: str) -> None:
        support = self.support(uuid)
        if uuid not in self._sizes_mib:
            raise LimitError("failed", f"limit on card {uuid[:256]!r}: there is no such card")
        if not support.can_limit and not support.is_forbidden:
            raise LimitError("unsupported", f"limit on card {uuid}: {support}")


def _folder(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
