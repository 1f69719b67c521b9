"""Keeps nodes from scale-down whose pods would not all find cards elsewhere.

An autoscaler considers a node removable if its pods fit elsewhere by sums. Pods that then fit on no card
wait.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from allocator.names import NODE_KEPT
from allocator.place import Placement
from gpupack.autoscale.shapes import is_on_new_nodes
from gpupack.rebalance.movable_pods import MovablePods
from gpupack.uninstall import find_kept_marks
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import find_gang_key
from gpupack.whatif.kube_checks import HostRequirements
from gpupack.whatif.what_if import PodCardUsage, WhatIf
from kubeapi.objects import Node
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.pods import PodRecord

SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
KEEPING: Final = (SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
"""Annotations of a Node by which Cluster Autoscaler and Karpenter leave it alone."""

MOST_FREED: Final = 50
"""Nodes that may be drained at one time; autoscalers drain ten at once by default."""

FEW_MOVES: Final = 4
"""Moves up to which emptying a node is worth an Event."""

_AT_ONCE: Final = 16
"""Candidates whose rules are checked in one step."""


class KeepReason(StrEnum):
    """Why a node is kept."""

    NO_CARDS = "no_cards"
    GANG = "gang"
    OTHERS_FIRST = "others_first"


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that is kept.

    Attributes:
        pod: Namespace and name of the first pod that has no cards elsewhere, or is of a gang; else empty.
    """

    reason: KeepReason
    pod: str = ""


def find_nodes_to_keep(cluster: Cluster, freed_before: Iterable[str] = ()) -> dict[str, KeptNode]:
    """Find the nodes that must not be drained: also those with a pod of a gang, which would end in part.

    The others can be drained all together: the pods of each find cards on nodes that stay, beside those of
    the ones before. Nodes with the fewest units in use come first, and among them those that could go before.

    Args:
        freed_before: Names of the nodes that could go the last time, so that an answer lasts.
    """
    state = cluster.state
    nodes = state.nodes
    before = frozenset(freed_before)
    holding = {
        name: pods
        for name, record in state.node_records.items()
        if name in cluster.nodes and (pods := _list_evictable(cluster, record.pods))
    }
    order = sorted(
        holding, key=lambda name: (name not in before, int(nodes.gpu_used[nodes.rows[name]]), name)
    )
    kept: dict[str, KeptNode] = {}
    freed: set[str] = set()
    staying = np.zeros(nodes.row_count, dtype=np.bool_)
    staying[cluster.rows] = True
    with ExitStack() as charges:
        for name in order:
            there = (cluster.pods[each.uid] for each in holding[name])
            member = next((pod for pod in there if find_gang_key(cluster, pod)), None)
            if member is not None:
                kept[name] = KeptNode(KeepReason.GANG, member.full_name)
                continue
            if len(freed) >= MOST_FREED:
                kept[name] = KeptNode(KeepReason.OTHERS_FIRST)
                continue
            own = nodes.rows[name]
            staying[own] = False
            pod = _move_all(cluster, holding[name], np.flatnonzero(staying), charges)
            if pod is None:
                freed.add(name)
            else:
                staying[own] = True
                kept[name] = KeptNode(KeepReason.NO_CARDS, pod.full_name)
    return kept


def find_nodes_to_empty(cluster: Cluster, kept: Mapping[str, KeptNode]) -> dict[str, int]:
    """Find the nodes that few moves, as of `advise`, would empty for good, and how many pods would move."""
    to_empty = {}
    usage = PodCardUsage(cluster)
    movable_pods = MovablePods(cluster, usage)
    for name, record in cluster.state.node_records.items():
        if name in cluster.nodes and name not in kept:
            pods = _list_evictable(cluster, record.pods)
            may_move = all(not movable_pods.explain_why_fixed(cluster.pods[pod.uid], pod) for pod in pods)
            if 0 < len(pods) <= FEW_MOVES and may_move and not usage.list_claim_pods(name):
                to_empty[name] = len(pods)
    return to_empty


def _list_evictable(cluster: Cluster, pods: Mapping[str, PodRecord]) -> list[PodRecord]:
    """List pods that would move, in the order in which kube-scheduler takes them; of equal ones the largest.

    That order is by priority. A large pod may find no cards once those of higher priority have theirs.
    """
    found = []
    for uid, record in pods.items():
        pod = cluster.pods.get(uid)
        if pod is None or record.charged is None or record.grace_ends_at is not None:
            continue
        if not is_on_new_nodes(pod):
            found.append(record)
    return sorted(found, key=lambda each: (-each.priority, -_units(each), each.namespace, each.name))


def _units(record: PodRecord) -> int:
    return 0 if record.charged is None else record.charged.effective_units


def _move_all(
    cluster: Cluster, pods: Sequence[PodRecord], rows: RowArray, charges: ExitStack
) -> PodRecord | None:
    """Put pods of one node on others; returns the first that has no cards there, and then moves none."""
    leaving = [record.uid for record in pods]
    with ExitStack() as mine:
        for record in pods:
            moved = _move(cluster, record, rows, leaving)
            if moved is None:
                return record
            row, placement = moved
            mine.enter_context(cluster.state.nodes.with_charges({row: placement.amounts}))
        charges.push(mine.pop_all())
    return None


def _move(
    cluster: Cluster, record: PodRecord, rows: RowArray, leaving: Sequence[str]
) -> tuple[int, Placement] | None:
    """Find the fullest node with cards for a pod; its row, and the cards."""
    pod = cluster.pods[record.uid]
    request = record.charged
    if request is None:
        return None
    nodes = cluster.state.nodes
    requirements = HostRequirements.from_pod(pod)
    what_if = WhatIf(cluster, cluster.make_query(request, requirements), requirements)
    fitting = what_if.filter_rows(rows)
    free = (nodes.gpu_capacity - nodes.gpu_used)[fitting]
    candidates = fitting[np.argsort(free, kind="stable")]
    for start in range(0, len(candidates), _AT_ONCE):
        allowed = what_if.find_rows(leaving=leaving, only=candidates[start : start + _AT_ONCE])
        for row in allowed.tolist():
            placement = what_if.choose_cards(nodes.names[row])
            if placement is not None:
                return row, placement
    return None


# What is written.


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of a Node's annotations, None removing one, and why it is kept from now on, if it is."""

    name: str
    annotations: Mapping[str, str | None]
    kept: KeptNode | None

    def patch(self, resource_version: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": resource_version, "annotations": dict(self.annotations)}}


def find_node_changes(nodes: Iterable[Node], kept: Mapping[str, KeptNode]) -> list[NodeChange]:
    """Compare the annotations of Nodes with the wanted ones; an annotation set by a person is kept."""
    node_changes = []
    for node in nodes:
        name, annotations = node.name, node.metadata.annotations or {}
        wanted = kept.get(name)
        changes: dict[str, str | None] = {}
        if wanted is not None:
            # One that we wrote and a person took away stays away; one that was a person's own becomes ours.
            named = [key for key in annotations.get(NODE_KEPT, "").split(",") if key]
            free = [key for key in KEEPING if key not in annotations and key not in named]
            if free or NODE_KEPT not in annotations:
                changes = {NODE_KEPT: ",".join([*named, *free]), **dict.fromkeys(free, "true")}
        else:
            changes = dict.fromkeys(find_kept_marks(annotations))
        if changes:
            node_changes.append(NodeChange(name, changes, wanted))
    return node_changes
