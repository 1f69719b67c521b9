"""A made-up cluster with all that the dashboard shows: pods of many sizes, over-use, trouble of nodes."""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from allocator.names import NODE_CARDS, NODE_CORDON, NODE_HOLDS, POD_ALLOCATION, resource_name
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, Holds, MemoryRecord, dump_allocation, dump_cards, dump_holds

RESOURCE: Final = resource_name(1024)
MODELS: Final = (
    ("h100", "NVIDIA H100 80GB HBM3", 79, 8),
    ("a100", "NVIDIA A100-SXM4-40GB", 39, 8),
    ("l40s", "NVIDIA L40S", 44, 4),
    ("t4", "Tesla T4", 14, 2),
)
TEAMS: Final = ("vision", "speech", "search", "ads", "research")
SIZES: Final = (2, 4, 4, 8, 8, 12, 16, 24, 39, 79)
PODS: Final = 4
_BEGINNING: Final = 1_700_000_000_000


@dataclass
class FleetNode:
    """Node of the fleet: its cards' sizes, and pods by name with units by card."""

    name: str
    model: str
    sizes: list[int]
    labels: dict[str, str]
    pods: dict[str, dict[int, int]] = field(default_factory=dict)
    beyond: dict[int, int] = field(default_factory=dict)
    unhealthy: set[int] = field(default_factory=set)
    cordoned: set[int] = field(default_factory=set)
    ready: bool = True
    unschedulable: bool = False
    daemon: bool = True
    corrupt: bool = False
    revision: int = _BEGINNING

    def promised(self, card: int) -> int:
        """Units of pods on a card."""
        return sum(units.get(card, 0) for units in self.pods.values())

    def free(self, card: int) -> int:
        """Units that a pod could get."""
        if card in self.unhealthy or card in self.cordoned:
            return 0
        return self.sizes[card] - self.promised(card) - self.beyond.get(card, 0)

    def uuid(self, card: int) -> str:
        """Name a card as the driver does."""
        return f"GPU-{zlib.crc32(self.name.encode()):08x}-0000-4000-8000-{card:012x}"


class Fleet:
    """Nodes and pods, the same for the same seed.

    Args:
        nodes: how many.
        seed: seed of the random numbers.
        uniform: all nodes have eight H100 and `pods`, as in the figures that are promised.
        pods: on each of these.
    """

    def __init__(self, nodes: int, seed: int = 7, *, uniform: bool = False, pods: int = PODS) -> None:
        self.random = random.Random(seed)
        self.nodes = [self._node(index, uniform=uniform) for index in range(nodes)]
        self._next = 0
        self.uids: dict[str, str] = {}
        for node in self.nodes:
            if uniform:
                for _ in range(pods):
                    self.place(node)
            else:
                self._fill(node)
        if not uniform:
            self._trouble()

    def _node(self, index: int, *, uniform: bool) -> FleetNode:
        short, model, size, cards = MODELS[0] if uniform else self.random.choices(MODELS, (4, 3, 4, 2))[0]
        labels = {
            "gpupack.io/node": "true",
            "topology.kubernetes.io/zone": f"zone-{'abc'[index % 3]}",
            "example.com/pool": self.random.choice(("training", "serving", "serving")),
        }
        node = FleetNode(f"gpu-{short}-{index:03d}", model, [size] * cards, labels)
        labels["kubernetes.io/hostname"] = node.name
        return node

    def _fill(self, node: FleetNode) -> None:
        wanted = self.random.uniform(0.25, 0.95) * sum(node.sizes)
        for _ in range(100):
            if sum(node.promised(card) for card in range(len(node.sizes))) >= wanted:
                return
            self.place(node)

    def place(self, node: FleetNode, units: int | None = None) -> str | None:
        """Put a new pod on the fullest card of a node that takes it; returns its name, None for no room."""
        units = units or self.random.choice(SIZES)
        fitting = [card for card in range(len(node.sizes)) if node.free(card) >= units]
        if not fitting:
            return None
        self._next += 1
        kind = self.random.choice(("server", "train", "notebook", "batch"))
        name = f"{kind}-{self._next:05d}"
        node.pods[name] = {min(fitting, key=lambda card: (node.free(card), card)): units}
        node.revision += 1
        return name

    def _trouble(self) -> None:
        """Something of everything that goes wrong."""
        chosen = iter(self.random.sample(self.nodes, min(9, len(self.nodes))))
        for node, change in zip(
            chosen,
            ("unhealthy", "cordoned", "beyond", "beyond", "foreign", "shut", "away", "daemon", "corrupt"),
            strict=False,
        ):
            card = self.random.randrange(len(node.sizes))
            if change == "unhealthy":
                node.unhealthy.add(card)
            elif change == "cordoned":
                node.cordoned |= {card, (card + 1) % len(node.sizes)}
            elif change == "beyond":
                node.beyond[card] = max(0, min(5, node.free(card)))
            elif change == "foreign":
                node.pods = {name: on for name, on in node.pods.items() if card not in on}
                node.beyond[card] = node.sizes[card] // 3
            node.unschedulable |= change == "shut"
            node.ready &= change != "away"
            node.daemon &= change != "daemon"
            node.corrupt |= change == "corrupt"

    def uid(self, pod: str) -> str:
        """UID of a pod: what an API server gave it, else one made up."""
        return self.uids.get(pod, f"uid-{pod}")

    def team(self, pod: str) -> str:
        """Namespace of a pod."""
        return TEAMS[int(pod.rpartition("-")[2]) % len(TEAMS)]

    def node_object(self, node: FleetNode) -> dict[str, Any]:
        """Make a node as the API server has it."""
        cards = range(len(node.sizes))
        out = node.unhealthy | node.cordoned
        used = [
            node.sizes[card] if card in out else node.promised(card) + node.beyond.get(card, 0)
            for card in cards
        ]
        words = node_resources(NodeWords.of(1024, node.sizes, used, node.revision))
        if node.corrupt:
            words.popitem()
        amounts = {
            "cpu": "96",
            "memory": "768Gi",
            "pods": "110",
            RESOURCE: str(sum(node.sizes) if node.daemon else 0),
            **{name: str(value) for name, value in words.items()},
        }
        inventory = [
            CardRecord(
                node.uuid(card),
                card,
                node.model,
                node.sizes[card] * 1024 + 400,
                0,
                card not in node.unhealthy,
            )
            for card in cards
        ]
        holds = Holds(
            1,
            frozenset(self.uid(name) for name in node.pods),
            {self.uid(name): on for name, on in node.pods.items()},
        )
        annotations = {NODE_CARDS: dump_cards(inventory), NODE_HOLDS: dump_holds(holds)}
        if node.cordoned:
            annotations[NODE_CORDON] = ",".join(node.uuid(card) for card in sorted(node.cordoned))
        return {
            "kind": "Node",
            "metadata": {"name": node.name, "labels": node.labels, "annotations": annotations},
            "spec": {"unschedulable": True} if node.unschedulable else {},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True" if node.ready else "Unknown"}],
            },
        }

    def pod_object(self, name: str, units: int, node: FleetNode | None = None) -> dict[str, Any]:
        """Make a pod as the API server has it; pending without a node."""
        team = self.team(name)
        container = {
            "name": "main",
            "image": "example.invalid/none",
            "resources": {"limits": {RESOURCE: str(units)}},
        }
        pod: dict[str, Any] = {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": team,
                "uid": self.uid(name),
                "labels": {"team": team, "app": name.partition("-")[0]},
                "creationTimestamp": "2026-11-22T06:00:00Z",
            },
            "spec": {"containers": [container], "schedulerName": "gpupack-scheduler"},
            "status": {"phase": "Running" if node is not None else "Pending"},
        }
        if node is not None:
            shares = tuple((node.uuid(card), share) for card, share in node.pods[name].items())
            memory = {"main": {uuid: MemoryRecord(*self._use(node, name, share)) for uuid, share in shares}}
            allocation = dump_allocation(self.uid(name), {"main": shares}, memory)
            pod["metadata"]["annotations"] = {POD_ALLOCATION: allocation}
            pod["spec"]["nodeName"] = node.name
        return pod

    def _use(self, node: FleetNode, name: str, units: int) -> tuple[str, int]:
        """What holds a pod to its share, and MiB that it uses: its card's first pod all that is beyond."""
        held = "driver" if node.model.startswith("NVIDIA H100") else "accounted"
        (card,) = node.pods[name]
        first = next(pod for pod, on in node.pods.items() if card in on)
        if node.beyond.get(card) and first == name:
            return held, (units + node.beyond[card]) * 1024 - 300
        return held, int(units * 1024 * (0.35 + (zlib.crc32(name.encode()) % 60) / 100))

    def pod_objects(self) -> Iterator[dict[str, Any]]:
        """All pods that run."""
        for node in self.nodes:
            for name, on in node.pods.items():
                yield self.pod_object(name, sum(on.values()), node)

    def pending_objects(self) -> Iterator[dict[str, Any]]:
        """Some pods that wait."""
        for number, (units, minutes) in enumerate(((80, 42), (79, 11), (60, 3)), start=1):
            pod = self.pod_object(f"train-{90000 + number}", units)
            since = datetime.now(UTC) - timedelta(minutes=minutes)
            pod["metadata"]["creationTimestamp"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
            yield pod

    def items(self) -> list[dict[str, Any]]:
        """Everything, as `kubectl get nodes,pods -A -o json` lists it."""
        return [*map(self.node_object, self.nodes), *self.pod_objects(), *self.pending_objects()]
