"""Checks what kube-scheduler checks besides the cards, as far as nodes and pods tell it.

NodeUnschedulable, NodeAffinity, TaintToleration, NodePorts, NodeResourcesFit and the required half of
InterPodAffinity. Not volumes, claims of resources and topology spread: `list_unchecked_rules` names a pod's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from allocator.errors import QuantityError
from allocator.names import PERCENT_RESOURCE
from allocator.quantity import parse_bytes
from gpupack.whatif.affinity import InterPodAffinity
from gpupack.whatif.objects import KubeNode, KubePod
from kubeapi.selectors import (
    UNSCHEDULABLE,
    NodeRejection,
    NodeRules,
    NodeTraits,
    Taint,
    find_node_rejection,
    list_repelling_taints,
)
from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.cache.kubelet_sums import compute_sum_left
from scheduler_plugin.cache.pods import sum_host_requests, sum_other_requests, sum_requests
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.pods import read_pod_node_rules

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

_REASONS: Final = {
    NodeRejection.NOT_READY: NOT_READY,
    NodeRejection.CORDONED: CORDONED,
    NodeRejection.SELECTOR: SELECTOR,
    NodeRejection.TAINT: TAINT,
}

SYSTEM: Final = "node.kubernetes.io/"
"""How the keys of the taints begin that Kubernetes sets on nodes in trouble."""

_REMEMBERED: Final = 3
_FEW: Final = 10
"""All nodes are looked at, and remembered, where more than one in so many is asked about."""
UNKNOWN: Final = 1 << 30
"""What counts as left where a node does not say how much it has: kube-scheduler is not asked then."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why kube-scheduler does not offer a node.

    Attributes:
        reason: A constant of those above.
        detail: What tells two such nodes apart: the taint, the resource.
    """

    reason: str
    detail: str = ""


@dataclass(frozen=True)
class HostRequirements:
    """HostRequirements is what a pod asks of a node besides cards.

    Attributes:
        tolerates: Whether it tolerates a taint.
        rules: Nodes that it may run on; its tolerations are not looked at.
        cpu_milli: Thousandths of a core.
        others: Amounts of other resources, by name.
        pod: The pod, None for one that is not there yet.
    """

    tolerates: Callable[[Taint], bool]
    rules: NodeRules = field(default_factory=NodeRules)
    cpu_milli: int = 0
    memory_bytes: int = 0
    others: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[int] = frozenset()
    pod: KubePod | None = None

    @classmethod
    def from_pod(cls, pod: KubePod) -> "HostRequirements":
        rules = read_pod_node_rules(pod)
        cpu_milli, memory_bytes = sum_host_requests(pod)
        return cls(
            rules.tolerates,
            rules,
            cpu_milli,
            memory_bytes,
            dict(sum_other_requests(pod)),
            list_host_ports(pod),
            pod,
        )


def _format_taint(taint: Taint) -> str:
    """Write a taint as kubectl does."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def require_of_any_pod() -> HostRequirements:
    """A pod of which nothing is known: it tolerates the taints of people, and none of Kubernetes' own."""
    return HostRequirements(lambda taint: not taint.key.startswith(SYSTEM))


def require_of_plain_pod() -> HostRequirements:
    """A pod that tolerates no taint, and of which nothing else is known."""
    return HostRequirements(lambda _taint: False)


class KubeSchedulerChecks:
    """KubeSchedulerChecks is kube-scheduler's checks of nodes, at one moment.

    Args:
        nodes: The cluster's nodes by name, which must not change any more.
        pods: Its pods by UID, likewise.
        state: What filter knows of both, likewise.
    """

    def __init__(
        self, nodes: Mapping[str, KubeNode], pods: Mapping[str, KubePod], state: ClusterState
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._state = state
        self._sums: dict[str, Counter[str]] = {}
        self._left: dict[str, dict[str, int]] = {}
        self._remembered: list[tuple[HostRequirements, dict[str, Rejection]]] = []

    def find_rejections(
        self,
        requirements: HostRequirements,
        *,
        leaving: Iterable[str] = (),
        only: Iterable[str] | None = None,
    ) -> dict[str, Rejection]:
        """Say of every node that kube-scheduler would not offer why not: the first reason in its order.

        Args:
            leaving: UIDs of pods to leave out of what is in use: the pod itself, when it is to move.
            only: Names of the nodes to look at, None: all.
        """
        gone = frozenset(leaving)
        names = None if only is None else list(only)
        if gone or self._is_cheaper(requirements, names):
            return self._check_nodes(requirements, gone, self._nodes if names is None else names)
        known = self._find_remembered(requirements)
        return known if names is None else {name: known[name] for name in names if name in known}

    def _is_cheaper(self, requirements: HostRequirements, names: list[str] | None) -> bool:
        """Tell whether to look at some nodes alone, in place of all nodes once."""
        if names is None or any(each is requirements for each, _ in self._remembered):
            return False
        return _FEW * len(names) < len(self._nodes)

    def find_lasting_rejections(self, requirements: HostRequirements) -> dict[str, Rejection]:
        """Say of every node that a pod may not run on why not, whatever runs there."""
        rejections = ((name, self._check_node(name, requirements)) for name in self._nodes)
        return {name: rejection for name, rejection in rejections if rejection is not None}

    def is_open(self, requirements: HostRequirements, name: str, gone: frozenset[str]) -> bool:
        """Tell whether kube-scheduler would offer a node on which enough of everything is left."""
        if self._check_node(name, requirements) is not None:
            return False
        return not (requirements.ports and requirements.ports & self._ports_in_use(name, gone))

    def _find_remembered(self, requirements: HostRequirements) -> dict[str, Rejection]:
        """Return what was found for a request before: one pod is asked about many times."""
        for each, known in self._remembered:
            if each is requirements:
                return known
        known = self._check_nodes(requirements, frozenset(), self._nodes)
        self._remembered = [*self._remembered[-_REMEMBERED:], (requirements, known)]
        return known

    def _check_nodes(
        self, requirements: HostRequirements, gone: frozenset[str], names: Iterable[str]
    ) -> dict[str, Rejection]:
        near = (
            None
            if requirements.pod is None
            else self.inter_pod_affinity.make_node_check(requirements.pod, gone)
        )
        found: dict[str, Rejection] = {}
        for name in names:
            rejection = self._check_node(name, requirements) or self._check_capacity(name, requirements, gone)
            if rejection is None and near is not None:
                detail = near(name, self._nodes[name])
                rejection = Rejection(NEIGHBOURS, detail) if detail else None
            if rejection is not None:
                found[name] = rejection
        return found

    def _check_node(self, name: str, requirements: HostRequirements) -> Rejection | None:
        node = self._nodes[name]
        traits = NodeTraits(
            name,
            node.ready,
            node.spec.unschedulable,
            node.metadata.labels or {},
            node.spec.taints or (),
        )
        found = find_node_rejection(traits, requirements.rules, requirements.tolerates)
        if found is None:
            return None
        rejection, taint = found
        return Rejection(_REASONS[rejection], "" if taint is None else _format_taint(taint))

    def list_repelling_taints(self, name: str, requirements: HostRequirements) -> list[str]:
        """The taints of a node that keep a pod off, as kubectl writes them; also of an ended cordon."""
        spec = self._nodes[name].spec
        return [
            _format_taint(taint)
            for taint in list_repelling_taints(spec.taints or (), unschedulable=spec.unschedulable)
            if not (spec.unschedulable and taint == UNSCHEDULABLE) and not requirements.tolerates(taint)
        ]

    def _check_capacity(
        self, name: str, requirements: HostRequirements, gone: frozenset[str]
    ) -> Rejection | None:
        """Check what the pods of the node leave: their number, cpu, host memory, other resources, ports."""
        nodes = self._state.nodes
        row = nodes.rows[name]
        pods = [
            pod for uid in gone if (pod := self._pods.get(uid)) is not None and pod.spec.node_name == name
        ]
        back = [sum_host_requests(pod) for pod in pods]
        if self.get_pods_left(name) + len(pods) < 1:
            return Rejection(PODS)
        if requirements.cpu_milli:
            left = self._free_cpu[row] + sum(milli for milli, _ in back)
            if requirements.cpu_milli > left:
                return Rejection(CPU)
        if requirements.memory_bytes:
            left = self._free_memory[row] + sum(size for _, size in back)
            if requirements.memory_bytes > left:
                return Rejection(MEMORY)
        for resource, amount in requirements.others.items():
            left = self.get_capacity(name, resource) - self.get_used_amounts(resource)[name]
            if amount > left + sum(sum_requests(pod, resource, _whole) for pod in pods):
                return Rejection(RESOURCE, resource)
        if requirements.ports and requirements.ports & self._ports_in_use(name, gone):
            return Rejection(PORTS)
        return None

    @cached_property
    def _free_cpu(self) -> list[int]:
        nodes = self._state.nodes
        free: list[int] = (nodes.cpu_capacity - nodes.cpu_used).tolist()
        return free

    @cached_property
    def _free_memory(self) -> list[int]:
        nodes = self._state.nodes
        free: list[int] = (nodes.memory_capacity - nodes.memory_used).tolist()
        return free

    def get_sum_left(self, name: str, resource: str) -> int:
        """Return what kube-scheduler has left of a resource of GPU memory: allocatable less requests.

        kube-scheduler counts a pod on an unhealthy card, whose units the node does not offer, against the
        healthy ones.
        """
        return self.get_sums_left(resource)[name]

    def get_sums_left(self, resource: str) -> dict[str, int]:
        """`compute_sum_left` of every node; very much where a node does not say how much it offers."""
        known = self._left.get(resource)
        if known is None:
            percent, records = resource == PERCENT_RESOURCE, self._state.node_records
            left = ((name, compute_sum_left(records[name], percent=percent)) for name in self._nodes)
            known = self._left[resource] = {name: UNKNOWN if units is None else units for name, units in left}
        return known

    def find_nodes_short_of_sum(
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
        resource = PERCENT_RESOURCE if percent else self._state.resource
        back: Counter[str] = Counter()
        for uid in leaving:
            pod = self._pods.get(uid)
            if pod is not None:
                back[pod.spec.node_name] += sum_requests(pod, resource, _whole)
        sums = self.get_sums_left(resource)
        return frozenset(
            name
            for name in (self._nodes if only is None else only)
            if sums[name] + (back[name] if back else 0) < units
        )

    def get_capacity(self, name: str, resource: str) -> int:
        """Return what a node offers of a resource; 0 where it says nothing that can be read."""
        value = (self._nodes[name].status.allocatable or {}).get(resource, 0)
        try:
            return _whole(value)
        except QuantityError:
            return 0

    def get_pods_left(self, name: str) -> int:
        """Return how many more pods a node takes; very many where it does not say."""
        return self._pods_left[name]

    def get_used_amounts(self, resource: str) -> Counter[str]:
        """Sum up what pods of every node ask of a resource that is not ours; of those see `sums`."""
        known = self._sums.get(resource)
        if known is None:
            known = self._sums[resource] = Counter()
            for pod in self._running_pods:
                amount = sum_requests(pod, resource, _whole)
                if amount:
                    known[pod.spec.node_name] += amount
        return known

    @cached_property
    def inter_pod_affinity(self) -> InterPodAffinity:
        return InterPodAffinity(self._nodes, self._running_pods)

    @cached_property
    def _running_pods(self) -> list[KubePod]:
        """Pods that have a node and are not over."""
        records = self._state.pods
        return [
            pod
            for uid, pod in self._pods.items()
            if pod.spec.node_name and (record := records.get(uid)) is not None and not record.ended
        ]

    @cached_property
    def _pods_left(self) -> dict[str, int]:
        counts = Counter(pod.spec.node_name for pod in self._running_pods)
        return {
            name: self.get_capacity(name, "pods") - counts[name]
            if "pods" in (node.status.allocatable or {})
            else UNKNOWN
            for name, node in self._nodes.items()
        }

    def _ports_in_use(self, name: str, gone: frozenset[str]) -> set[int]:
        return {
            port
            for pod in self._pods_with_ports
            if pod.spec.node_name == name and pod.metadata.uid not in gone
            for port in list_host_ports(pod)
        }

    @cached_property
    def _pods_with_ports(self) -> list[KubePod]:
        return [pod for pod in self._running_pods if list_host_ports(pod)]

    def mask_offered(self, rejections: Mapping[str, Rejection]) -> BoolArray:
        """The rows of nodes that kube-scheduler offers: bool[R]."""
        nodes = self._state.nodes
        mask: BoolArray = np.zeros(nodes.row_count, dtype=np.bool_)
        mask[[row for name, row in nodes.rows.items() if name not in rejections]] = True
        return mask


def list_unchecked_rules(pod: KubePod) -> list[str]:
    """Name what kube-scheduler looks at for a pod and nodes and pods do not tell."""
    rules = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            rules.append(f"the volume of claim {volume.persistent_volume_claim.claim_name}")
        elif volume.ephemeral is not None:
            rules.append("an ephemeral volume")
    if pod.spec.resource_claims:
        rules.append("claims of resources (DRA)")
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints or ()):
        rules.append("topology spread")
    return rules


def list_host_ports(pod: KubePod) -> frozenset[int]:
    return frozenset(
        port.host_port
        for container in pod.spec.containers or ()
        for port in container.ports or ()
        if port.host_port
    )


def _whole(value: str | int) -> int:
    """Read an amount of a resource in whole numbers or bytes."""
    return parse_bytes(value)
