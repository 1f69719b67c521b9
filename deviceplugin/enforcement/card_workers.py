"""A worker for each card that calls the driver: a call that hangs delays its own card alone."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from deviceplugin.enforcement.limit_setter import LimitJob, LimitOutcome, apply_limits
from deviceplugin.gpus.api.memory_limits import MemoryLimits
from deviceplugin.host.driver import DriverThread

BATCH: Final = 16
"""Jobs of one turn: a new container waits for no more than these."""


class PerCardWorkers:
    """Sets limits in threads, one for each card; new limits come before repeated checks."""

    def __init__(self, limits: MemoryLimits, on_outcome: Callable[[str, LimitOutcome], None]) -> None:
        self._limits = limits
        self._on_outcome = on_outcome
        self._urgent: dict[str, dict[Path, LimitJob]] = defaultdict(dict)
        self._routine: dict[str, dict[Path, LimitJob]] = defaultdict(dict)
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._threads: dict[str, DriverThread] = {}

    def submit(self, uuid: str, job: LimitJob, *, urgent: bool) -> None:
        """Queue a job; it replaces one for the same cgroup that has not begun."""
        self._routine[uuid].pop(job.cgroup, None)
        if urgent or job.cgroup in self._urgent[uuid]:
            self._urgent[uuid][job.cgroup] = job
        else:
            self._routine[uuid][job.cgroup] = job
        self._begin(uuid)

    def discard(self, uuid: str, cgroup: Path) -> None:
        """Forget a job that has not begun."""
        self._urgent[uuid].pop(cgroup, None)
        self._routine[uuid].pop(cgroup, None)

    async def stop(self) -> None:
        """Begin no further job, and do not wait for a call that hangs."""
        for jobs in (*self._urgent.values(), *self._routine.values()):
            jobs.clear()
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for thread in self._threads.values():
            thread.end()

    def _begin(self, uuid: str) -> None:
        if uuid not in self._busy:
            self._busy[uuid] = asyncio.get_running_loop().create_task(self._work(uuid))

    async def _work(self, uuid: str) -> None:
        thread = self._threads.setdefault(uuid, DriverThread(f"limits of {uuid}"))
        try:
            while waiting := self._urgent[uuid] or self._routine[uuid]:
                jobs = [waiting.pop(cgroup) for cgroup in list(waiting)[:BATCH]]
                for outcome in await thread.call(partial(apply_limits, self._limits, uuid, jobs)):
                    self._on_outcome(uuid, outcome)
        finally:
            del self._busy[uuid]
