"""A node for tests: stand-in API server and kubelet, real gRPC to the daemon, simulated cards."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from allocator.names import NODE_HOLDS, PERCENT_RESOURCE, POD_ALLOCATION, POD_ASSIGNED, RESOURCE_PREFIX
from allocator.packing import NodeWords, read_node
from deviceplugin.app import Daemon
from deviceplugin.gpus.simulated.profile import parse_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.host.cgroups import CgroupProbe, ProcessPlace
from deviceplugin.monitoring.card_driver import DETACH_AFTER_S
from deviceplugin.monitoring.sampling import SAMPLE_S
from deviceplugin.publishing.shutdown import ShutdownTimeouts
from deviceplugin.settings import Settings
from standins.apiserver.server import ApiServer
from standins.kubelet.node import Kubelet
from standins.kubelet.process import Delays
from tests.kubelet_world import short_folder
from tests.waiting import until

GIB = RESOURCE_PREFIX + "gib"
NODE = "n1"


def profile_text(*sizes_gib: int) -> str:
    """Cards of these sizes, nothing reserved."""
    devices = [
        {
            "index": i,
            "uuid": card(i),
            "minor_number": i,
            "pci": {"bus_id": f"0000:{i + 1:02x}:00.0"},
            "memory": {"total_bytes": size * 2**30, "reserved_bytes": 0, "used_bytes": 0},
        }
        for i, size in enumerate(sizes_gib)
    ]
    return json.dumps(
        {
            "version": "1.0",
            "system": {"driver_version": "1"},
            "device_defaults": {"name": "Test card", "architecture": "none"},
            "devices": devices,
        }
    )


def card(index: int) -> str:
    """UUID of a card."""
    return f"GPU-0000000{index}-0000-0000-0000-000000000000"


World = TypeVar("World", bound="NodeWorld")


class KubeletCgroups:
    """The containers of the stand-in kubelet stand for the kernel's cgroups."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet

    def probe(self, uids: Collection[str]) -> CgroupProbe:
        return CgroupProbe(frozenset(uids) & self.kubelet.running_pods())

    def find_places(self, pids: Collection[int]) -> Mapping[int, ProcessPlace | None]:
        return dict.fromkeys(pids)


class NodeWorld:
    """One node; `start_daemon` and `stop_daemon` may come often."""

    def __init__(
        self, folder: Path, sizes_gib: Sequence[int], profile: str | None = None, **kubelet: Any
    ) -> None:
        self.folder = folder
        self.source = SimulatedGpus(parse_profile("test", profile or profile_text(*sizes_gib)))
        self.api = ApiServer(seed=1)
        self.kubelet_options = kubelet
        self.kubelet: Kubelet
        self.daemon: Daemon
        self.sample_s = SAMPLE_S
        self.changes: dict[str, Any] = {}
        self.detach_after_s = DETACH_AFTER_S
        self.stop = asyncio.Event()
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.api.start()
        self.api.add_node(NODE)
        self.kubelet = Kubelet(self.folder, NODE, self.api.url, **self.kubelet_options)
        await self.kubelet.start()
        await self.start_daemon()

    def settings(self, **changes: Any) -> Settings:
        base: dict[str, Any] = {
            "node_name": NODE,
            "gpus": "simulated",
            "profile": "unused",
            "kubeconfig": self.api.kubeconfig(self.folder / "kubeconfig"),
            "device_plugin_dir": self.kubelet.device_plugin_dir,
            "kubelet_dir": self.kubelet.device_plugin_dir.parent,
            "http": "127.0.0.1:0",
            "publish_gap_s": 0.2,
        }
        return Settings(**{**base, **self.changes, **changes})

    def spawn_daemon(self, **changes: Any) -> asyncio.Task[None]:
        """Start it without waiting for anything."""
        self.stop = asyncio.Event()
        fake = KubeletCgroups(self.kubelet)
        self.daemon = Daemon(
            self.settings(**changes),
            source=self.source,
            cgroups=fake,
            owners=fake,
            sample_s=self.sample_s,
            detach_after_s=self.detach_after_s,
            shutdown_timeouts=ShutdownTimeouts(late_s=0.05),
        )
        self.running = asyncio.create_task(self.daemon.run(self.stop))
        return self.running

    async def start_daemon(self, **changes: Any) -> None:
        running = self.spawn_daemon(**changes)
        await until(lambda: self.daemon.ready.is_set() or running.done(), "registered")
        if running.done():
            running.result()
        # The kubelet counts devices a moment after it began to listen; a pod before that is refused for good.
        both = (self.settings(**changes).resource, PERCENT_RESOURCE)
        await until(lambda: all(self.kubelet.allocatable().get(name) for name in both), "devices")

    async def stop_daemon(self) -> None:
        assert self.running is not None
        self.stop.set()
        await self.running

    async def kill_daemon(self) -> None:
        """End it in the middle of whatever it does."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def end(self) -> None:
        if self.running is not None and not self.running.done():
            await self.stop_daemon()
        await self.kubelet.stop()
        await self.api.stop()

    # Pods

    def bind(
        self,
        name: str,
        units: int,
        on: int | None = None,
        *,
        init: int = 0,
        annotations: Mapping[str, str] | None = None,
        containers: Sequence[Mapping[str, Any]] | None = None,
        assigned: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a pod and bind it as the extender does; returns its UID."""
        spec: dict[str, Any] = {"containers": containers or [container("main", units)]}
        if init:
            spec["initContainers"] = [container("setup", init)]
        pod = self.api.add_pod(
            {
                "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
                "spec": spec,
            }
        )
        notes = {}
        if assigned is None and on is not None:
            assigned = {"main": [[card(on), units]]}
            if init:
                assigned["setup"] = [[card(on), init]]
        if assigned is not None:
            notes[POD_ASSIGNED] = json.dumps(assigned)
        self.api.bind_pod("default", name, NODE, notes)
        return str(pod["metadata"]["uid"])

    def phase(self, name: str) -> str:
        return str(self.api.pod("default", name)["status"].get("phase", ""))

    async def run(self, name: str, units: int, on: int | None = None, **more: Any) -> str:
        """Bind a pod and wait until it runs."""
        uid = self.bind(name, units, on, **more)
        await until(lambda: self.phase(name) in {"Running", "Failed"}, f"{name} runs")
        assert self.phase(name) == "Running", self.api.pod("default", name)["status"]
        return uid

    def env(self, uid: str, name: str = "main") -> Mapping[str, str]:
        return self.kubelet.containers[uid, name].envs

    def allocation(self, name: str) -> Any:
        text = self.api.pod("default", name)["metadata"].get("annotations", {}).get(POD_ALLOCATION)
        return None if text is None else json.loads(text)

    # The Node

    def words(self) -> NodeWords | None:
        status = self.api.node(NODE)["status"]
        packed = read_node(status["allocatable"])
        assert packed == read_node(status["capacity"])
        return packed

    @property
    def used(self) -> list[int] | None:
        words = self.words()
        return None if words is None else list(words.used)

    @property
    def holds(self) -> set[str]:
        text = self.api.node(NODE)["metadata"].get("annotations", {}).get(NODE_HOLDS)
        return set() if text is None else set(json.loads(text)["uids"])

    async def settled(self, used: list[int], holds: set[str]) -> None:
        """Wait until the Node says exactly this."""
        await until(
            lambda: (self.used, self.holds) == (used, holds),
            f"used {used} holds {holds}",
        )


def container(name: str, units: int, **more: Any) -> dict[str, Any]:
    limits = {GIB: str(units)} if units else {}
    return {"name": name, "image": "x", "resources": {"limits": limits}, **more}


@asynccontextmanager
async def running(make: Callable[[Path], World], *, start: bool = True) -> AsyncIterator[World]:
    """A node in a folder of its own that runs, unless `start` says no, torn down afterwards."""
    async with short_folder() as folder:
        world = make(folder)
        try:
            if start:
                await world.start()
            yield world
        finally:
            await world.end()


@asynccontextmanager
async def node_world(*sizes_gib: int, **kubelet: Any) -> AsyncIterator[NodeWorld]:
    """A running node, torn down afterwards."""
    async with running(lambda folder: NodeWorld(folder, sizes_gib or (8, 8), **kubelet)) as world:
        yield world


__all__ = ["Delays", "NodeWorld", "card", "container", "node_world", "until"]


def events(world: NodeWorld) -> dict[str, str]:
    """Messages of the Events about the Node, by reason."""
    found = {}
    for event in world.api.objects("events"):
        assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
        assert event["source"] == {"component": "gpupack-node", "host": NODE}
        found[event["reason"]] = f"{event['type']} {event['message']}"
    return found


async def metrics(world: NodeWorld) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the name of the sample and the values of its labels, in order of their names."""
    url = f"http://127.0.0.1:{world.daemon.http_port}/metrics"
    found: dict[str, dict[tuple[str, ...], float]] = {}
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        for family in text_string_to_metric_families(await answer.text()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found
