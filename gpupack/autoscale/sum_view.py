"""Views the cluster as a cluster autoscaler does: sums of a node's GPU memory and compute, and no cards.

Cluster Autoscaler runs kube-scheduler's plugins on nodes and on templates of nodes, and asks no extender.
The autoscaler puts the pods that are unschedulable on existing nodes first, in order of their priority, and
adds nodes for the rest.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from allocator.names import COMPUTE_RESOURCE
from gpupack.autoscale.shapes import read_offered_compute
from gpupack.autoscale.waiting_pods import EquivalentPods, WaitingPod, with_compute
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import find_apart_keys, find_places
from kubeapi.bounded import BoundedDict
from kubeapi.selectors import NodeRules
from scheduler_plugin.cache.amounts import NOT_COUNTED, PERCENT, UNITS, Amounts
from scheduler_plugin.cache.arrays import BoolArray, LongArray, RowArray
from scheduler_plugin.scheduling.node_fit import can_run_on, have_conflict

if TYPE_CHECKING:
    from kubeapi.objects import Node

_RULES_KNOWN: Final = 256


class NodeVerdicts:
    """Remembers which nodes the rules of pods allow, for as long as a Node object stays the same."""

    def __init__(self) -> None:
        self._known: BoundedDict[NodeRules, dict[str, tuple[Node, bool]]] = BoundedDict(_RULES_KNOWN)

    def allowed(self, cluster: Cluster, rules: NodeRules) -> BoolArray:
        """Tell which of `cluster.rows` are selected and without a taint that keeps the pod off."""
        known = self._known.recall(rules, dict)
        if len(known) > 2 * len(cluster.nodes):
            known.clear()
        names = cluster.state.nodes.names
        nodes = cluster.nodes
        result = np.zeros(len(cluster.rows), dtype=np.bool_)
        for at, row in enumerate(cluster.rows.tolist()):
            name = names[row]
            node = nodes[name]
            before = known.get(name)
            if before is None or before[0] is not node:
                before = known[name] = (node, can_run_on(node.traits, rules))
            result[at] = before[1]
        return result


class SumView:
    """What the sums of the nodes leave, as pods are put on them; the cluster must not change any more.

    Args:
        kinds: Pods whose further resources count.

    Attributes:
        rows: intp[nodes], the rows of all nodes.
    """

    def __init__(
        self, cluster: Cluster, verdicts: NodeVerdicts, kinds: Iterable[EquivalentPods] = ()
    ) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self.rows = cluster.rows
        self._nodes = cluster.state.nodes
        self._amounts = self._nodes.amounts.copy()
        # kube-scheduler leaves compute to the extender, so that the cluster's own arrays have no such column.
        others = {name for kind in kinds for name, _ in kind.sums.others} | {COMPUTE_RESOURCE}
        self._amounts.set_other_resources(sorted(others))
        records, rows = cluster.state.node_records, self._nodes.rows
        for name, node in cluster.nodes.items():
            record = records[name]
            pods = (pod.charged for pod in record.pods.values())
            used = sum(request.effective_compute for request in pods if request is not None)
            offered = with_compute(record.capacity, read_offered_compute(node))
            self._amounts.set_capacity(rows[name], offered)
            self._amounts.set_requested(rows[name], with_compute(record.in_use, used))
        # A node that serves claims offers no sum to pods that ask for one.
        sums = self._amounts.capacity[[UNITS, PERCENT]]
        self._amounts.capacity[[UNITS, PERCENT]] = np.where(sums == NOT_COUNTED, 0, sums)
        self._masks: dict[NodeRules, BoolArray] = {}
        self._places: dict[str, LongArray] = {}

    def copy(self) -> "SumView":
        """Copy what is left; the rest does not change."""
        other = SumView.__new__(SumView)
        vars(other).update(vars(self))
        other._amounts = self._amounts.copy()  # noqa: SLF001
        return other

    def find_allowed(self, rules: NodeRules) -> RowArray:
        """Find the rows of the nodes that are selected and without a taint that keeps pods off."""
        mask = self._masks.get(rules)
        if mask is None:
            mask = self._masks[rules] = self._verdicts.allowed(self._cluster, rules)
        return self.rows[mask]

    def find_candidates(self, kind: EquivalentPods) -> RowArray:
        """Find the rows of the nodes that pods of a kind may run on, whatever their sums have left."""
        requirements = kind.requirements
        rows = self.find_allowed(requirements.rules)
        checks, names = self._cluster.kube_checks, self._nodes.names
        if requirements.ports:
            ports = ((row, checks.list_ports(names[row])) for row in rows.tolist())
            free = [row for row, used in ports if not have_conflict(requirements.ports, used)]
            rows = np.array(free, dtype=np.intp)
        affinity = kind.affinity
        if affinity is not None:
            labels = ((row, self._cluster.nodes[names[row]].metadata.labels or {}) for row in rows.tolist())
            near = [row for row, of_node in labels if not affinity.find_refusal(of_node)]
            rows = np.array(near, dtype=np.intp)
        return rows

    def keep_fitting(self, rows: RowArray, amounts: Amounts) -> RowArray:
        return rows[self._amounts.mask_fits(amounts, rows)]

    def leave_places(self, rows: RowArray, row: int, keys: Iterable[str]) -> RowArray:
        """Leave out the nodes that are at one place with that of a row, by any topology key."""
        for key in keys:
            places = self._number_places(key)
            rows = rows[(places[rows] != places[row]) | (places[row] < 0)]
        return rows

    def _number_places(self, key: str) -> LongArray:
        """Number the places of a topology key: int64[rows], negative where a node is at none."""
        found = self._places.get(key)
        if found is None:
            numbers: dict[frozenset[tuple[str, str]], int] = {}
            found = self._places[key] = np.full(self._nodes.row_count, -1, dtype=np.int64)
            for row in self.rows.tolist():
                place = find_places(self._cluster.nodes[self._nodes.names[row]], [key])
                found[row] = numbers.setdefault(place, len(numbers)) if place else -1
        return found

    def add_pod(self, row: int, amounts: Amounts) -> None:
        self._amounts.add_requested(row, amounts)

    def list_names(self, rows: RowArray) -> list[str]:
        return [self._nodes.names[row] for row in rows.tolist()]


@dataclass(frozen=True, slots=True)
class SumPacking:
    """Where a cluster autoscaler thinks that unschedulable pods go.

    Attributes:
        fit_by_sum: UIDs of the pods that fit a node by its sum. Those are among them that ask for compute of
            which no new node has enough, as far as an autoscaler knows: it adds none for them either.
        short: The others with their kinds, in order: for these it adds nodes.
    """

    fit_by_sum: frozenset[str]
    short: tuple[tuple[WaitingPod, EquivalentPods], ...]


def pack_by_sums(
    view: SumView, kinds: Sequence[EquivalentPods], most_compute: Callable[[EquivalentPods], int]
) -> SumPacking:
    """Put unschedulable pods on existing nodes of a view as a cluster autoscaler does.

    Args:
        most_compute: Percent that a new node for such pods has, as far as an autoscaler knows.
    """
    candidates = {id(kind): view.find_candidates(kind) for kind in kinds}
    apart = find_apart(kinds)
    asking = [kind for kind in kinds if kind.request.asks_compute]
    unknown = {id(kind) for kind in asking if kind.request.effective_compute > most_compute(kind)}
    pods = sorted(((pod, kind) for kind in kinds for pod in kind.pods), key=lambda pair: pair[0].order)
    fit_by_sum: set[str] = set()
    short: list[tuple[WaitingPod, EquivalentPods]] = []
    for pod, kind in pods:
        # What is left becomes less only: a node that was too full stays so.
        there = candidates[id(kind)] = view.keep_fitting(candidates[id(kind)], kind.sums)
        if len(there):
            row = int(there[0])
            view.add_pod(row, kind.sums)
            for other, keys in apart[id(kind)].items():
                candidates[other] = view.leave_places(candidates[other], row, keys)
            fit_by_sum.add(pod.uid)
        elif id(kind) in unknown:
            fit_by_sum.add(pod.uid)
        else:
            short.append((pod, kind))
    return SumPacking(frozenset(fit_by_sum), tuple(short))


def find_apart(kinds: Sequence[EquivalentPods]) -> defaultdict[int, dict[int, frozenset[str]]]:
    """Find the kinds whose pods cannot be together, by `id`, and at the places of which topology keys.

    Of thousands each may keep only its own pods apart, so those are compared that have a port in common, or
    the rarest label that a term selects.
    """
    alike = defaultdict[tuple[str | int, str], list[EquivalentPods]](list)
    for kind in kinds:
        labels = (kind.pods[0].pod.metadata.labels or {}).items()
        ports = [(port.port, port.protocol) for port in kind.requirements.ports]
        for mark in chain[tuple[str | int, str]](labels, ports):
            alike[mark].append(kind)
    apart = defaultdict[int, dict[int, frozenset[str]]](dict)
    for one in kinds:
        others = [kind for port in one.requirements.ports for kind in alike[port.port, port.protocol]]
        for term in one.requirements.anti_affinity:
            selector = term.label_selector
            labels = ((selector.match_labels if selector is not None else None) or {}).items()
            fewest = min([kinds, *(alike[label] for label in labels)], key=len)
            others += fewest
        for other in others:
            if keys := find_apart_keys(one.requirements, other.requirements):
                apart[id(one)][id(other)] = apart[id(other)][id(one)] = keys
    return apart


def count_nodes_by_sums(pods: Iterable[EquivalentPods], node: Amounts) -> int:
    """Count the new nodes that a packing by sums needs; pods that are too large count for none.

    Args:
        pods: The kind of each.
    """
    nodes: list[tuple[Amounts, list[EquivalentPods]]] = []
    for kind, count in sorted(Counter(pods).items(), key=lambda pair: -_compute_share(pair[0].sums, node)):
        asked, requirements = kind.sums, kind.requirements
        if not asked.fits_in(node):
            continue
        most = 1 if find_apart_keys(requirements, requirements) else count
        at, waiting = 0, count
        while waiting:
            if at == len(nodes):
                nodes.append((node, []))
            left, there = nodes[at]
            placed = min(waiting, most, asked.count_in(left))
            if placed and not any(find_apart_keys(requirements, each.requirements) for each in there):
                nodes[at] = left.add(asked, -placed), [*there, kind]
                waiting -= placed
            at += 1
    return len(nodes)


def _compute_share(asked: Amounts, node: Amounts) -> float:
    """Compute the largest part of a node that a pod takes of any resource."""
    return max((amount / max(1, node.get(resource)) for resource, amount in asked.list_asked()), default=0.0)
