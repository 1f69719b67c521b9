"""Views the cluster as a cluster autoscaler does: one sum of GPU memory a node, whatever is free on a card.

Cluster Autoscaler runs kube-scheduler's plugins on nodes and on templates of nodes, and asks no extender.
The autoscaler puts the pods that are unschedulable on existing nodes first, in order of their priority, and
adds nodes for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpupack.autoscale.waiting_pods import EquivalentPods, WaitingPod
from gpupack.whatif.cluster import Cluster
from kubeapi.bounded import BoundedDict
from kubeapi.selectors import NodeRules
from scheduler_plugin.cache.amounts import FIXED, NOT_COUNTED, PERCENT, UNITS, Amounts
from scheduler_plugin.cache.arrays import BoolArray, LongArray, RowArray
from scheduler_plugin.scheduling.node_fit import can_run_on, have_conflict

if TYPE_CHECKING:
    from kubeapi.objects import Node

_RULES_KNOWN: Final = 256


def make_columns(amounts: Amounts) -> LongArray:
    """Write amounts, but for further resources, as the columns of a `SumView`: int64[5]."""
    return np.array(amounts[:FIXED], dtype=np.int64)


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
    """SumView is what the sums of the nodes leave, as pods are put on them.

    Args:
        cluster: The cluster, which must not change any more.
        verdicts: What is known of rules and nodes.

    Attributes:
        left: int64[nodes, 5], by `cluster.rows` and column.
    """

    def __init__(self, cluster: Cluster, verdicts: NodeVerdicts) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        nodes, rows = cluster.state.nodes, cluster.rows
        names = [nodes.names[row] for row in rows.tolist()]
        capacity = nodes.capacity[:FIXED, rows]
        self.left: LongArray = (capacity - nodes.requested[:FIXED, rows]).T.copy()
        for column in (UNITS, PERCENT):
            # A node that serves claims offers no sum to pods that ask for one.
            self.left[capacity[column] == NOT_COUNTED, column] = 0
        self._names = names
        self._others: dict[str, LongArray] = {}
        self._masks: dict[NodeRules, BoolArray] = {}

    def copy(self) -> "SumView":
        """Copy what is left; the rest does not change."""
        other = SumView.__new__(SumView)
        vars(other).update(vars(self))
        other.left = self.left.copy()
        return other

    def _allowed(self, rules: NodeRules) -> BoolArray:
        mask = self._masks.get(rules)
        if mask is None:
            mask = self._masks[rules] = self._verdicts.allowed(self._cluster, rules)
        return mask

    def candidates(self, kind: EquivalentPods) -> RowArray:
        """Positions in `cluster.rows` of the nodes that pods of a kind may run on, whatever is left there."""
        rows = np.flatnonzero(self._allowed(kind.requirements.rules))
        requirements = kind.requirements
        for resource, amount in requirements.amounts.others:
            rows = rows[self._left_of(resource)[rows] >= amount]
        checks = self._cluster.kube_checks
        if requirements.ports:
            ports = ((at, checks.list_ports(self._names[at])) for at in rows.tolist())
            rows = np.array([at for at, used in ports if not have_conflict(requirements.ports, used)])
        affinity = checks.make_affinity_filter(requirements)
        if affinity is not None:
            nodes = self._cluster.nodes
            rows = np.array(
                [
                    at
                    for at in rows.tolist()
                    if not affinity.find_refusal(nodes[self._names[at]].metadata.labels or {})
                ],
                dtype=np.intp,
            )
        return rows.astype(np.intp)

    def having(self, candidates: RowArray, amounts: LongArray) -> RowArray:
        """Keep the candidates with enough left by sums; resources that are not requested do not count."""
        has: BoolArray = ((self.left[candidates] >= amounts) | (amounts == 0)).all(axis=1)
        return candidates[has]

    def names(self, positions: RowArray) -> list[str]:
        return [self._names[at] for at in positions.tolist()]

    def _left_of(self, resource: str) -> LongArray:
        found = self._others.get(resource)
        if found is None:
            checks = self._cluster.kube_checks
            left = [checks.get_left(name).get_other(resource) for name in self._names]
            found = self._others[resource] = np.array(left, dtype=np.int64)
        return found


@dataclass(frozen=True, slots=True)
class SumPacking:
    """SumPacking is where a cluster autoscaler thinks that unschedulable pods go.

    Attributes:
        fit_by_sum: UIDs of the pods that fit a node by its sum.
        short: The others with their kinds, in order: for these it adds nodes.
    """

    fit_by_sum: frozenset[str]
    short: tuple[tuple[WaitingPod, EquivalentPods], ...]


def pack_by_sums(view: SumView, kinds: Sequence[EquivalentPods]) -> SumPacking:
    """Put unschedulable pods on existing nodes as a cluster autoscaler does; takes them off `view.left`."""
    candidates = {id(kind): view.candidates(kind) for kind in kinds}
    amounts = {id(kind): make_columns(kind.amounts) for kind in kinds}
    pods = sorted(((pod, kind) for kind in kinds for pod in kind.pods), key=lambda pair: pair[0].order)
    fit_by_sum: set[str] = set()
    short: list[tuple[WaitingPod, EquivalentPods]] = []
    for pod, kind in pods:
        # What is left becomes less only: a node that was too full stays so.
        there = candidates[id(kind)] = view.having(candidates[id(kind)], amounts[id(kind)])
        if len(there):
            view.left[there[0]] -= amounts[id(kind)]
            fit_by_sum.add(pod.uid)
        else:
            short.append((pod, kind))
    return SumPacking(frozenset(fit_by_sum), tuple(short))


def count_nodes_by_sums(amounts: Sequence[LongArray], node: LongArray) -> int:
    """Count the new nodes that a packing by sums needs; pods that are too large count for none.

    Args:
        amounts: What each pod takes, int64[5].
        node: What an empty node has, int64[5].
    """
    pods = [each for each in amounts if (each <= node).all()]
    if not pods:
        return 0
    share = np.maximum(1, node).astype(np.float64)
    pods.sort(key=lambda each: -float((each / share).max()))
    left: LongArray = np.zeros((0, len(node)), dtype=np.int64)
    for pod in pods:
        fits = np.flatnonzero((left >= pod).all(axis=1))
        if len(fits):
            left[fits[0]] -= pod
        else:
            left = np.vstack([left, node - pod])
    return len(left)
