"""How long it takes from a container's cgroup to its memory limit in force: `python -m benchmarks.limits`.

The node's enforcer with simulated limits and real inotify. Another process makes pods and their containers'
cgroups, as a container runtime does. Where it may, it uses the kernel's own cgroup file system, else plain
folders. Each pod is written into the checkpoint before, as the kubelet writes it. The node has other pods
already. A limit counts from when the driver has it. The time that NVIDIA's driver itself takes is not in it.
The last line is JSON.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from allocator.cards import Card
from allocator.ids import device_id
from allocator.ledger import CheckpointEntry, Ledger
from benchmarks.machine import machine, make_parser, percentile, spread
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.enforcement.enforcer import Enforcer
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.garbage_collection import freeze_garbage_collector
from deviceplugin.gpus.simulated.memory_limits import SimulatedLimits
from deviceplugin.host.inotify import Inotify

RESOURCE: Final = "gpupack.io/gpu-memory-gib"
MIB_PER_GIB: Final = 1024
CARDS: Final = 8

RUNTIME: Final = """
import os, sys, time
for line in sys.stdin:
    path = line.rstrip()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # A sandbox with its network comes first, which takes longer than this.
    time.sleep(0.05)
    # The file system's own clock is too coarse: all processes share this one.
    began = time.monotonic()
    os.mkdir(path)
    print(began, flush=True)
"""


class Driver(SimulatedLimits):
    """Notes when each limit was in force."""

    def __init__(self, sizes_mib: dict[str, int]) -> None:
        super().__init__(sizes_mib)
        self.times_s: dict[Path, float] = {}
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def has(self, count: int) -> None:
        """Wait for so many limits."""
        while len(self.times_s) < count:
            self._more.clear()
            await self._more.wait()

    def set(self, uuid: str, cgroup: Path, hard_mib: int) -> None:
        """Set it, and note the time."""
        super().set(uuid, cgroup, hard_mib)
        self.times_s[cgroup] = time.monotonic()
        self._loop.call_soon_threadsafe(self._more.set)


@dataclass
class WrittenCheckpoint:
    """The kubelet's checkpoint; `entries` is replaced at each write."""

    entries: tuple[CheckpointEntry, ...] = ()

    def read(self) -> "WrittenCheckpoint":
        """Return a new object for each version."""
        return self

    def with_pod(self, number: int, cards: Sequence[Card]) -> "WrittenCheckpoint":
        """Add a pod that got one unit."""
        card = cards[number % len(cards)]
        ids = frozenset({device_id(card.uuid, number // len(cards))})
        return WrittenCheckpoint((*self.entries, CheckpointEntry(uid(number), "main", RESOURCE, ids)))


class Written:
    """What the kubelet wrote last."""

    def __init__(self) -> None:
        self.checkpoint = WrittenCheckpoint()

    def read(self) -> WrittenCheckpoint:
        """Return it."""
        return self.checkpoint


def uid(number: int) -> str:
    """UID of a pod."""
    return str(UUID(int=number + 1))


def container(root: Path, number: int) -> Path:
    """The cgroup of a pod's only container."""
    return root / "kubepods" / "burstable" / f"pod{uid(number)}" / f"{number:064x}"


@contextmanager
def cgroup_root() -> Iterator[tuple[Path, str]]:
    """Find a place for cgroups, and say what it is."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/memory")):
        root = mount / f"gpupack-benchmark-{os.getpid()}"
        if not (mount / "cgroup.procs").exists():
            continue
        try:
            (root / "kubepods" / "burstable").mkdir(parents=True)
        except OSError:
            continue
        try:
            yield root, f"the kernel's cgroups at {mount}"
        finally:
            for folder, _, _ in os.walk(root, topdown=False):
                Path(folder).rmdir()
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "kubepods" / "burstable").mkdir(parents=True)
        yield root, "plain folders"


async def make(paths: AsyncIterator[Path]) -> dict[Path, float]:
    """Have another process make folders one after the other; returns when each was made."""
    began_s: dict[Path, float] = {}
    runtime = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNTIME, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert runtime.stdin is not None
    assert runtime.stdout is not None
    async for path in paths:
        runtime.stdin.write(f"{path}\n".encode())
        began_s[path] = float(await runtime.stdout.readline())
        await asyncio.sleep(0.02)
    runtime.stdin.close()
    await runtime.wait()
    return began_s


async def measure_bare(root: Path, timed: int) -> list[float]:
    """Return milliseconds from each folder to a watcher that only notes it: the machine's share."""
    place = root / "bare"
    place.mkdir()
    seen_s: dict[Path, float] = {}

    def note(folder: Path, name: str) -> None:
        seen_s.setdefault(folder / name, time.monotonic())

    async def names() -> AsyncIterator[Path]:
        for number in range(timed):
            yield place / str(number)

    inotify = Inotify(note, lambda: None)
    inotify.open()
    inotify.watch(place)
    began_s = await make(names())
    inotify.close()
    return [(seen_s[path] - began) * 1000 for path, began in began_s.items()]


async def measure(root: Path, others: int, timed: int) -> list[float]:
    """Return milliseconds from each timed cgroup to its limit."""
    size = -(-(others + timed) // CARDS)
    cards = [Card(i, f"GPU-{UUID(int=i)}", "Simulated", size, 0) for i in range(CARDS)]
    driver = Driver({card.uuid: size * MIB_PER_GIB for card in cards})
    written = Written()
    account = LedgerService(Ledger(cards), written.read, RESOURCE)
    enforcer = Enforcer(
        account,
        supports := LimitCapability(account, driver),
        GrantedMemory(account, MIB_PER_GIB),
        lambda _: {},
        cgroup_root=root,
        container_logs=root / "none",
    )
    for number in range(others):
        container(root, number).mkdir(parents=True)
        written.checkpoint = written.checkpoint.with_pod(number, cards)
    account.read_checkpoint()
    await supports.start()
    freeze_garbage_collector()
    running = asyncio.create_task(enforcer.run())
    await driver.has(others)

    async def written_by_kubelet() -> AsyncIterator[Path]:
        for number in range(others, others + timed):
            written.checkpoint = written.checkpoint.with_pod(number, cards)
            # The daemon reads the checkpoint when it is written, before the kubelet makes the pod's cgroup.
            account.read_checkpoint()
            yield container(root, number)

    began_s = await make(written_by_kubelet())
    await driver.has(others + timed)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return [(driver.times_s[path] - began) * 1000 for path, began in began_s.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    numbers = {"pods": (1000, "pods that the node has already"), "timed": (300, "containers that are timed")}
    options = make_parser("limits", __doc__, **numbers).parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with cgroup_root() as (root, where):
        print(machine())
        bare = asyncio.run(measure_bare(root, options.timed))
        found = asyncio.run(measure(root, options.pods, options.timed))
    print(f"cgroup made to a watcher that does nothing at all: {spread(bare)} ms")
    p50, p99, worst = percentile(found, 50), percentile(found, 99), max(found)
    print(f"{len(found)} containers on a node with {options.pods} other pods; {where}")
    print(f"cgroup made to limit in force: {spread(found)} ms")
    print(json.dumps({"p50_ms": round(p50, 3), "p99_ms": round(p99, 3), "worst_ms": round(worst, 3)}))


if __name__ == "__main__":
    main()
