"""What kube-scheduler looks at besides the cards, as far as nodes and pods tell it.

NodeUnschedulable, NodeAffinity, TaintToleration, NodePorts, NodeResourcesFit and the required half of
InterPodAffinity. Not volumes, claims of resources and topology spread: `unchecked` names a pod's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from allocator.errors import QuantityError
from allocator.names import PERCENT_RESOURCE
from allocator.quantity import parse_bytes
from gpupack.whatif.affinity import Neighbours
from gpupack.whatif.objects import AskPod
from kubeapi.selectors import UNSCHEDULABLE, NodeRules, Taint, list_repelling_taints
from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.cache.pods import other_requests, pod_requests, requested
from scheduler_plugin.cache.sums import sum_left
from scheduler_plugin.queue.cache.pods import node_rules

if TYPE_CHECKING:
    from gpupack.whatif.cluster import Cluster

NOT_READY: Final = "NotReady"
CORDONED: Final = "Cordoned"
TAINT: Final = "Taint"
SELECTOR: Final = "NodeSelector"
CPU: Final = "Cpu"
MEMORY: Final = "Memory"
PODS: Final = "Pods"
RESOURCE: Final = "OtherResource"
PORTS: Final = "Ports"
NEIGHBOURS: Final = "PodAffinity"
SUM: Final = "NodeSum"

SYSTEM: Final = "node.kubernetes.io/"
"""How the keys of the taints begin that Kubernetes sets on nodes in trouble."""

_REMEMBERED: Final = 3
_FEW: Final = 10
"""Of so many nodes one or none is asked about: then looking at all of them is not worth it."""
UNKNOWN: Final = 1 << 30
"""What counts as left where a node does not say how much it has: kube-scheduler is not asked then."""


@dataclass(frozen=True, slots=True)
class Block:
    """Why kube-scheduler does not offer a node.

    Attributes:
        reason: One of the constants above.
        detail: What tells two such nodes apart: the taint, the resource.
    """

    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Wish:
    """What a pod asks of a node besides cards.

    Attributes:
        tolerates: Whether it tolerates a taint.
        rules: Nodes that it may run on; its tolerations are not looked at.
        cpu_milli: Thousandths of a core.
        memory_bytes: Bytes of host memory.
        others: Amounts of other resources, by name.
        ports: Ports of the host.
        pod: Whose wish it is, None for one that is not there yet.
    """

    tolerates: Callable[[Taint], bool]
    rules: NodeRules = field(default_factory=NodeRules)
    cpu_milli: int = 0
    memory_bytes: int = 0
    others: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[int] = frozenset()
    pod: AskPod | None = None

    @classmethod
    def of(cls, pod: AskPod) -> "Wish":
        """What a pod asks for."""
        rules = node_rules(pod)
        cpu_milli, memory_bytes = pod_requests(pod)
        return cls(
            lambda taint: any(each.tolerates(taint) for each in rules.tolerations),
            rules,
            cpu_milli,
            memory_bytes,
            dict(other_requests(pod)),
            ports(pod),
            pod,
        )


def any_pod() -> Wish:
    """A pod of which nothing is known: it tolerates the taints of people, and none of Kubernetes' own."""
    return Wish(lambda taint: not taint.key.startswith(SYSTEM))


def plain_pod() -> Wish:
    """A pod that tolerates no taint, and of which nothing else is known."""
    return Wish(lambda _taint: False)


class Hosts:
    """Everything about nodes that kube-scheduler looks at; of one moment.

    Args:
        cluster: The cluster, which must not change any more.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._sums: dict[str, Counter[str]] = {}
        self._left: dict[str, dict[str, int]] = {}
        self._asked: list[tuple[Wish, dict[str, Block]]] = []

    def blocks(
        self, wish: Wish, *, leaving: Iterable[str] = (), only: Iterable[str] | None = None
    ) -> dict[str, Block]:
        """Say of every node that kube-scheduler would not offer why not: the first reason in its order.

        Args:
            wish: What the pod asks for.
            leaving: UIDs of pods to leave out of what is in use: the pod itself, when it is to move.
            only: Names of the nodes to look at, None: all.
        """
        gone = frozenset(leaving)
        names = None if only is None else list(only)
        if gone or self._is_cheaper(wish, names):
            return self._blocks(wish, gone, self._cluster.nodes if names is None else names)
        known = self._known(wish)
        return known if names is None else {name: known[name] for name in names if name in known}

    def _is_cheaper(self, wish: Wish, names: list[str] | None) -> bool:
        """Tell whether to look at some nodes alone, in place of all nodes once."""
        if names is None or any(each is wish for each, _ in self._asked):
            return False
        return _FEW * len(names) < len(self._cluster.nodes)

    def blocks_of_nodes(self, wish: Wish) -> dict[str, Block]:
        """Say of every node that a pod may not run on why not, whatever runs there."""
        blocks = ((name, self._by_node(name, wish)) for name in self._cluster.nodes)
        return {name: block for name, block in blocks if block is not None}

    def lets(self, wish: Wish, name: str, gone: frozenset[str]) -> bool:
        """Tell whether kube-scheduler would offer a node on which enough of everything is left."""
        if self._by_node(name, wish) is not None:
            return False
        return not (wish.ports and wish.ports & self._ports(name, gone))

    def _known(self, wish: Wish) -> dict[str, Block]:
        """What was found for a wish before: one pod is asked about many times."""
        for each, known in self._asked:
            if each is wish:
                return known
        known = self._blocks(wish, frozenset(), self._cluster.nodes)
        self._asked = [*self._asked[-_REMEMBERED:], (wish, known)]
        return known

    def _blocks(self, wish: Wish, gone: frozenset[str], names: Iterable[str]) -> dict[str, Block]:
        near = None if wish.pod is None else self.neighbours.blocked(wish.pod, gone)
        found: dict[str, Block] = {}
        for name in names:
            block = self._by_node(name, wish) or self._by_room(name, wish, gone)
            if block is None and near is not None:
                detail = near(name, self._cluster.nodes[name])
                block = Block(NEIGHBOURS, detail) if detail else None
            if block is not None:
                found[name] = block
        return found

    def _by_node(self, name: str, wish: Wish) -> Block | None:
        """What the node's own words say: ready, cordon, selectors, taints."""
        node = self._cluster.nodes[name]
        if node.ready is False:
            return Block(NOT_READY)
        if node.spec.unschedulable and not wish.tolerates(UNSCHEDULABLE):
            return Block(CORDONED)
        if not wish.rules.selects_node(name, node.metadata.labels or {}):
            return Block(SELECTOR)
        taints = self.taints(name, wish)
        return Block(TAINT, taints[0]) if taints else None

    def taints(self, name: str, wish: Wish) -> list[str]:
        """The taints of a node that keep a pod off, as kubectl writes them; also of an ended cordon."""
        spec = self._cluster.nodes[name].spec
        return [
            f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            for taint in list_repelling_taints(spec.taints or (), unschedulable=spec.unschedulable)
            if not (spec.unschedulable and taint == UNSCHEDULABLE) and not wish.tolerates(taint)
        ]

    def _by_room(self, name: str, wish: Wish, gone: frozenset[str]) -> Block | None:
        """What the pods of the node leave: their number, cpu, host memory, other resources, ports."""
        nodes = self._cluster.state.nodes
        row = nodes.rows[name]
        pods = [
            pod
            for uid in gone
            if (pod := self._cluster.pods.get(uid)) is not None and pod.spec.node_name == name
        ]
        back = [pod_requests(pod) for pod in pods]
        if self.pod_room(name) + len(pods) < 1:
            return Block(PODS)
        if wish.cpu_milli:
            left = self._free_cpu[row] + sum(milli for milli, _ in back)
            if wish.cpu_milli > left:
                return Block(CPU)
        if wish.memory_bytes:
            left = self._free_memory[row] + sum(size for _, size in back)
            if wish.memory_bytes > left:
                return Block(MEMORY)
        for resource, amount in wish.others.items():
            left = self.capacity(name, resource) - self.in_use(resource)[name]
            if amount > left + sum(requested(pod, resource, _whole) for pod in pods):
                return Block(RESOURCE, resource)
        if wish.ports and wish.ports & self._ports(name, gone):
            return Block(PORTS)
        return None

    @cached_property
    def _free_cpu(self) -> list[int]:
        nodes = self._cluster.state.nodes
        free: list[int] = (nodes.cpu_capacity - nodes.cpu_used).tolist()
        return free

    @cached_property
    def _free_memory(self) -> list[int]:
        nodes = self._cluster.state.nodes
        free: list[int] = (nodes.memory_capacity - nodes.memory_used).tolist()
        return free

    def sum_left(self, name: str, resource: str) -> int:
        """What kube-scheduler has left of a resource of GPU memory: allocatable less what pods ask for.

        It counts a pod on an unhealthy card, whose units the node does not offer, against the healthy ones.
        """
        return self.sums(resource)[name]

    def sums(self, resource: str) -> dict[str, int]:
        """`sum_left` of every node; very much where a node does not say how much it offers."""
        known = self._left.get(resource)
        if known is None:
            percent, books = resource == PERCENT_RESOURCE, self._cluster.state.books
            left = ((name, sum_left(books[name], percent=percent)) for name in self._cluster.nodes)
            known = self._left[resource] = {name: UNKNOWN if units is None else units for name, units in left}
        return known

    def too_little(
        self,
        units: int,
        *,
        percent: bool,
        leaving: Iterable[str] = (),
        only: Iterable[str] | None = None,
    ) -> frozenset[str]:
        """Names of the nodes whose sum does not suffice by kube-scheduler's count, cards or not.

        Nodes that do not say how much they offer are left to the cards.
        """
        resource = PERCENT_RESOURCE if percent else self._cluster.state.resource
        back: Counter[str] = Counter()
        for uid in leaving:
            pod = self._cluster.pods.get(uid)
            if pod is not None:
                back[pod.spec.node_name] += requested(pod, resource, _whole)
        sums = self.sums(resource)
        return frozenset(
            name
            for name in (self._cluster.nodes if only is None else only)
            if sums[name] + (back[name] if back else 0) < units
        )

    def capacity(self, name: str, resource: str) -> int:
        """What a node offers of a resource; 0 where it says nothing that can be read."""
        value = (self._cluster.nodes[name].status.allocatable or {}).get(resource, 0)
        try:
            return _whole(value)
        except QuantityError:
            return 0

    def pod_room(self, name: str) -> int:
        """How many more pods a node takes; very many where it does not say."""
        return self._pod_rooms[name]

    def in_use(self, resource: str) -> Counter[str]:
        """What the pods of every node ask of a resource that is not ours; of those see `sums`."""
        known = self._sums.get(resource)
        if known is None:
            known = self._sums[resource] = Counter()
            for pod in self._living:
                amount = requested(pod, resource, _whole)
                if amount:
                    known[pod.spec.node_name] += amount
        return known

    @cached_property
    def neighbours(self) -> Neighbours:
        """Pods that want others near or far."""
        return Neighbours(self._cluster.nodes, self._living)

    @cached_property
    def _living(self) -> list[AskPod]:
        """Pods that have a node and are not over."""
        records = self._cluster.state.pods
        return [
            pod
            for uid, pod in self._cluster.pods.items()
            if pod.spec.node_name and (record := records.get(uid)) is not None and not record.ended
        ]

    @cached_property
    def _pod_rooms(self) -> dict[str, int]:
        counts = Counter(pod.spec.node_name for pod in self._living)
        return {
            name: self.capacity(name, "pods") - counts[name]
            if "pods" in (node.status.allocatable or {})
            else UNKNOWN
            for name, node in self._cluster.nodes.items()
        }

    def _ports(self, name: str, gone: frozenset[str]) -> set[int]:
        return {
            port
            for pod in self._with_ports
            if pod.spec.node_name == name and pod.metadata.uid not in gone
            for port in ports(pod)
        }

    @cached_property
    def _with_ports(self) -> list[AskPod]:
        return [pod for pod in self._living if ports(pod)]

    def offered(self, blocks: Mapping[str, Block]) -> BoolArray:
        """The rows of nodes that kube-scheduler offers: bool[R]."""
        nodes = self._cluster.state.nodes
        mask: BoolArray = np.zeros(nodes.row_count, dtype=np.bool_)
        mask[[row for name, row in nodes.rows.items() if name not in blocks]] = True
        return mask


def unchecked(pod: AskPod) -> list[str]:
    """Name what kube-scheduler looks at for a pod and nodes and pods do not tell."""
    found = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            found.append(f"the volume of claim {volume.persistent_volume_claim.claim_name}")
        elif volume.ephemeral is not None:
            found.append("an ephemeral volume")
    if pod.spec.resource_claims:
        found.append("claims of resources (DRA)")
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints or ()):
        found.append("topology spread")
    return found


def ports(pod: AskPod) -> frozenset[int]:
    """Ports of the host that a pod wants."""
    return frozenset(
        port.host_port
        for container in pod.spec.containers or ()
        for port in container.ports or ()
        if port.host_port
    )


def _whole(value: str | int) -> int:
    """Read an amount of a resource in whole numbers or bytes."""
    return parse_bytes(value)
