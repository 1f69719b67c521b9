"""A binder and the API server that it asks."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from allocator.names import POD_ASSIGNED
from kubeapi.errors import KubeApiError
from kubeapi.lease import SoleProcess
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.binding.claim_writer import ClaimWriter
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.api_requests import ApiRequests, Binding
from tests.cluster_builders import node, pod, pod_object, uuid

if TYPE_CHECKING:
    from collections.abc import Callable

ARGS = ("default", "p", "uid-p", "n")


T = 4.0


class Api(ApiRequests):
    """Answers as told, and notes the Bindings."""

    def __init__(self) -> None:
        super().__init__()
        self.binding: Callable[[], None] = lambda: None
        self.pod: dict[str, object] | KubeApiError = pod_object("p", 8, version=3)
        self.calls: list[Binding] = []
        self.during: Callable[[], None] = lambda: None

    def answer(self, verb: str, path: str, body: Any) -> Any:
        if verb == "bind":
            self.calls.append(body)
            self.during()
            self.binding()
            return {}
        assert path == "/api/v1/namespaces/default/pods/p"
        if isinstance(self.pod, KubeApiError):
            raise self.pod
        return self.pod


class Leader:
    def __init__(self, *, is_leader: bool, since: float | None) -> None:
        self.is_leader = is_leader
        self.since = since


class World:
    def __init__(self, leadership: Leader | None = None, *, after_another: bool = True) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.gates: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.state = ClusterState()
        self.api = Api()
        committer = Committer(self.state, ClusterPolicies())
        self.refreshed: list[float] = []
        self.binder = Binder(
            committer,
            self.api,
            lambda: self.now,
            T,
            leadership or SoleProcess(self.now if after_another else float("-inf")),
            refresh=self.refresh,
            claims=ClaimWriter(self.api, T, self.state.is_pending),
            sleep=self.sleep,
        )
        self.now += T
        self.state.apply_node(node("n", (16, 16), version=2), 0)
        self.state.apply_pod(pod("p", 8, version=3), 0)

    async def refresh(self) -> None:
        self.refreshed.append(self.now)

    async def sleep(self, seconds: float) -> None:
        """Waits until the test lets time pass."""
        self.slept.append(seconds)
        gate = asyncio.Event()
        self.gates.put_nowait(gate)
        await gate.wait()

    async def pass_time(self) -> None:
        gate = await self.gates.get()
        self.now += T
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)

    def fails(self, error: KubeApiError) -> None:
        def answer() -> None:
            raise error

        self.api.binding = answer

    def assumed(self) -> int:
        return int(self.state.nodes.assumed.sum())


def bound(version: int = 4, on: str = "n") -> dict[str, object]:
    return pod_object(
        "p",
        8,
        version=version,
        node=on,
        annotations={POD_ASSIGNED: json.dumps({"main": [[uuid("n", 0), 8]]})},
    )
