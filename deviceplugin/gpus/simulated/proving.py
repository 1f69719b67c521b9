"""Answers `gpupack node --check --prove` for simulated cards, as their profile says the driver behaves."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Final

from deviceplugin.errors import GpuError, LimitError
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.api.provable import FAULTS, MIG_CHANGES
from deviceplugin.gpus.simulated.source import SimulatedGpus

FIRST_PID: Final = 1 << 22
"""Simulated processes have numbers from here on, which the kernel gives to none."""

_PIDS: Final = count(FIRST_PID)


class SimulatedProvable:
    """`Provable` by a simulated driver."""

    def __init__(self, source: SimulatedGpus) -> None:
        self._source = source

    def memory_info(self, uuid: str) -> MemoryInfo:
        return self._source.memory_info(uuid)

    def event_kinds(self, uuid: str) -> Mapping[str, str]:
        del uuid
        return {FAULTS: "", MIG_CHANGES: ""}

    def mig_mode(self, uuid: str) -> tuple[bool, bool] | None:
        has_mig_mode = self._source.instance_profiles(uuid) is not None
        return has_mig_mode, has_mig_mode

    def create_instance(self, uuid: str) -> Callable[[], None]:
        before = self._source.instance_profiles(uuid)
        if before is None:
            raise GpuError(f"no GPU instance can be created on card {uuid}: it is not in MIG mode")
        self._source.partition(uuid, [*before, self._source.smallest_profile(uuid)])
        return lambda: self._source.partition(uuid, before)

    def memory_user(self, uuid: str, cgroup: Path) -> "SimulatedMemoryUser":
        return SimulatedMemoryUser(self._source, uuid, cgroup)


class SimulatedMemoryUser:
    """A `MemoryUser` on a simulated card."""

    def __init__(self, source: SimulatedGpus, uuid: str, cgroup: Path) -> None:
        self._source = source
        self._uuid = uuid
        self._cgroup = cgroup
        self._used_mib = 0
        self.pid = next(_PIDS)

    def start(self) -> int:
        """Return the card's size, or the limit; see `MemoryUser.start`."""
        card = next(card for card in self._source.cards() if card.uuid == self._uuid)
        try:
            limit_mib = self._source.limits.read(self._uuid, self._cgroup).hard_mib
        except LimitError:
            limit_mib = None
        return card.schedulable_mib if limit_mib is None else min(limit_mib, card.schedulable_mib)

    def allocate(self, mib: int) -> bool:
        try:
            self._source.limits.use(self._uuid, self.pid, self._used_mib + mib, self._cgroup)
        except GpuError:
            return False
        self._used_mib += mib
        return True

    def end(self) -> None:
        self._source.limits.use(self._uuid, self.pid, 0, self._cgroup)
        self._used_mib = 0
