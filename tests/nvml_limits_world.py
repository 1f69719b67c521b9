"""A driver that holds memory limits, on plain data, for tests."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

UNLIMITED = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


@dataclass
class LimitsDriver:
    """Keeps limits by handle and cgroup, in bytes; `error` fails every call, `set_error` those that set.

    `unset` is what a read fails with where nothing is set, None for a read that says so. With the
    backend dmem soft limits are added to the cgroups above (`reserved`), and stay when their own is deleted.
    A read of a cgroup without a limit tells that of the nearest one above with `inherits`. Cgroups without a
    file dmem.max take no limit with `files`. Without `keeps` it takes limits and forgets them.
    """

    hard: dict[tuple[Any, str], int] = field(default_factory=dict)
    soft: dict[tuple[Any, str], int] = field(default_factory=dict)
    used: dict[tuple[Any, str], int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    error: int | None = None
    set_error: int | None = None
    unset: int | None = None
    inherits: bool = False
    files: bool = False
    keeps: bool = True
    reads: int = 0
    sets: int = 0
    paths: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def call(self, name: str, *args: Any) -> Any:
        """Answer a function of NVML; the handle of a card is its UUID."""
        return {
            "DeviceGetHandleByUUID": lambda uuid: uuid,
            "DeviceSetMemoryLimits_v1": self.set,
            "DeviceGetMemoryLimits_v1": self.get,
            "SystemGetDriverVersion": lambda: "580.65.06",
        }[name](*args)

    def standing(self) -> dict[tuple[Any, str], int]:
        """Hard limits of cgroups that are there: one that goes takes its limit along."""
        return {
            key: limit for key, limit in self.hard.items() if Path(key[1]).is_dir() and limit != UNLIMITED
        }

    def set(self, handle: Any, wanted: Any) -> None:
        self.sets += 1
        self._fail()
        if self.set_error is not None:
            raise pynvml.NVMLError(self.set_error)
        path = wanted.nameSpace
        if self.files and not (Path(path) / "dmem.max").exists():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        self.paths.append(path)
        if not self.keeps:
            return
        key = handle, path
        for above in Path(path).parents:
            self.reserved[str(above)] += wanted.softLimit - self.soft.get(key, 0)
        self.hard[key], self.soft[key] = wanted.hardLimit, wanted.softLimit

    def get(self, handle: Any, found: Any) -> None:
        self.reads += 1
        self._fail()
        key = self.told_by(handle, found.nameSpace)
        if self.unset is not None and self.hard.get(key, UNLIMITED) == UNLIMITED:
            raise pynvml.NVMLError(self.unset)
        found.hardLimit, found.softLimit = self.hard.get(key, UNLIMITED), self.soft.get(key, 0)
        found.currentUsed = self.used.get(key, 0)

    def told_by(self, handle: Any, path: str) -> tuple[Any, str]:
        """Find the cgroup whose limit a read of this one tells."""
        places = [path, *map(str, Path(path).parents)] if self.inherits else [path]
        return next(
            ((handle, place) for place in places if (handle, place) in self.standing()), (handle, path)
        )

    def _fail(self) -> None:
        if self.error is not None:
            raise pynvml.NVMLError(self.error)
