"""A batch committer on a cluster state, and the API server that it asks."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from allocator.names import BATCH_SCHEDULER, POD_ASSIGNED
from kubeapi.errors import KubeApiError, NotFound
from kubeapi.lease import SOLE_PROCESS
from kubeapi.objects import Node, Pod
from scheduler_plugin.binding.batch_committer import BatchCommitter
from scheduler_plugin.binding.batch_protocol import CommitCall, PodCandidates, PodResult
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.binding.claim_writer import ClaimWriter
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.binding.shared_nodes import SharedNodes
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.kubernetes_checks import KubernetesChecks
from tests.api_requests import ApiRequests, Binding
from tests.binding_world import Leader
from tests.cluster_builders import node_object, pod_object

T = 4.0


class BatchApi(ApiRequests):
    """An API server with the pods of the world; `answer` may raise before or after a Binding is done.

    Attributes:
        bound: Node by UID.
        sent: UID and node of each Binding that was sent.
        before: Called with the name of the pod; raises where the Binding is not done.
        after: Called with it once the Binding is done; raises where the answer is lost.
        read: Called before a pod is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, dict[str, Any]] = {}
        self.bound: dict[str, str] = {}
        self.sent: list[tuple[str, str]] = []
        self.before: Callable[[str], None] = lambda _name: None
        self.after: Callable[[str], None] = lambda _name: None
        self.read: Callable[[], None] = lambda: None

    def answer(self, verb: str, path: str, body: Any) -> Any:
        if verb == "bind":
            return self._bind(body)
        self.read()
        raw = self.objects.get(path.rpartition("/")[2])
        if raw is None:
            raise NotFound("gone", status=404)
        return raw

    def _bind(self, binding: Binding) -> None:
        uid = binding.uid
        self.sent.append((uid, binding.node))
        self.before(binding.name)
        assert uid not in self.bound, f"{uid} is bound twice"
        self.bound[uid] = binding.node
        raw = self.objects[binding.name]
        raw["spec"]["nodeName"] = binding.node
        raw["metadata"]["annotations"][POD_ASSIGNED] = binding.annotations[POD_ASSIGNED]
        raw["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 1000)
        self.after(binding.name)


class BatchWorld:
    """Nodes `n`, `m` of two cards of 16 units each; pods are added by name."""

    def __init__(
        self,
        leadership: Leader | None = None,
        policy: str = "least-requested",
        *,
        follower: Leader | None = None,
    ) -> None:
        self.now = 100.0
        self.slept: list[asyncio.Event] = []
        self.stale = ""
        self.state = ClusterState()
        self.checks = KubernetesChecks(self.state)
        self.api = BatchApi()
        self.refreshed = 0
        self.binder = Binder(
            Committer(self.state, ClusterPolicies(policy)),
            self.api,
            lambda: self.now,
            T,
            leadership or SOLE_PROCESS,
            refresh=self.refresh,
            claims=ClaimWriter(self.api, T, self.state.is_pending),
            sleep=self.sleep,
        )
        self.shared = SharedNodes()
        self.committer = BatchCommitter(
            self.binder, self.checks, lambda: self.stale, follower or SOLE_PROCESS, self.shared
        )
        self.version = 1
        for name in ("n", "m"):
            self.node(name)

    async def refresh(self) -> None:
        self.refreshed += 1

    async def sleep(self, _seconds: float) -> None:
        gate = asyncio.Event()
        self.slept.append(gate)
        await gate.wait()

    async def pass_time(self) -> None:
        """Let T pass for whoever sleeps."""
        self.now += T
        sleeping, self.slept = self.slept, []
        for gate in sleeping:
            gate.set()
        for _ in range(10):
            await asyncio.sleep(0)

    def node(
        self,
        name: str,
        sizes: Sequence[int] = (16, 16),
        spec: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.version += 1
        raw: dict[str, Any] = node_object(
            name, sizes, version=self.version, allocatable_units=sum(sizes), **more
        )
        raw["spec"] = dict(spec or {})
        found = msgspec.convert(raw, Node)
        self.state.apply_node(found, self.now)
        self.checks.apply_node(found)
        self.shared.apply_node(found)

    def lose_node(self, name: str) -> None:
        self.version += 1
        self.state.delete_node(name, str(self.version), self.now)
        self.checks.delete_node(name)
        self.shared.delete_node(name)

    def pod(self, name: str, units: int = 8, **more: Any) -> None:
        self.version += 1
        raw: dict[str, Any] = pod_object(name, units, version=self.version, **more)
        raw["spec"].setdefault("schedulerName", BATCH_SCHEDULER)
        self.api.objects[name] = raw
        self.see(name)

    def see(self, name: str) -> None:
        """Bring the newest version of a pod."""
        found = msgspec.json.decode(json.dumps(self.api.objects[name]), type=Pod)
        self.state.apply_pod(found, self.now)
        self.checks.apply_pod(found, self.now)
        self.shared.apply_pod(found, self.now)

    def candidates(self, name: str, *nodes: str) -> PodCandidates:
        """A pod's list."""
        return PodCandidates("default", name, f"uid-{name}", nodes)

    async def commit(self, *groups: Sequence[PodCandidates], headroom: float = 0.0) -> list[PodResult]:
        return await self.committer.commit(CommitCall(tuple(tuple(group) for group in groups), headroom))

    def assumed(self) -> int:
        return int(self.state.nodes.assumed.sum())


def raising(error: KubeApiError, *names: str) -> Callable[[str], None]:
    def answer(name: str) -> None:
        if not names or name in names:
            raise error

    return answer
