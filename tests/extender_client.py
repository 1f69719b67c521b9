"""A running extender in front of the API server stand-in, and what kube-scheduler would ask of it."""

import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from scheduler_plugin.app import run
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.settings import Settings
from standins.apiserver.server import ApiServer
from tests.cluster_builders import node_object, pod_object
from tests.running import served
from tests.waiting import until

if TYPE_CHECKING:
    from ssl import SSLContext

LIMIT_S = 60.0


class Client:
    """A running extender."""

    def __init__(self, url: str, state: ClusterState, api: ApiServer, session: aiohttp.ClientSession) -> None:
        self.url, self.state, self.api, self.session = url, state, api, session
        self.tls: SSLContext | bool = True

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=io.BytesIO(data), ssl=self.tls) as response:
            text = await response.read()
            return response.status, json.loads(text) if response.status == 200 else text.decode()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path, ssl=self.tls) as response:
            return response.status, await response.text()

    async def ready(self) -> bool:
        """Ask whether the extender is ready and has heard of every node that the API server has."""
        names = {node["metadata"]["name"] for node in self.api.objects("nodes")}
        return (await self.get("/readyz"))[0] == 200 and names <= self.state.nodes.rows.keys()

    async def filter(self, pod: dict[str, Any], *names: str) -> dict[str, Any]:
        status, answer = await self.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
        assert status == 200
        return answer  # type: ignore[no-any-return]

    async def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        args = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node,
        }
        status, answer = await self.post("/bind", args)
        assert status == 200
        return answer["Error"]  # type: ignore[no-any-return]

    def make_pod(self, name: str, units: int, *, gates: Sequence[str] = (), **options: Any) -> dict[str, Any]:
        """Create a pod and return it with the identity that the API server gave it."""
        made = pod_object(name, units, **options)
        del made["metadata"]["uid"], made["metadata"]["resourceVersion"], made["status"]  # type: ignore[attr-defined]
        if gates:
            made["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]  # type: ignore[index]
        return self.api.add_pod(made)

    def make_node(self, name: str, *args: Any, **options: Any) -> None:
        made: Any = node_object(name, *args, **options)
        self.api.add_node(name, {}, made["status"]["allocatable"], made["metadata"]["annotations"])

    def refuse(self, ending: str) -> list[Any]:
        """Let the API server refuse requests to such paths from now on; return the bodies that come."""
        refused: list[Any] = []

        async def intercept(request: web.Request) -> web.StreamResponse | None:
            if not request.path.endswith(ending):
                return None
            refused.append(await request.json())
            return web.json_response({"kind": "Status", "message": "not so"}, status=403)

        self.api.http.intercept = intercept
        return refused

    async def knows(self, uid: str) -> None:
        await until(lambda: uid in self.state.pods)


@asynccontextmanager
async def extender(
    tmp_path: Path, api: ApiServer, *, after_another: bool = True, **options: Any
) -> AsyncIterator[Client]:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    settings = Settings(kubeconfig=kubeconfig, http="127.0.0.1:0", **{"bind_timeout_s": 1.5, **options})
    async with (
        served(run, settings, after_another=after_another) as (url, state),
        aiohttp.ClientSession() as session,
    ):
        yield Client(url, state, api, session)


@asynccontextmanager
async def two_nodes(tmp_path: Path) -> AsyncIterator[Client]:
    """An extender that spreads, for two nodes of two cards of 16: 8 and 8 used on a, 4 and 0 on b."""
    spread = {"node_policy": "least-requested", "card_policy": "least-used"}
    async with ApiServer() as api, extender(tmp_path, api, **spread) as client:
        client.make_node("a", (16, 16), (8, 8))
        client.make_node("b", (16, 16), (4, 0))
        await until(client.ready)
        yield client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with two_nodes(tmp_path) as client:
        yield client
