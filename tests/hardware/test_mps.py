"""`gpupack mps` on a real card: a container's processes get their share and no more.

It runs with the rights of its DaemonSet, and the clients in namespaces and with the mounts of a container.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

from deviceplugin.enforcement.mps_clients import share_of_compute
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.gpus.nvidia.mps.folder import CardFolder
from deviceplugin.gpus.nvidia.mps.grants import grant_client
from deviceplugin.gpus.nvidia.mps.options import PROGRAM
from tests.hardware.programs import CudaProgram, PodCgroups, Report, mps_command, run_cuda
from tests.hardware.test_node import Node, holds, start_node
from tests.integration.daemon_processes import until_is

ROOT = Path("/run/gpupack/mps")


class Mps(NamedTuple):
    """`gpupack mps`, which runs."""

    folder: CardFolder
    card: GpuCard

    def run_client(
        self, envs: dict[str, str], share_gib: int, cgroup: Path, user: int = 0
    ) -> AbstractContextManager[CudaProgram]:
        mib, threads = share_gib * 1024, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in envs
        compute = share_of_compute(mib, self.card.schedulable_mib) if threads else 0
        grant = grant_client(self.folder, ROOT, mib, compute)
        assert grant.envs.items() <= envs.items()
        # The folders of all cards are where a container has the one of its card: bound last.
        mounts = sorted(grant.mounts, key=lambda each: each.container_path.startswith(str(ROOT)))
        return run_cuda(envs, cgroup, mounts, user)


@pytest.fixture
async def mps(card: GpuCard) -> AsyncIterator[Mps]:
    """Run `gpupack mps` until its control daemon answers."""
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"there is no {PROGRAM} here")
    running = await asyncio.create_subprocess_exec(*mps_command(ROOT))
    folder = CardFolder(ROOT, card.uuid)
    try:

        async def answers() -> bool:
            assert running.returncode is None, "gpupack mps ended"
            return folder.path.exists() and folder.state() is not None

        await until_is(answers, True)
        yield Mps(folder, card)
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGTERM)
        await running.wait()
        shutil.rmtree(ROOT, ignore_errors=True)


async def held_by_mps(node: Node) -> bool:
    return await node.metric("gpupack_card_memory_held", uuid=node.card.uuid, by="mps") == 1


async def used_mib(node: Node, pod: str) -> float:
    value = await node.metric("gpupack_container_used_bytes", pod=pod, uuid=node.card.uuid)
    return (value or 0) / 2**20


@pytest.mark.parametrize("user", [0, 1000])
async def test_a_containers_processes_get_their_share_and_no_more(
    card: GpuCard, cgroups: PodCgroups, mps: Mps, user: int, report: Report
) -> None:
    async with start_node(card, cgroups, "--sharing", "mps") as node:
        await holds(lambda: held_by_mps(node))
        (uid, envs), (other_uid, other_envs) = await node.run_pod("p1", 8), await node.run_pod("p2", 4)
        with (
            mps.run_client(envs, 8, cgroups.add(uid), user) as program,
            mps.run_client(other_envs, 4, cgroups.add(other_uid), user) as other,
        ):
            # The limit is of what a process has: it is told the whole card all the same.
            assert program.start() == other.start() == card.schedulable_mib
            had_mib, other_had_mib = program.fill(16 * 1024), other.fill(16 * 1024)
            assert 6 * 1024 <= had_mib <= 8 * 1024
            assert 2 * 1024 <= other_had_mib <= 4 * 1024

            async def are_measured() -> bool:
                return await used_mib(node, "p1") >= had_mib and await used_mib(node, "p2") >= other_had_mib

            await holds(are_measured)
            report("of 8 GiB a client of MPS gets, MiB", had_mib)
            report("which is measured as, MiB", round(await used_mib(node, "p1")))
            assert await used_mib(node, "p1") <= 8 * 1024
            assert await used_mib(node, "p2") <= 4 * 1024
            assert "GPUMemoryOverUse" not in node.reasons()
            # The server's own part of the card is no pod's use.
            assert node.words()[1] == (12,)


async def test_a_container_gets_its_share_of_the_multiprocessors(
    card: GpuCard, cgroups: PodCgroups, mps: Mps, report: Report
) -> None:
    async with start_node(card, cgroups, "--sharing", "mps", "--mps-threads") as node:
        await holds(lambda: held_by_mps(node))
        half_gib = card.schedulable_mib // 2048
        (uid, envs), (all_uid, _) = await node.run_pod("p1", half_gib), await node.run_pod("p2", 4)
        percent = int(envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
        with run_cuda({"NVIDIA_VISIBLE_DEVICES": card.uuid}, cgroups.add(all_uid)) as alone:
            alone.start()
            total = alone.ask("multiprocessors")["count"]
        with mps.run_client(envs, half_gib, cgroups.add(uid)) as program:
            program.start()
            count = program.ask("multiprocessors")["count"]
        report(f"multiprocessors of {total} for {percent} %", count)
        # The driver gives them in groups.
        assert count == pytest.approx(total * percent / 100, rel=0.1)


async def test_a_control_daemon_that_dies_is_started_again(
    card: GpuCard, cgroups: PodCgroups, mps: Mps
) -> None:
    async with start_node(card, cgroups, "--sharing", "mps") as node:
        await holds(lambda: held_by_mps(node))
        killed = list_control_daemons()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert killed

        # The folder says that none answers before another one begins.
        await holds(lambda: set(list_control_daemons()) - set(killed))
        await holds(mps.folder.state)
        await holds(lambda: held_by_mps(node))
        uid, envs = await node.run_pod("p1", 4)
        with mps.run_client(envs, 4, cgroups.add(uid)) as program:
            program.start()
            assert 2 * 1024 <= program.fill(8 * 1024) <= 4 * 1024


async def test_after_a_fault_of_one_client_the_next_ones_work(
    card: GpuCard, cgroups: PodCgroups, mps: Mps, report: Report
) -> None:
    async with start_node(card, cgroups, "--sharing", "mps") as node:
        await holds(lambda: held_by_mps(node))
        (uid, envs), (other_uid, other_envs) = await node.run_pod("p1", 4), await node.run_pod("p2", 4)
        container, other_container = cgroups.add(uid), cgroups.add(other_uid)
        with (
            mps.run_client(envs, 4, container) as program,
            mps.run_client(other_envs, 4, other_container) as other,
        ):
            program.start()
            other.start()
            assert "error" in program.ask("fault")
            report("what a client sees of another one's fault", str(other.ask("allocate 256")))
        with mps.run_client(envs, 4, container) as program:
            program.start()
            assert program.fill(1024) == 1024
        assert await node.metric("gpupack_card_healthy", uuid=card.uuid) == 1


def list_control_daemons() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if folder.name.isdigit() and words[0].decode().rsplit("/", 1)[-1] == PROGRAM:
            found.append(int(folder.name))
    return found
