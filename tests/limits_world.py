"""A node's cgroups as folders of a test, a checkpoint, simulated limits, and the enforcer between them."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

import pytest

from allocator.ledger import Ledger
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.enforcement.enforcer import Enforcer
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.errors import LimitError
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.api.memory_limits import LimitReading
from deviceplugin.gpus.simulated.memory_limits import SimulatedLimits
from deviceplugin.option_values import AUTO
from tests.account_world import allocation_service
from tests.checkpoint_world import FakeCheckpoint
from tests.ledger_world import RESOURCE, cards, ids
from tests.waiting import until

UID = "0f3c6a52-1b2d-4c3e-9f00-aabbccddeeff"
OTHER = "11111111-2222-4333-8444-555555555555"
GIB = 1024


def identifier(letter: str) -> str:
    """A container's ID, 64 digits."""
    return letter * 64


class Driver(SimulatedLimits):
    """Counts what it is asked; `failing` cards fail with these words, a `deaf` driver takes what it loses."""

    def __init__(self, sizes_mib: Mapping[str, int]) -> None:
        super().__init__(sizes_mib)
        self.sets: list[tuple[str, str, int]] = []
        self.reads = 0
        self.failing: dict[str, str] = {}
        self.deaf = False

    def set(self, uuid: str, cgroup: Path, hard_mib: int) -> None:
        self.sets.append((uuid, cgroup.name, hard_mib))
        if uuid in self.failing:
            raise LimitError("failed", self.failing[uuid])
        if not self.deaf:
            super().set(uuid, cgroup, hard_mib)

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        self.reads += 1
        return super().read(uuid, cgroup)


class LimitsWorld:
    """Cards c0 and c1 of 8 GiB; cgroup v2 as the kubelet's cgroupfs driver and containerd name it.

    Args:
        mode: of `--memory-limits`.
        rescan_s: of the enforcer.
    """

    def __init__(self, folder: Path, *, mode: str = AUTO, rescan_s: float = 3600.0) -> None:
        self.root = folder / "cgroup"
        self.logs = folder / "containers"
        self.logs.mkdir()
        for quality in ("burstable", "besteffort"):
            (self.root / "kubepods" / quality).mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("memory\n")
        self.mode, self.rescan_s = mode, rescan_s
        self.driver = Driver({"c0": 8 * GIB, "c1": 8 * GIB})
        self.checkpoint = FakeCheckpoint()
        self.names: dict[str, dict[str, str]] = {}
        self.told: list[tuple[str, str, str]] = []
        self.running: asyncio.Task[None] | None = None
        self.account: LedgerService
        self.supports: LimitCapability
        self.granted_memory: GrantedMemory
        self.enforcer: Enforcer
        self.make()

    def make(self) -> None:
        """A daemon that starts, knowing nothing; checkpoint, cgroups and driver are as they were."""
        self.account = LedgerService(Ledger(cards(8, 8)), self.checkpoint.read, RESOURCE)
        self.supports = LimitCapability(self.account, self.driver, mode=self.mode)
        self.enforcement = MemoryEnforcement(self.supports)

        async def describe(mib: Mapping[str, int], _compute: int, _ids: Collection[str]) -> ContainerGrant:
            return ContainerGrant(self.supports.container_envs(mib))

        self.answers = allocation_service(self.account, GIB, make_grant=describe)
        self.granted_memory = GrantedMemory(self.account, GIB)
        self.enforcer = Enforcer(
            self.account,
            self.supports,
            self.granted_memory,
            lambda uid: self.names.get(uid, {}),
            cgroup_root=self.root,
            container_logs=self.logs,
            tell=lambda *said: self.told.append(said),
            rescan_s=self.rescan_s,
        )

    async def start(self) -> None:
        await self.supports.start()
        self.account.read_checkpoint()
        self.running = asyncio.create_task(self.enforcer.run())
        await self.settle()

    async def end(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    async def settle(self) -> None:
        """Give the enforcer some turns, and a thread's time, to do what it should not."""
        for _ in range(5):
            await asyncio.sleep(0.005)

    def give(self, uid: str, container: str, numbers: range | list[int], card: str = "c0") -> None:
        """Write into the checkpoint that a container got these units of a card, and have it read."""
        before = self.checkpoint.written.get((uid, container, RESOURCE), frozenset())
        self.checkpoint.write(uid, before | ids(card, *numbers), container=container)
        self.account.read_checkpoint()

    def over(self, uid: str) -> None:
        """Let a pod be over: out of the checkpoint, out of the API server's list, and without cgroups."""
        ledger = self.account.ledger
        ledger.record_cgroup_probe([uid], [uid], self.account.now_s())
        shutil.rmtree(self.pod(uid))
        self.checkpoint.drop(uid)
        self.account.read_checkpoint()
        now_s = self.account.now_s()
        ledger.apply_pod_list([], now_s, now_s)
        ledger.record_cgroup_probe([uid], [], self.account.now_s())
        self.account.notify_subscribers()

    def pod(self, uid: str = UID, quality: str = "burstable") -> Path:
        """The pod's cgroup, made if need be."""
        path = self.root / "kubepods" / quality / f"pod{uid}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def container(self, letter: str, uid: str = UID) -> Path:
        """Make a container's cgroup."""
        path = self.pod(uid) / identifier(letter)
        path.mkdir()
        return path

    async def limited_container(self, gib: int) -> Path:
        """Give container `main` units of c0, make its cgroup, and wait for the limit."""
        self.give(UID, "main", range(gib))
        cgroup = self.container("a")
        await self.limited(cgroup, gib)
        return cgroup

    def name(self, letter: str, container: str, uid: str = UID) -> None:
        """Let the pod's status tell a container's ID."""
        self.names[uid] = {**self.names.get(uid, {}), identifier(letter): container}
        self.account.notify_subscribers()

    def link(self, letter: str, container: str) -> None:
        """Make the link to a container's log, as the kubelet does once it has started it."""
        (self.logs / f"p_default_{container}-{identifier(letter)}.log").symlink_to("/nowhere")

    def limit(self, cgroup: Path, card: str = "c0") -> int | None:
        return self.driver.read(card, cgroup).hard_mib

    async def limited(self, cgroup: Path, gib: int | None, card: str = "c0") -> None:
        wanted = None if gib is None else gib * GIB
        await until(lambda: self.limit(cgroup, card) == wanted)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LimitsWorld]:
    found = LimitsWorld(tmp_path)
    yield found
    await found.end()
