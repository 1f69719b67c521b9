"""An API server with nodes, the pods of their daemons and the way to these, for tests of what cards do."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from allocator.records import CardRecord, dump_cards
from deviceplugin.gpus.api.source import GpuCard, GpuSample
from deviceplugin.gpus.api.telemetry import CardTelemetry
from deviceplugin.http import HttpServer
from deviceplugin.metrics import Metrics
from deviceplugin.monitoring.telemetry import TelemetryHistory
from tests.credentials_world import kubeconfig
from tests.http_server import serving
from tests.kubectl_nodes import CARDS, node

BUSY = CardTelemetry(
    utilization_percent=87.0,
    memory_utilization_percent=41.0,
    temperature_c=66.0,
    power_w=301.6,
    power_limit_w=350.0,
    sm_clock_mhz=2190.0,
    memory_clock_mhz=9001.0,
    throttle_reasons=("sw_power_cap",),
)
IN_PART = CardTelemetry(temperature_c=31.0, throttle_reasons=("gpu_idle",))

PODS = "/api/v1/pods"
SYSTEM_PODS = "/api/v1/namespaces/gpupack-system/pods"
SELECTOR = "app.kubernetes.io/name in (gpupack-node,gpupack-node-dra)"


# What anybody who may create pods on node `a` can make, by what is wrong with it.
FOREIGN_PODS: dict[str, dict[str, Any]] = {
    "namespace": {"namespace": "team", "creationTimestamp": "2025-01-01T00:00:00Z"},
    "no owner": {"ownerReferences": None, "creationTimestamp": "2025-01-01T00:00:00Z"},
    "another kind": {
        "ownerReferences": [{"kind": "ReplicaSet", "controller": True}, {"kind": "DaemonSet"}],
        "creationTimestamp": "2025-01-01T00:00:00Z",
    },
    "younger": {"creationTimestamp": "2026-01-03T00:00:00Z"},
    "terminating": {
        "creationTimestamp": "2025-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-04T00:00:00Z",
    },
}


def foreign_pod(wrong: str) -> dict[str, Any]:
    return daemon_pod("a", **{"name": "foreign", **FOREIGN_PODS[wrong]})


def gpu_node(name: str) -> dict[str, Any]:
    cards = [CardRecord(f"GPU-{name}-{at}", at, "NVIDIA L40S", 45459, 0, True) for at in range(2)]
    return node(name, [44, 44], [8, 0], {CARDS: dump_cards(cards)})


def daemon_pod(name: str, /, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"gpupack-node-{name}",
            "namespace": "gpupack-system",
            "creationTimestamp": "2026-01-02T00:00:00Z",
            "labels": {"app.kubernetes.io/name": "gpupack-node"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}],
            **metadata,
        },
        "spec": {"nodeName": name},
        "status": {"phase": phase},
    }


def measure(name: str, *told: CardTelemetry) -> TelemetryHistory:
    history = TelemetryHistory(5.0, lambda: 0.0)
    cards = [GpuCard(at, f"GPU-{name}-{at}", "NVIDIA L40S", 45459, 0, 0, "", at) for at in range(len(told))]
    history.add(
        cards, [GpuSample(card.uuid, 0, (), telemetry=each) for card, each in zip(cards, told, strict=True)]
    )
    return history


@dataclass
class Cluster:
    """An API server with nodes, the pods of their daemons and the way to these.

    Attributes:
        histories: what the daemon of each node has measured.
        pods: of daemons.
        forbidden: paths, or parts of them, that may not be read.
        answers: what a daemon answers in place of its own words.
        asked: paths of the requests with their queries.
    """

    histories: dict[str, TelemetryHistory]
    pods: list[dict[str, Any]]
    forbidden: tuple[str, ...] = ()
    answers: dict[str, web.Response] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query)))
        if any(request.path.endswith(part) for part in self.forbidden):
            return web.json_response(
                {
                    "kind": "Status",
                    "code": 403,
                    "reason": "Forbidden",
                    "message": f"no right: {request.path}",
                },
                status=403,
            )
        if request.path == "/api/v1/nodes":
            return web.json_response(
                {"kind": "NodeList", "metadata": {}, "items": [gpu_node(name) for name in self.histories]}
            )
        if request.path.endswith("/pods"):
            daemons = self.pods if request.query.get("labelSelector") == SELECTOR else []
            paths = {PODS: daemons}
            for pod in daemons:
                paths.setdefault(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", []).append(pod)
            items = paths.get(request.path, [])
            return web.json_response({"kind": "PodList", "metadata": {}, "items": items})
        name = request.path.removeprefix(f"{SYSTEM_PODS}/gpupack-node-").removesuffix("/proxy/telemetry")
        if name in self.answers:
            return self.answers.pop(name)
        if name not in self.histories:
            return web.json_response({"kind": "Status", "message": "no such path"}, status=404)
        return await self.forward(name, request)

    async def forward(self, name: str, request: web.Request) -> web.Response:
        """Ask the daemon's own HTTP server, as the API server does."""
        server = HttpServer(
            Metrics(), list, dict, telemetry=lambda history: self.histories[name].explain(history=history)
        )
        async with contextlib.AsyncExitStack() as stack:
            host, port = (await server.start(stack, "127.0.0.1:0"))[:2]
            reader, writer = await asyncio.open_connection(host, port)
            asked = f"GET /telemetry?{request.query_string} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            writer.write(asked.encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b" 200 " in head
            writer.close()
        return web.Response(body=body, content_type="application/json")

    @contextlib.asynccontextmanager
    async def serve(self, tmp_path):
        async with serving(self.answer) as url:
            yield kubeconfig(tmp_path / "kubeconfig", url)

    def run(self, run, tmp_path, *arguments: str) -> tuple[int, str, str]:
        async def ask() -> tuple[int, str, str]:
            async with self.serve(tmp_path) as config:
                return await asyncio.to_thread(run, "--kubeconfig", config, *arguments)

        return asyncio.run(ask())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(
        {"a": measure("a", BUSY, IN_PART), "b": measure("b", IN_PART, IN_PART)},
        [daemon_pod("a"), daemon_pod("b")],
    )
