"""Small clusters for the questions, and answers to them by trying everything out."""

import itertools
import json
from dataclasses import dataclass, field, replace
from functools import cache

from allocator.names import (
    COMPUTE_RESOURCE,
    NODE_HOLDS,
    POD_ASSIGNED,
    POD_CARDS,
    POD_GPU_MODEL,
    QUEUE_GATE,
    QUEUE_NAME,
    resource_name,
)
from allocator.records import Holds, dump_assigned, dump_holds
from gpupack.whatif.cluster import Cluster
from kubeapi import objects
from kubeapi.selectors import HOSTNAME
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import MEMORY, container, node_object, pod_object, uuid

import msgspec  # isort: skip

CONTROLLER = {"ownerReferences": [{"kind": "ReplicaSet", "name": "app", "uid": "rs", "controller": True}]}


@dataclass(frozen=True)
class Pod:
    """A pod: units over its cards, where it is (None: it waits), whether the node's words hold it."""

    name: str
    units: int
    node: str = ""
    cards: tuple[int, ...] = ()
    held: bool = True
    owned: bool = True
    count: int = 1
    model: str = ""
    cpu: int = 0
    priority: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    tolerates: tuple[str, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    namespace: str = "default"
    policies: tuple[tuple[str, str], ...] = ()
    queue: str = ""
    compute: int = 0

    @property
    def each(self) -> int:
        return self.units // self.count

    def object(self):
        annotations = dict(self.policies)
        if self.count > 1:
            annotations[POD_CARDS] = str(self.count)
        if self.model:
            annotations[POD_GPU_MODEL] = self.model
        if self.node:
            shares = {"main": tuple((uuid(self.node, card), self.each) for card in self.cards)}
            annotations[POD_ASSIGNED] = dump_assigned(shares)
        made = pod_object(
            self.name,
            namespace=self.namespace,
            node=self.node,
            phase="Running" if self.node else "Pending",
            annotations=annotations,
            containers=[
                container(
                    "main",
                    self.units,
                    cpu=str(self.cpu),
                    memory="0",
                    resources={COMPUTE_RESOURCE: str(self.compute)} if self.compute else None,
                )
            ],
            spec={
                "priority": self.priority,
                "tolerations": [{"key": key, "operator": "Exists"} for key in self.tolerates],
                **({"nodeSelector": dict(self.selector)} if self.selector else {}),
            },
            labels=dict(self.labels),
        )
        made["kind"] = "Pod"
        if self.queue:
            made["metadata"]["labels"] = dict(self.labels) | {QUEUE_NAME: self.queue}
            made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            made["spec"]["schedulingGates"] = [] if self.node else [{"name": QUEUE_GATE}]
        if self.owned:
            made["metadata"] |= CONTROLLER
        return made


@dataclass(frozen=True)
class Node:
    """A node: sizes of its cards, units used on them by nobody's processes, model, taints and so on.

    `publishes_compute` is False for a daemon of an older version.
    """

    name: str
    sizes: tuple[int, ...] = (16, 16)
    foreign: tuple[int, ...] = ()
    model: str = "NVIDIA A100"
    taints: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    cordoned: bool = False
    ready: bool = True
    cpu: int = 40
    publishes_compute: bool = True
    compute_limit: int = 100

    def used(self, pods) -> list[int]:
        used = list(self.foreign or (0 for _ in self.sizes))
        for pod in pods:
            if pod.node == self.name:
                for card in pod.cards:
                    used[card] += pod.each
        return used

    def object(self, pods):
        here = [pod for pod in pods if pod.node == self.name]
        held = [pod for pod in here if pod.held]
        words = [min(size, units) for size, units in zip(self.sizes, self.used(held), strict=True)]
        compute = [
            min(self.compute_limit, sum(pod.compute for pod in held if card in pod.cards))
            for card in range(len(self.sizes))
        ]
        units = {f"uid-{pod.name}": dict.fromkeys(pod.cards, pod.each) for pod in held}
        made = node_object(
            self.name,
            self.sizes,
            words,
            version=100,
            models=[self.model] * len(self.sizes),
            cpu=str(self.cpu),
            compute=compute if self.publishes_compute else None,
            compute_limit=self.compute_limit,
            extra={NODE_HOLDS: dump_holds(Holds(100, frozenset(units), units))},
        )
        made["kind"] = "Node"
        made["metadata"]["labels"] = {HOSTNAME: self.name, **dict(self.labels)}
        if not self.ready:
            made["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        taints = self.taints if self.ready else ("node.kubernetes.io/not-ready", *self.taints)
        made["spec"] = {
            "unschedulable": self.cordoned,
            "taints": [{"key": key, "effect": "NoSchedule"} for key in taints],
        }
        return made


@dataclass(frozen=True)
class World:
    """Nodes, pods that run, and perhaps one that waits.

    Attributes:
        changes: Functions that change an object in place, by its name.
    """

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    budgets: tuple = field(default=())
    changes: dict = field(default_factory=dict)

    def changed(self, **changes) -> "World":
        return replace(self, changes=changes)

    @property
    def items(self) -> list:
        return [node.object(self.pods) for node in self.nodes] + [pod.object() for pod in self.pods]

    @property
    def text(self) -> str:
        items = json.loads(json.dumps(self.items)) if self.changes else self.items
        for item in items:
            if change := self.changes.get(item["metadata"]["name"]):
                change(item)
        return json.dumps({"kind": "List", "items": items})

    @property
    def cluster(self) -> Cluster:
        cluster = Cluster.from_json(self.text)
        if self.budgets:
            from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets  # noqa: PLC0415

            cluster.budgets = DisruptionBudgets()
            cluster.budgets.replace(list(self.budgets), "")
        return cluster

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods if pod.name == name)

    def but(self, pod: Pod) -> "World":
        others = tuple(each for each in self.pods if each.name != pod.name)
        return replace(self, pods=(*others, pod))

    def without(self, *names: str) -> "World":
        """Once pods have ended and the nodes have said so."""
        return replace(self, pods=tuple(pod for pod in self.pods if pod.name not in names))

    def free(self, node: Node) -> list[int]:
        used = node.used(self.pods)
        return [max(0, size - units) for size, units in zip(node.sizes, used, strict=True)]

    def free_compute(self, node: Node) -> list[int]:
        """Percent of compute that a node's cards have free; 0 if it does not publish any."""
        here = [pod for pod in self.pods if pod.node == node.name]
        return [
            100 - sum(pod.compute for pod in here if card in pod.cards) if node.publishes_compute else 0
            for card in range(len(node.sizes))
        ]


def by_extender(world: World, pod: Pod) -> set[str]:
    """Names of the nodes that the extender's own filter lets pass for a pod that waits."""
    state = ClusterState()
    state.replace_nodes(
        [msgspec.convert(node.object(world.pods), objects.Node) for node in world.nodes],
        "100",
        0.0,
    )
    pods = [msgspec.convert(each.object(), objects.Pod) for each in world.pods if each.name != pod.name]
    state.replace_pods(pods, "100", 0.0)
    names = [node.name for node in world.nodes]
    body = json.dumps({"Pod": replace(pod, node="").object(), "NodeNames": names}).encode()
    answer = json.loads(Extender(state, ClusterPolicies(), 0).filter(body, 60.0).answer)
    return set(answer.get("NodeNames") or ())


def offered(node: Node, pod: Pod, world: World) -> bool:
    """What kube-scheduler looks at besides cards, written down once more."""
    used = sum(each.cpu for each in world.pods if each.node == node.name)
    units = sum(each.units for each in world.pods if each.node == node.name)
    return (
        not node.cordoned
        and set(node.taints) <= set(pod.tolerates)
        and set(pod.selector) <= set(node.labels)
        and (not pod.cpu or used + pod.cpu <= node.cpu)
        and units + pod.units <= sum(node.sizes)
    )


def seats(world: World, node: Node, pod: Pod):
    """All choices of cards for a pod, given what is free."""
    cards = enumerate(zip(world.free(node), world.free_compute(node), strict=True))
    fitting = [
        card
        for card, (units, percent) in cards
        if units >= pod.each and (not pod.compute or percent >= pod.compute)
    ]
    if pod.model and pod.model not in {"", node.model}:
        return []
    return list(itertools.combinations(fitting, pod.count))


def can_take(world: World, pod: Pod) -> set[str]:
    """Names of the nodes that take a pod that waits, by trying all cards."""
    others = world.without(pod.name)
    return {node.name for node in world.nodes if offered(node, pod, others) and seats(others, node, pod)}


def most_pods(world: World, node: Node, each: int, count: int, compute: int = 0) -> int:
    """How many pods of `count` cards with `each` units and so much compute fit at most."""
    return _most(
        tuple(sorted(zip(world.free(node), world.free_compute(node), strict=True))), each, count, compute
    )


@cache
def _most(free: tuple[tuple[int, int], ...], each: int, count: int, compute: int) -> int:
    best = 0
    fitting = [
        card
        for card, (units, percent) in enumerate(free)
        if units >= each and (not compute or percent >= compute)
    ]
    for cards in itertools.combinations(fitting, count):
        left = [
            (units - each, percent - compute) if card in cards else (units, percent)
            for card, (units, percent) in enumerate(free)
        ]
        best = max(best, 1 + _most(tuple(sorted(left)), each, count, compute))
    return best


RESOURCE = resource_name(1024)
__all__ = ["MEMORY", "RESOURCE", "Node", "Pod", "World", "by_extender", "can_take", "most_pods"]

A100, L40S = "NVIDIA A100-SXM4-40GB", "NVIDIA L40S"
EXAMPLE = World(
    (
        Node("gpu-a", (39, 39), model=A100),
        Node("gpu-b", (39, 39), model=A100),
        Node("gpu-c", (44, 44), model=L40S),
        Node("gpu-d", (39, 39), model=A100, taints=("team-b",)),
    ),
    (
        Pod("train-1", 30, "gpu-a", (0,), namespace="team-a"),
        Pod("chat-1", 10, "gpu-a", (1,), namespace="team-a"),
        Pod("chat-2", 10, "gpu-a", (1,), namespace="team-a"),
        Pod("train-2", 24, "gpu-b", (0,), namespace="team-b"),
        Pod("embed-1", 12, "gpu-b", (1,), namespace="team-b"),
        Pod("render-1", 20, "gpu-c", (0,), namespace="team-b"),
        Pod("inference", 32, model="*A100*", namespace="team-a"),
    ),
)
"""The cluster of docs/ask.md."""


def without_words(node):
    amounts = node["status"]["allocatable"]
    for name in [name for name in amounts if name.startswith("gpupack.io/")]:
        del amounts[name]
    node["metadata"]["annotations"] = {}
