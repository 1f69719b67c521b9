"""The publisher on one Node and a ledger: no HTTP, no waiting."""

import asyncio
import json

import msgspec

from allocator.ledger import CheckpointEntry, Ledger
from deviceplugin.allocation.inventory import card_records
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.publishing.publisher import NodePublisher
from kubeapi.errors import Conflict, KubeApiError
from tests.checkpoint_world import FakeCheckpoint
from tests.ledger_world import RESOURCE as GIB
from tests.ledger_world import Containers, cards, ids, pod


class FakeApi:
    """One Node; merges patches of its status as the API server does."""

    def __init__(self) -> None:
        self.node = {
            "metadata": {"name": "n1", "annotations": {}},
            "status": {"capacity": {}, "allocatable": {}},
        }
        self.version = 1
        self.failures: list[KubeApiError] = []
        self.patches: list[dict] = []
        self.empty_patches = 0
        self.dropped: set[str] = set()
        self.notes: list[tuple[str, str, str, dict[str, str]]] = []

    def body(self) -> bytes:
        self.node["metadata"]["resourceVersion"] = str(self.version)
        return json.dumps(self.node).encode()

    def decoded(self) -> NodeObject:
        return msgspec.json.decode(self.body(), type=NodeObject)

    async def patch_node_status(self, name: str, body: dict, *, timeout_s: float) -> bytes:
        assert name == "n1"
        if self.failures:
            raise self.failures.pop(0)
        if body.get("metadata", {}).get("resourceVersion", str(self.version)) != str(self.version):
            raise Conflict("the object has been modified", reason="Conflict")
        if not body:
            self.empty_patches += 1
            return self.body()
        self.patches.append(body)
        self.version += 1
        self.node["metadata"]["annotations"] |= body["metadata"]["annotations"]
        for key in self.dropped:
            self.node["metadata"]["annotations"].pop(key, None)
        for part in ("capacity", "allocatable"):
            merged = self.node["status"][part] | body.get("status", {}).get(part, {})
            self.node["status"][part] = {key: value for key, value in merged.items() if value is not None}
        return self.body()

    async def annotate_pod(self, namespace, name, uid, annotations, *, timeout_s) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        self.notes.append((namespace, name, uid, annotations))
        return b"{}"


class Bench:
    """A node with pod `a` on its way."""

    def __init__(self, gap_s: float = 2.0) -> None:
        self.now_s = 100.0
        self.api = FakeApi()
        self.account = LedgerService(
            Ledger(cards(8, 8)), FakeCheckpoint().read, GIB, clock=lambda: self.now_s
        )
        self.ledger = self.account.ledger
        self.nodes = OwnNode(self.account, "n1", 1024)
        self.pods = OwnPods(self.account, GIB, lambda: None, holds_pod=self.nodes.holds_pod)
        self.publisher = NodePublisher(
            self.api,
            self.account,
            self.nodes,
            self.pods,
            node_name="n1",
            unit_mib=1024,
            inventory=lambda: card_records(self.ledger.cards(), GPUS),
            gap_s=gap_s,
            now_ms=lambda: 50,
        )
        self.nodes.replace([self.api.decoded()], "1")

    def complete(self) -> None:
        self.ledger.apply_pod_list([], self.now_s, self.now_s)
        self.checkpoint()

    def bind(self, containers: int | Containers) -> None:
        """Pod `a` is bound to c0."""
        self.ledger.apply_pod(pod("a", containers, "c0"), self.now_s)

    def allocate(self, *slots: int) -> None:
        """Its next container is given units of c0."""
        self.ledger.allocate(ids("c0", *slots), self.now_s, {("ns", "pod-a")})

    def admit(self, *, written: bool = True) -> None:
        self.bind(3)
        self.allocate(0, 1, 2)
        if written:
            self.checkpoint(a=ids("c0", 0, 1, 2))
            self.ledger.record_cgroup_probe(["a"], ["a"], self.now_s)

    def checkpoint(self, **held: frozenset[str]) -> None:
        """The kubelet writes its checkpoint: IDs by pod."""
        self.ledger.apply_checkpoint(
            [CheckpointEntry(uid, "main", GIB, ids) for uid, ids in held.items()], self.now_s
        )

    def end(self, **held: frozenset[str]) -> None:
        """Pod `a` is deleted, its containers and its entry are gone; the checkpoint has `held`."""
        self.ledger.remove_pod("a", self.now_s)
        self.checkpoint(**held)
        self.ledger.record_cgroup_probe(["a"], [], self.now_s)

    def undo(self) -> None:
        """Somebody else writes words."""
        for part in ("capacity", "allocatable"):
            self.api.node["status"][part]["gpupack.io/packed-used-0"] = 5
        self.api.version += 1
        self.nodes.apply_node(self.api.decoded())

    async def until_s(self, end_s: float) -> None:
        """Step whenever a step wants to."""
        while (wait_s := await self.step()) is not None and self.now_s + wait_s <= end_s:
            self.now_s += wait_s
        self.now_s = end_s

    async def step(self) -> float | None:
        return await self.publisher._step()

    def said(self) -> tuple[tuple[int, ...], set[str]]:
        told = self.api.decoded()
        words, holds = told.read_words(), told.read_accounted_pods()
        assert words is not None
        assert holds is not None
        return words.used, set(holds.uids)

    async def leave(self) -> None:
        """Run until the last patch is written; `run` must end by itself then."""
        running = asyncio.create_task(self.publisher.run())
        await self.publisher.publish_full()
        await running


class _Gpu:
    schedulable_mib = 8192
    memory_node = None
    parent = None


GPUS = (_Gpu(), _Gpu())
