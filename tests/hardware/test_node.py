"""The daemon of a node with a real card: what it publishes, and whose memory is whose.

The API server and the kubelet are stand-ins; driver, card, processes and cgroups are real.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from allocator.names import POD_ASSIGNED, RESOURCE_PREFIX
from allocator.packing import read_node
from deviceplugin.gpus.api.source import GpuCard
from standins.apiserver.server import ApiServer
from standins.kubelet.node import Kubelet
from tests.hardware.programs import PodCgroups, Report, run_cuda
from tests.integration.daemon_processes import NODE, beside_kubelet, process, status_of, until_is

GIB = RESOURCE_PREFIX + "gib"


class Node(NamedTuple):
    """A node whose daemon serves."""

    api: ApiServer
    kubelet: Kubelet
    card: GpuCard
    session: aiohttp.ClientSession
    url: str
    pid: int

    async def run_pod(self, name: str, units: int) -> tuple[str, dict[str, str]]:
        """Start a pod with a part of the card: its UID, and what its container is given."""
        limits = {"limits": {GIB: str(units)}, "requests": {GIB: str(units)}}
        containers = [{"name": "main", "image": "none", "resources": limits}]
        pod = self.api.add_pod(
            {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers}}
        )
        uid = str(pod["metadata"]["uid"])
        assigned = json.dumps({"main": [[self.card.uuid, units]]})
        self.api.bind_pod("default", name, NODE, {POD_ASSIGNED: assigned})

        async def runs() -> bool:
            return (uid, "main") in self.kubelet.containers

        await until_is(runs, True)
        return uid, dict(self.kubelet.containers[uid, "main"].envs)

    def words(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and use of the cards in units, as published."""
        words = read_node(self.api.node(NODE)["status"]["allocatable"])
        return words.sizes, words.used

    async def metric(self, name: str, **labels: str) -> float | None:
        """Read a metric of the daemon; None where it has none with these labels."""
        _, text = await status_of(self.session, f"{self.url}/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    def reasons(self) -> set[str]:
        return {event["reason"] for event in self.api.objects("events")}


@asynccontextmanager
async def start_node(card: GpuCard, cgroups: PodCgroups, *options: str) -> AsyncIterator[Node]:
    async with beside_kubelet() as (folder, api, kubelet), aiohttp.ClientSession() as session:
        arguments = [
            *("node", "--node-name", NODE, "--kubeconfig", folder / "kubeconfig"),
            *("--device-plugin-dir", kubelet.device_plugin_dir),
            *("--kubelet-dir", kubelet.device_plugin_dir.parent),
            *("--cgroup-root", cgroups.root, "--publish-gap-s", "0.2", *options),
        ]
        async with process(*arguments, stderr=None) as (daemon, url, _):

            async def ready() -> tuple[int, str]:
                return await status_of(session, f"{url}/readyz")

            async def offered() -> bool:
                return int(api.node(NODE)["status"].get("allocatable", {}).get(GIB, 0)) > 0

            await until_is(ready, (200, "ok\n"))
            await until_is(offered, True)
            yield Node(api, kubelet, card, session, url, daemon.pid)


async def holds(condition: Callable[[], Any]) -> None:
    async def ask() -> bool:
        found = condition()
        return bool(await found if hasattr(found, "__await__") else found)

    await until_is(ask, True)


async def test_processes_are_told_apart_by_pod(card: GpuCard, cgroups: PodCgroups, report: Report) -> None:
    async with start_node(card, cgroups) as node:
        sizes, used = node.words()
        assert sizes == (card.schedulable_mib // 1024,)
        assert used == (0,)
        (uid, envs), (other_uid, _) = await node.run_pod("p1", 8), await node.run_pod("p2", 8)
        assert envs["NVIDIA_VISIBLE_DEVICES"] == card.uuid
        await holds(lambda: node.words()[1] == (16,))
        cgroups.add(other_uid)
        with run_cuda(envs, cgroups.add(uid)) as program:
            program.start()
            assert program.fill(4096) == 4096

            async def measured_mib(pod: str) -> float:
                value = await node.metric("gpupack_container_used_bytes", pod=pod, uuid=card.uuid)
                return (value or 0) / 2**20

            async def is_told() -> bool:
                return await measured_mib("p1") >= 4096

            await holds(is_told)
            assert await measured_mib("p1") < 6 * 1024
            assert await measured_mib("p2") == 0
            assert node.words()[1] == (16,)
            assert "GPUMemoryOverUse" not in node.reasons()
            # Beyond its share: others are kept away from what it took, and the pod is told.
            assert program.fill(8192) == 8192
            await holds(lambda: node.words()[1][0] >= 16 + 4)
            await holds(lambda: "GPUMemoryOverUse" in node.reasons())
        await holds(lambda: node.words()[1] == (16,))
        report("resident memory of the node daemon, MiB", read_resident_mib(node.pid))


def read_resident_mib(pid: int) -> int:
    """MiB of memory that a process has."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


async def test_a_program_of_nobody_counts(card: GpuCard, cgroups: PodCgroups) -> None:
    async with start_node(card, cgroups) as node:
        with run_cuda({"NVIDIA_VISIBLE_DEVICES": card.uuid}) as program:
            program.start()
            assert program.fill(10 * 1024) == 10 * 1024
            await holds(lambda: 10 <= node.words()[1][0] <= 12)
        await holds(lambda: node.words()[1] == (0,))


async def test_a_fault_of_a_pod_is_counted_and_the_card_stays_healthy(
    card: GpuCard, cgroups: PodCgroups
) -> None:
    async with start_node(card, cgroups) as node:
        uid, envs = await node.run_pod("p1", 8)
        with run_cuda(envs, cgroups.add(uid)) as program:
            program.start()
            assert "ILLEGAL_ADDRESS" in str(program.ask("fault"))

            async def is_counted() -> bool:
                return bool(await node.metric("gpupack_card_xid_errors_total", uuid=card.uuid))

            await holds(is_counted)
        assert await node.metric("gpupack_card_healthy", uuid=card.uuid) == 1
