"""Says whether kube-scheduler takes a pod on a node, and if not why: the one answer for everybody. Pure.

These are the rules alone, on plain values. Batch mode, `why`, the queue and the autoscaler each know in their
own way what is on a node. The rules are compared with the real kube-scheduler on random scenes
(tests/cluster/test_kube_scheduler_oracle.py).

| filter of kube-scheduler | rule |
|---|---|
| NodeUnschedulable, TaintToleration, NodeAffinity | `find_node_rejection` |
| NodePorts | `HostPort.conflicts_with` |
| NodeResourcesFit | `list_shortages` |
| InterPodAffinity, the required half | `pod_affinity.PodAffinityFilter` |

Volumes, claims, topology spread and features of nodes are not looked at. Neither are labels of namespaces
other than their names, nor DeviceClasses that serve a resource which a node does not offer.
`list_unchecked_rules` of `gpupack.whatif.kube_checks` names all these for people. Batch mode leaves pods with
the first four to kube-scheduler, and takes no node from which the last two could keep a pod.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from allocator.names import is_card_resource
from kubeapi.selectors import UNSCHEDULABLE, NodeRules, NodeTraits, Taint, list_repelling_taints
from scheduler_plugin.cache.amounts import RESOURCES, Amounts
from scheduler_plugin.scheduling.pod_affinity import PodAffinityFilter

NOT_READY: Final = "NotReady"
CORDONED: Final = "Cordoned"
TAINT: Final = "Taint"
SELECTOR: Final = "NodeSelector"
PORTS: Final = "Ports"
PODS: Final = "Pods"
CPU: Final = "Cpu"
MEMORY: Final = "Memory"
RESOURCE: Final = "OtherResource"
SUM: Final = "NodeSum"
NEIGHBOURS: Final = "PodAffinity"

SHORTAGES: Final = frozenset({PODS, CPU, MEMORY, RESOURCE, SUM})
"""Reasons why a node has too little left; pods that leave it give something back."""

LASTING: Final = frozenset({NOT_READY, CORDONED, TAINT, SELECTOR})
"""Reasons that the end of pods does not change."""

NOT_READY_TAINTS: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Keys of the taints of nodes that are not Ready. kube-scheduler goes by them, not by the condition."""

DEFAULT_MAX_PODS: Final = 110
"""Pods that a kubelet takes where it is not told otherwise (`maxPods` of KubeletConfiguration)."""

ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104  (compared, not listened on)

_REASONS: Final = (PODS, CPU, MEMORY, SUM, SUM)
"""Reasons of shortages, by position of `Amounts`."""


class Shortage(NamedTuple):
    """A resource of which a node has not enough left.

    Attributes:
        resource: Its name; cpu is counted in thousandths of a core, memory in bytes.
        used: What the pods that count on the node ask for, or hold.
        capacity: What the node has for pods.
    """

    resource: str
    asked: int
    used: int
    capacity: int

    @property
    def left(self) -> int:
        return max(0, self.capacity - self.used)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why kube-scheduler does not take a pod on a node.

    Attributes:
        reason: A constant of those above.
        detail: What tells two such nodes apart: the taint, the resource, the kind of affinity.
    """

    reason: str
    detail: str = ""
    shortage: Shortage | None = field(default=None, compare=False)


class HostPort(NamedTuple):
    """A port of the host that a container wants."""

    port: int
    protocol: str = "TCP"
    address: str = ALL_ADDRESSES

    @classmethod
    def read(cls, port: int, protocol: str, address: str) -> "HostPort":
        return cls(port, protocol or "TCP", address or ALL_ADDRESSES)

    def conflicts_with(self, other: "HostPort") -> bool:
        """Return True if two containers of one host cannot both have their port."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        return self.address == other.address or ALL_ADDRESSES in {self.address, other.address}


def have_conflict(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> bool:
    return any(one.conflicts_with(other) for other in used for one in wanted)


class PodDemands(Protocol):
    """What a pod asks of a node.

    Attributes:
        rules: Nodes that it may run on; its tolerations are not looked at.
        tolerates: Whether it tolerates a taint.
    """

    @property
    def rules(self) -> NodeRules: ...
    @property
    def tolerates(self) -> Callable[[Taint], bool]: ...
    @property
    def amounts(self) -> Amounts: ...
    @property
    def ports(self) -> frozenset[HostPort]: ...


class NodeRoom(NamedTuple):
    """What a node has, what the pods there take of it, and a function that lists their ports of the host."""

    used: Amounts
    capacity: Amounts
    list_ports: Callable[[], Iterable[HostPort]]


def list_rejections(
    demands: PodDemands, node: NodeTraits, room: NodeRoom, affinity: PodAffinityFilter | None = None
) -> list[Rejection]:
    """List why kube-scheduler does not take a pod on a node: all that its first refusing filter says."""
    found = find_node_rejection(node, demands.rules, demands.tolerates)
    if found is not None:
        return [found]
    if demands.ports and have_conflict(demands.ports, room.list_ports()):
        return [Rejection(PORTS)]
    if short := list(list_shortages(demands.amounts, room.used, room.capacity)):
        return short
    refused = affinity.find_refusal(node.labels) if affinity is not None else ""
    return [Rejection(NEIGHBOURS, refused)] if refused else []


def find_node_rejection(
    node: NodeTraits, rules: NodeRules, tolerates: Callable[[Taint], bool]
) -> Rejection | None:
    """Find what a node says itself that keeps a pod off, whatever runs there; None: nothing.

    Args:
        rules: Rules of the pod; its tolerations are not looked at.
        tolerates: Whether the pod tolerates a taint.
    """
    if node.unschedulable and not tolerates(UNSCHEDULABLE):
        return Rejection(CORDONED)
    taints = list_repelling_taints(node.taints, unschedulable=False) if node.taints else []
    repelling = [taint for taint in taints if not tolerates(taint)]
    if any(taint.key in NOT_READY_TAINTS for taint in repelling):
        return Rejection(NOT_READY)
    if repelling:
        return Rejection(TAINT, format_taint(repelling[0]))
    return None if rules.selects_node(node.name, node.labels) else Rejection(SELECTOR)


def can_run_on(node: NodeTraits, rules: NodeRules) -> bool:
    """Tell whether a pod with these rules, tolerations among them, may run on a node at all."""
    return find_node_rejection(node, rules, rules.tolerates) is None


def list_shortages(asked: Amounts, used: Amounts, capacity: Amounts) -> Iterator[Rejection]:
    """List the resources of which a node has not enough left."""
    for resource in asked.list_short(capacity.subtract(used)):
        numbers = asked.get(resource), used.get(resource), capacity.get(resource)
        if isinstance(resource, str):
            yield Rejection(RESOURCE, resource, Shortage(resource, *numbers))
        else:
            yield Rejection(_REASONS[resource], shortage=Shortage(RESOURCES[resource], *numbers))


def leave_out_undecided(asked: Amounts, capacity: Amounts) -> Amounts:
    """Leave out what a node does not offer but a DeviceClass may serve, see `can_be_served_by_claim`."""
    if not asked.others:
        return asked
    decided = (
        (resource, amount)
        for resource, amount in asked.others
        if capacity.get(resource) > 0 or not can_be_served_by_claim(resource)
    )
    return asked._replace(others=tuple(decided))


def can_be_served_by_claim(resource: str) -> bool:
    """Tell whether a DeviceClass may serve a resource on nodes that do not offer it.

    From Kubernetes 1.36 on kube-scheduler then asks DRA drivers for devices. Nodes and pods tell nothing of
    them.
    """
    domain = resource.rpartition("/")[0]
    return bool(domain) and not domain.endswith("kubernetes.io") and not is_card_resource(resource)


def format_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
