"""A whole cluster in one process: stand-ins for API server and kubelets, real node daemons and extender."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import structlog
from aiohttp import web

from allocator.names import (
    DAEMON_NAMES,
    DEFAULT_CARD_POLICY,
    DEFAULT_NODE_POLICY,
    MIB_PER_GIB,
    SYSTEM_NAMESPACE,
    resource_name,
)
from deviceplugin.app import Daemon
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.host.cgroups import CgroupProbe, ProcessPlace
from deviceplugin.publishing.shutdown import ShutdownTimeouts
from deviceplugin.settings import Settings as NodeSettings
from gpupack.errors import GpupackError
from kubeapi.paths import make_collection_path
from scheduler_plugin.app import run as run_extender
from scheduler_plugin.settings import Settings as SchedulerSettings
from standins.apiserver.server import ApiServer
from standins.kubelet.node import Kubelet
from standins.scheduler import Scheduler

if TYPE_CHECKING:
    from scheduler_plugin.cache.state import ClusterState

WAIT_S: Final = 60.0

PUBLISH_GAP_S: Final = 0.2
"""Shorter than in a real cluster: this API server serves a few nodes of the same process."""


class TimedOutError(GpupackError):
    """Raised when a condition did not become true in time."""


async def wait_until(condition: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> None:
    """Wait for a condition.

    Raises:
        TimedOutError: it does not hold after `wait_s` seconds.
    """
    deadline = asyncio.get_running_loop().time() + wait_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise TimedOutError(f"{what}: not within {wait_s:g} s")
        await asyncio.sleep(0.02)


class _EmbeddedCgroups:
    """The embedded kubelet's containers instead of the kernel's cgroups."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    def probe(self, uids: Collection[str]) -> CgroupProbe:
        return CgroupProbe(self._kubelet.running_pods() & frozenset(uids))


class _NoProcesses:
    """Simulated cards run no processes of this machine."""

    def find_places(self, pids: Iterable[int]) -> Mapping[int, ProcessPlace | None]:
        return dict.fromkeys(pids)


class _DaemonPods:
    """The pods that node daemons have in a real cluster: their list, and the way to them.

    The daemons run in this process. The API server gives no other pods of theirs, and proxies to nobody.
    """

    def __init__(self, nodes: "Mapping[str, EmbeddedNode]", session: aiohttp.ClientSession) -> None:
        self._nodes = nodes
        self._session = session

    async def answer(self, request: web.Request) -> web.Response | None:
        """Answer what is about these pods; None for everything else."""
        if request.path == _DAEMON_PODS and DAEMON_NAMES[0] in request.query.get("labelSelector", ""):
            items = [self._make_pod(name) for name in self._nodes]
            return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
        for name, node in self._nodes.items():
            if request.path == f"{_DAEMON_PODS}/{_name_pod(name)}/proxy/telemetry":
                url = f"http://127.0.0.1:{node.daemon.http_port}/telemetry"
                async with self._session.get(url, params=request.query) as answer:
                    return web.Response(body=await answer.read(), content_type=answer.content_type)
        return None

    def _make_pod(self, node: str) -> dict[str, Any]:
        return {
            "metadata": {
                "name": _name_pod(node),
                "namespace": SYSTEM_NAMESPACE,
                "labels": {"app.kubernetes.io/name": DAEMON_NAMES[0]},
                "ownerReferences": [{"kind": "DaemonSet", "controller": True}],
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Running"},
        }


_DAEMON_PODS: Final = make_collection_path(SYSTEM_NAMESPACE, "pods")


def _name_pod(node: str) -> str:
    return f"{DAEMON_NAMES[0]}-{node}"


@dataclass(slots=True)
class EmbeddedNode:
    """A node: its kubelet, daemon and cards."""

    name: str
    kubelet: Kubelet
    daemon: Daemon
    gpus: SimulatedGpus


class EmbeddedCluster:
    """API server, nodes and extender; use it with `async with`.

    Args:
        profiles: profile (a shipped name or a file) by node name.
    """

    def __init__(
        self,
        profiles: Mapping[str, str],
        *,
        node_policy: str = DEFAULT_NODE_POLICY,
        card_policy: str = DEFAULT_CARD_POLICY,
        seed: int = 1,
        unit_mib: int = MIB_PER_GIB,
    ) -> None:
        self._profiles = dict(profiles)
        self._node_policy = node_policy
        self._card_policy = card_policy
        self._seed = seed
        self._stack = AsyncExitStack()
        self._stop = asyncio.Event()
        self.api = ApiServer(seed=seed)
        self.nodes: dict[str, EmbeddedNode] = {}
        self.unit_mib = unit_mib
        self.resource = resource_name(unit_mib)
        self.state: ClusterState

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupack-")))
        await self._stack.enter_async_context(self.api)
        self.kubeconfig = self.api.kubeconfig(folder / "kubeconfig")
        for number, (name, profile) in enumerate(self._profiles.items()):
            await self._start_node(name, profile, folder / f"n{number}")
        await wait_until(
            lambda: all(n.daemon.ready.is_set() for n in self.nodes.values()), "daemons register"
        )
        await self._start_extender()
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.api.http.intercept = _DaemonPods(self.nodes, session).answer

    async def _start_node(self, name: str, profile: str, folder: Path) -> None:
        self.api.add_node(name)
        kubelet = Kubelet(folder, name, self.api.url, seed=self._seed)
        await kubelet.start()
        self._stack.push_async_callback(kubelet.stop)
        settings = NodeSettings(
            node_name=name,
            gpus="simulated",
            profile=profile,
            unit_mib=self.unit_mib,
            kubeconfig=self.kubeconfig,
            device_plugin_dir=kubelet.device_plugin_dir,
            kubelet_dir=kubelet.device_plugin_dir.parent,
            http="127.0.0.1:0",
            card_policy=self._card_policy,
            publish_gap_s=PUBLISH_GAP_S,
        )
        settings.check()
        gpus = SimulatedGpus(load_profile(profile))
        daemon = Daemon(
            settings,
            source=gpus,
            cgroups=_EmbeddedCgroups(kubelet),
            owners=_NoProcesses(),
            shutdown_timeouts=ShutdownTimeouts(late_s=0.0, admit_s=0.0),  # the whole cluster ends
        )
        self.nodes[name] = EmbeddedNode(name, kubelet, daemon, gpus)
        self._run_in_background(daemon.run(self._stop))

    async def _start_extender(self) -> None:
        started: asyncio.Future[tuple[str, ClusterState]] = asyncio.get_running_loop().create_future()
        settings = SchedulerSettings(
            kubeconfig=self.kubeconfig,
            http="127.0.0.1:0",
            node_policy=self._node_policy,
            card_policy=self._card_policy,
            unit_mib=self.unit_mib,
        )

        async def extender() -> None:
            structlog.contextvars.bind_contextvars(component="extender")
            await run_extender(
                settings,
                stop=self._stop,
                started=lambda url, state: started.set_result((url, state)),
                after_another=False,
            )

        task = self._run_in_background(extender())
        waited: list[asyncio.Future[Any]] = [started, task]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        url, self.state = started.result()
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.scheduler = Scheduler(url, session)
        await wait_until(
            lambda: self.state.nodes.usable.sum() == len(self.nodes), "the extender reads all words"
        )

    def _run_in_background(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)

        async def end() -> None:
            self._stop.set()
            await task

        self._stack.push_async_callback(end)
        return task

    # What people do.

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self.api.add_pod(manifest)

    async def schedule(self, pod: dict[str, Any]) -> str:
        """Let the extender place a pod, as kube-scheduler would; returns the node.

        Raises:
            Unschedulable: no node passed the filter.
        """
        uid = pod["metadata"]["uid"]
        await wait_until(lambda: uid in self.state.pods, "the extender sees the pod")
        return await self.scheduler.schedule(pod, list(self.nodes))

    def make_pod_manifest(
        self,
        name: str,
        units: Sequence[int],
        *,
        init: int = 0,
        sidecar: int = 0,
        cards: int = 1,
    ) -> dict[str, Any]:
        """Write a pod with one container per entry of `units`, in units of the resource."""

        def container(called: str, amount: int, **more: str) -> dict[str, Any]:
            return {
                "name": called,
                "image": "example.invalid/none",
                "resources": {"limits": {self.resource: str(amount)}},
                **more,
            }

        before = [container("sidecar", sidecar, restartPolicy="Always")] if sidecar else []
        before += [container("init", init)] if init else []
        return {
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {"gpupack.io/cards": str(cards)} if cards > 1 else {},
            },
            "spec": {
                "initContainers": before,
                "containers": [container(f"c{i}", amount) for i, amount in enumerate(units)],
            },
        }

    def list_nodes(self) -> object:
        return json.loads(json.dumps({"kind": "List", "items": self.api.objects("nodes")}))
