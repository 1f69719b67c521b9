"""What the nodes and pods of a cluster, as people ask about it, tell of kube-scheduler's rules.

The rules are those of `scheduler_plugin.scheduling.node_fit`. `list_unchecked_rules` names what is not looked
at for a pod.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import msgspec
import numpy as np

from allocator.request import PodRequest
from kubeapi.bounded import BoundedDict
from kubeapi.objects import Node, Pod
from kubeapi.selectors import UNSCHEDULABLE, Labels, NodeRules, Taint, list_repelling_taints
from scheduler_plugin.cache.amounts import ONE_POD, PERCENT, UNITS, Amounts, sum_amounts
from scheduler_plugin.cache.pods import PodRecord, sum_host_amounts
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.node_fit import (
    SUM,
    HostPort,
    NodeRoom,
    Rejection,
    can_be_served_by_claim,
    find_node_rejection,
    format_taint,
    have_conflict,
    list_rejections,
)
from scheduler_plugin.scheduling.pod_affinity import (
    AffinityTerm,
    ExistingAntiAffinity,
    Neighbour,
    PodAffinityFilter,
    read_affinity,
    read_anti_affinity,
)

SYSTEM: Final = "node.kubernetes.io/"
"""How the keys of the taints begin that Kubernetes sets on nodes in trouble."""

_REMEMBERED: Final = 4
_FEW: Final = 10
"""Where more than one node in so many is asked about, all nodes are checked and the answer is kept."""
NAMESPACE_LABELS: Final = "pod affinity by labels of namespaces"
NODE_NAME: Final = "metadata.name"
"""Stands beside topology keys for the node itself, as in `matchFields`: ports of the host know no labels."""


@dataclass(frozen=True)
class HostRequirements:
    """What a pod asks of a node besides cards.

    Attributes:
        rules: Nodes that it may run on; its tolerations are not looked at.
        amounts: Resources of nodes; GPU memory is that of the request for cards.
        pod: The pod, None for one that is not there yet.
    """

    tolerates: Callable[[Taint], bool]
    rules: NodeRules = field(default_factory=NodeRules)
    amounts: Amounts = field(default=ONE_POD)
    ports: frozenset[HostPort] = frozenset()
    pod: Pod | None = None

    @classmethod
    def from_pod(cls, pod: Pod) -> "HostRequirements":
        rules = pod.spec.node_rules
        return cls(rules.tolerates, rules, sum_host_amounts(pod), list_host_ports(pod), pod)

    @cached_property
    def anti_affinity(self) -> Sequence[AffinityTerm]:
        return () if self.pod is None else read_anti_affinity(self.pod)

    def may_mind(self, other: Pod) -> bool:
        """Tell whether the pod may want another one near or far, or that one wants it far."""
        if self.pod is None or other.metadata.uid == self.pod.metadata.uid:
            return False
        own, others = self.pod.metadata, other.metadata
        return any(
            term.matches(own, others) is not False for term in (*read_affinity(self.pod), *self.anti_affinity)
        ) or any(term.matches(others, own) is not False for term in read_anti_affinity(other))

    def make_key(self, selected: Collection[str] | None) -> Hashable:
        """Make a key that pods have in common which may run on the same nodes beside the same pods.

        Args:
            selected: Labels by which pods choose what they are near to or apart from, see
                `find_selected_labels`. Labels that differ from pod to pod, as an index does, are rarely among
                them.
        """
        if self.pod is None or selected is None:
            return self.amounts, self.ports, self.rules
        meta = self.pod.metadata
        terms = msgspec.json.encode((read_affinity(self.pod), read_anti_affinity(self.pod)))
        labels = frozenset((name, value) for name, value in (meta.labels or {}).items() if name in selected)
        return self.amounts, self.ports, self.rules, terms, meta.namespace, labels


def find_selected_labels(pods: Iterable[Pod]) -> frozenset[str] | None:
    """Find the labels by which pods require to be near to, or apart from, others; None if no pod does."""
    terms = [term for pod in pods for term in (*read_affinity(pod), *read_anti_affinity(pod))]
    selectors = (term.label_selector for term in terms)
    return frozenset(key for each in selectors if each is not None for key in each.keys) if terms else None


def require_of_any_pod() -> HostRequirements:
    """Make the requirements of an unknown pod that tolerates people's taints, but none of Kubernetes' own."""
    return HostRequirements(lambda taint: not taint.key.startswith(SYSTEM))


def require_of_plain_pod() -> HostRequirements:
    """Make the requirements of an unknown pod that tolerates no taint."""
    return HostRequirements(lambda _taint: False)


def find_apart_keys(one: HostRequirements, other: HostRequirements) -> frozenset[str]:
    """Find the topology keys at whose places two pods cannot be together, for a port or anti-affinity."""
    if not ((one.ports and other.ports) or one.anti_affinity or other.anti_affinity):
        return frozenset()
    keys = {NODE_NAME} if have_conflict(one.ports, other.ports) else set[str]()
    for owner, guest in ((one, other), (other, one)):
        if owner.pod is not None and guest.pod is not None:
            keys |= {
                term.topology_key
                for term in owner.anti_affinity
                if term.is_readable and term.matches(owner.pod.metadata, guest.pod.metadata)
            }
    return frozenset(keys)


def find_places(node: Node, keys: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Find the places of a node by topology keys; it has none by a label that it lacks."""
    labels = node.metadata.labels or {}
    values = ((key, node.name if key == NODE_NAME else labels.get(key)) for key in keys)
    return frozenset((key, value) for key, value in values if value is not None)


def keep_apart(nodes: Mapping[str, Node], keys: Collection[str], pods: Mapping[str, int]) -> dict[str, int]:
    """Keep of equal pods that cannot be together at a place one at each, of the first node there by name.

    Args:
        keys: What their `find_apart_keys` finds. With more than one key another choice of nodes might keep
            more.
        pods: Pods by node.
    """
    kept: dict[str, int] = {}
    taken: set[tuple[str, str]] = set()
    for name in sorted(name for name, number in pods.items() if number):
        places = find_places(nodes[name], keys)
        if places.isdisjoint(taken):
            kept[name] = 1 if places else pods[name]
            taken |= places
    return kept


def wants_near(one: HostRequirements, other: HostRequirements) -> bool:
    """Tell whether a pod requires to be near another one."""
    if one.pod is None or other.pod is None:
        return False
    own, others = one.pod.metadata, other.pod.metadata
    return any(term.matches(own, others) for term in read_affinity(one.pod))


def count_alike(requirements: HostRequirements, request: PodRequest, left: Amounts, node: Node) -> int:
    """Count the pods alike that a node takes at most by what it has left besides its cards."""
    most = requirements.amounts.with_sums(request).count_in(left)
    return min(most, 1) if find_places(node, find_apart_keys(requirements, requirements)) else most


def get_sum_column(request: PodRequest) -> int:
    """Return the column of the amounts in which kube-scheduler adds up what pods ask of cards."""
    return PERCENT if request.percent else UNITS


class KubeSchedulerChecks:
    """kube-scheduler's checks of nodes, at one moment: nodes, pods and state must not change any more."""

    def __init__(self, nodes: Mapping[str, Node], pods: Mapping[str, Pod], state: ClusterState) -> None:
        self._nodes = nodes
        self._pods = pods
        self._state = state
        # One pod is asked about many times. The requirements are kept too, so that no others have their id.
        self._rejections: BoundedDict[int, tuple[HostRequirements, dict[str, Rejection]]]
        self._affinity: BoundedDict[int, tuple[HostRequirements, PodAffinityFilter | None]]
        self._rejections, self._affinity = BoundedDict(_REMEMBERED), BoundedDict(_REMEMBERED)

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
        """
        gone, names = frozenset(leaving), self._nodes.keys() if only is None else frozenset(only)
        if self._is_cheaper(requirements, names):
            return self._check_nodes(requirements, gone, names)
        _, known = self._rejections.recall(
            id(requirements),
            lambda: (requirements, self._check_nodes(requirements, frozenset(), self._nodes)),
        )
        changed = names & self._list_changed(requirements, gone)
        kept = {name: known[name] for name in names - changed if name in known}
        return kept | self._check_nodes(requirements, gone, changed)

    def _is_cheaper(self, requirements: HostRequirements, names: AbstractSet[str]) -> bool:
        """Return True if only some nodes are checked, instead of all nodes at once."""
        return id(requirements) not in self._rejections and _FEW * len(names) < len(self._nodes)

    def _list_changed(self, requirements: HostRequirements, gone: Collection[str]) -> AbstractSet[str]:
        """List the nodes of which something else may be said of a pod once others are gone."""
        if self._list_minded(requirements, gone):
            return self._nodes.keys()
        return {self._pods[uid].spec.node_name for uid in gone if uid in self._pods}

    def _list_minded(self, requirements: HostRequirements, gone: Iterable[str]) -> set[str]:
        """List those of some pods that make a difference to what may be near to, or apart from, a pod."""
        pods = (self._pods[uid] for uid in gone if uid in self._pods)
        return {each.metadata.uid for each in pods if requirements.may_mind(each)}

    def find_lasting_rejections(self, requirements: HostRequirements) -> dict[str, Rejection]:
        """Say of every node that a pod may not run on why not, whatever runs there."""
        rejections = (
            (name, find_node_rejection(self._nodes[name].traits, requirements.rules, requirements.tolerates))
            for name in self._nodes
        )
        return {name: rejection for name, rejection in rejections if rejection is not None}

    def is_open(self, requirements: HostRequirements, name: str, gone: frozenset[str]) -> bool:
        """Tell whether kube-scheduler would offer a node on which enough of everything is left."""
        traits = self._nodes[name].traits
        if find_node_rejection(traits, requirements.rules, requirements.tolerates) is not None:
            return False
        return not (requirements.ports and have_conflict(requirements.ports, self.list_ports(name, gone)))

    def _check_nodes(
        self, requirements: HostRequirements, gone: frozenset[str], names: Iterable[str]
    ) -> dict[str, Rejection]:
        rejections = self.list_rejections(requirements, names, gone)
        return {name: found[0] for name, found in rejections if found}

    def list_rejections(
        self, requirements: HostRequirements, names: Iterable[str], gone: Collection[str] = ()
    ) -> Iterator[tuple[str, list[Rejection]]]:
        """Give nodes with what the first kube-scheduler filter to refuse says of each; empty: it fits."""
        affinity = self.make_affinity_filter(requirements, gone)
        for name in names:
            capacity = self._state.node_records[name].capacity
            ports = partial(self.list_ports, name, gone)
            room = NodeRoom(self.get_used(name, gone), capacity, ports)
            yield name, list_rejections(requirements, self._nodes[name].traits, room, affinity)

    def make_affinity_filter(
        self, requirements: HostRequirements, gone: Collection[str] = ()
    ) -> PodAffinityFilter | None:
        """Prepare the affinity and anti-affinity between a pod and others; None if no term matters."""
        pod = requirements.pod
        if pod is None:
            return None
        minded = self._list_minded(requirements, gone)
        if minded:
            return self._make_affinity_filter(pod, minded)
        make = partial(self._make_affinity_filter, pod, minded)
        return self._affinity.recall(id(requirements), lambda: (requirements, make()))[1]

    def _make_affinity_filter(self, pod: Pod, gone: AbstractSet[str]) -> PodAffinityFilter | None:
        gone = gone | {pod.metadata.uid}
        neighbours = (each for each in self._neighbours if each.pod.metadata.uid not in gone)
        found = PodAffinityFilter(pod, neighbours, self._existing_anti_affinity, self._node_labels, gone)
        return found if found.matters else None

    def list_unchecked_rules(self, requirements: HostRequirements) -> list[str]:
        """List what kube-scheduler checks for a pod here that nodes and pods do not show."""
        pod = requirements.pod
        if pod is None:
            return []
        rules = list_unchecked_rules(pod)
        existing, own = self._existing_anti_affinity, {pod.metadata.uid}
        is_undecided = PodAffinityFilter(pod, (), existing, self._node_labels, own).is_undecided
        if is_undecided and NAMESPACE_LABELS not in rules:
            rules.append(NAMESPACE_LABELS)
        return rules + [
            f"{resource} where a DeviceClass serves it"
            for resource, _ in requirements.amounts.others
            if can_be_served_by_claim(resource)
            and not all(self._state.node_records[name].capacity.get(resource) for name in self._nodes)
        ]

    def is_wanted_near(self, pod: Pod) -> bool:
        """Tell whether any other running pod wants this one near."""
        return any(
            term.matches(each.metadata, pod.metadata)
            for each, found in self._pods_with_affinity
            if each.metadata.uid != pod.metadata.uid
            for term in found
        )

    def list_repelling_taints(self, name: str, requirements: HostRequirements) -> list[str]:
        """List the taints of a node that keep a pod off, as kubectl writes them; also of an ended cordon."""
        spec = self._nodes[name].spec
        return [
            format_taint(taint)
            for taint in list_repelling_taints(spec.taints or (), unschedulable=spec.unschedulable)
            if not (spec.unschedulable and taint == UNSCHEDULABLE) and not requirements.tolerates(taint)
        ]

    def get_left(self, name: str, gone: Collection[str] = ()) -> Amounts:
        """Return what a node has left once pods, given by UID, are gone."""
        return self._state.node_records[name].capacity.subtract(self.get_used(name, gone))

    def get_used(self, name: str, gone: Collection[str]) -> Amounts:
        used = self._state.node_records[name].in_use
        if not gone:
            return used
        return used.subtract(sum_amounts(pod.amounts for pod in self._list_bound(gone) if pod.node == name))

    def _list_bound(self, uids: Iterable[str]) -> list[PodRecord]:
        """List those of some pods that count on a node."""
        pods = (self._state.pods.get(uid) for uid in uids)
        return [pod for pod in pods if pod is not None and pod.node in self._nodes and not pod.ended]

    def find_nodes_short_of_sum(
        self, request: PodRequest, *, leaving: Iterable[str] = (), only: Iterable[str] | None
    ) -> frozenset[str]:
        """List the nodes whose sum is too small by kube-scheduler's count, whatever their cards have."""
        nodes, column = self._state.nodes, get_sum_column(request)
        left = nodes.amounts.compute_left(column, np.arange(nodes.row_count))
        for pod in self._list_bound(leaving):
            left[nodes.rows[pod.node]] += pod.amounts[column]
        is_short = (left < request.effective_units).tolist()
        names = self._nodes if only is None else only
        return frozenset(name for name in names if is_short[nodes.rows[name]])

    def find_all_rejections(
        self,
        requirements: HostRequirements,
        request: PodRequest,
        *,
        leaving: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> dict[str, Rejection]:
        """Like `find_rejections`, and where nothing else rejects the pod, the sum may."""
        short = self.find_nodes_short_of_sum(request, leaving=leaving, only=only)
        return dict.fromkeys(short, Rejection(SUM)) | self.find_rejections(
            requirements, leaving=leaving, only=only
        )

    @cached_property
    def _running_pods(self) -> list[Pod]:
        return [pod for uid, pod in self._pods.items() if pod.spec.node_name and self._counts(uid)]

    def _counts(self, uid: str) -> bool:
        record = self._state.pods.get(uid)
        return record is not None and not record.ended

    @cached_property
    def _neighbours(self) -> list[Neighbour]:
        """Pods on nodes that are there, as terms of others see them."""
        labels = self._node_labels
        return [
            Neighbour(pod, labels[pod.spec.node_name])
            for pod in self._running_pods
            if pod.spec.node_name in labels
        ]

    @cached_property
    def _node_labels(self) -> dict[str, Labels]:
        return {name: node.metadata.labels or {} for name, node in self._nodes.items()}

    @cached_property
    def _existing_anti_affinity(self) -> ExistingAntiAffinity:
        return ExistingAntiAffinity(self._running_pods)

    @cached_property
    def _pods_with_affinity(self) -> list[tuple[Pod, list[AffinityTerm]]]:
        return [(pod, found) for pod in self._running_pods if (found := read_affinity(pod))]

    def list_ports(self, name: str, gone: Collection[str] = ()) -> list[HostPort]:
        """List the ports of the host that pods of a node have, those of pods that are gone left out."""
        there = self._ports.get(name, ())
        return [port for uid, ports in there if uid not in gone for port in ports]

    @cached_property
    def _ports(self) -> dict[str, list[tuple[str, frozenset[HostPort]]]]:
        """Ports of the host that pods have, with the UID of the pod, by node."""
        found: dict[str, list[tuple[str, frozenset[HostPort]]]] = {}
        for pod in self._running_pods:
            if ports := list_host_ports(pod):
                found.setdefault(pod.spec.node_name, []).append((pod.metadata.uid, ports))
        return found


def list_unchecked_rules(pod: Pod) -> list[str]:
    """List what kube-scheduler checks for a pod on any node that nodes and pods do not show."""
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
    if not all(term.is_readable for term in (*read_affinity(pod), *read_anti_affinity(pod))):
        rules.append(NAMESPACE_LABELS)
    return rules


def list_host_ports(pod: Pod) -> frozenset[HostPort]:
    """List the ports of the host that a pod wants; of its init containers those of sidecars count."""
    sidecars = (each for each in pod.spec.init_containers or () if each.is_sidecar)
    return frozenset(
        HostPort.read(port.host_port, port.protocol, port.host_ip)
        for container in (*sidecars, *(pod.spec.containers or ()))
        for port in container.ports or ()
        if port.host_port
    )
