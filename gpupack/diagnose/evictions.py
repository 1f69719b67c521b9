"""Finds the fewest pods whose end lets another one start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpupack.whatif.gangs import find_gang_key, list_gang
from gpupack.whatif.what_if import PodCardUsage, WhatIf, without_pods
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.scheduling.fit_counts import NEVER, compute_least_missing

MOST_NODES: Final = 48
MOST_SETS: Final = 600
MOST_PODS: Final = 6


@dataclass(frozen=True, slots=True)
class EvictionSet:
    """Pods that would have to end.

    Attributes:
        pods: The pods; of a gang all running ones, also on other nodes.
        fewest: Whether no smaller number does, on any node.
    """

    node: str
    pods: tuple[PodRecord, ...]
    fewest: bool


def find_fewest_evictions(what_if: WhatIf, usage: PodCardUsage, skip: frozenset[str]) -> EvictionSet | None:
    """Find the fewest pods whose end lets a pod start.

    Nodes are tried in the order of what their cards lack: all sets of one pod, then of two, and so on. Pods
    of a gang end together, or none of them does; a gang of more than `MOST_PODS` is tried by itself. Of
    equally many pods those come first of which most are being deleted already. The number of nodes and sets
    is bounded, so for large clusters the answer may not be the smallest there is.
    """
    nodes = what_if.cluster.state.nodes
    rows = what_if.cluster.rows
    missing = compute_least_missing(nodes, what_if.query, rows)
    order = np.lexsort((nodes.name_rank[rows], missing))
    names = [
        nodes.names[rows[at]]
        for at in order.tolist()
        if missing[at] < NEVER and nodes.names[rows[at]] not in skip
    ]
    looked_at = names[:MOST_NODES]
    complete = len(looked_at) == len(names)
    # Where more than cards is short, the end of pods elsewhere, or without cards, may do, and is not tried.
    complete &= not what_if.cluster.kube_checks.find_rejections(what_if.requirements, only=names)
    # Of a gang every set is asked about on all nodes.
    budget = MOST_SETS if what_if.is_alone else MOST_SETS // 6
    complete &= what_if.is_alone
    units = {name: _list_units(what_if, usage, name) for name in looked_at}
    larger = {len(unit) for node_units in units.values() for unit in node_units if len(unit) > MOST_PODS}
    for count in (*range(1, MOST_PODS + 1), *sorted(larger)):
        complete &= count <= MOST_PODS
        best: tuple[tuple[int, int, int, str], EvictionSet] | None = None
        for name in looked_at:
            for group in _iterate_sets(units[name], count):
                budget -= 1
                if budget < 0:
                    complete = False
                    break
                staying = sum(pod.grace_ends_at is None for pod in group)
                cost = (staying, max(pod.priority for pod in group), _units(usage, group), name)
                if (best is None or cost < best[0]) and can_start_without(what_if, usage, name, group):
                    best = cost, EvictionSet(name, group, fewest=complete or count == 1)
        if best is not None:
            return best[1]
        if budget < 0:
            return None
    return None


def _list_units(what_if: WhatIf, usage: PodCardUsage, node: str) -> list[tuple[PodRecord, ...]]:
    """List the pods whose end frees cards or the sum of a node, each with the running pods of its gang.

    A pod on a card that is lost frees no card, and yet counts in kube-scheduler's sum.
    """
    cluster, own = what_if.cluster, what_if.requirements.pod
    is_short_of_sum = node in cluster.kube_checks.find_nodes_short_of_sum(what_if.query.request, only=[node])
    units: dict[object, tuple[PodRecord, ...]] = {}
    for record in usage.list_pods(node):
        pod = cluster.pods[record.uid]
        key = find_gang_key(cluster, pod)
        frees = is_short_of_sum or usage.get_freed_units(record)
        if not frees or record.is_mirror or (key or record.uid) in units:
            continue
        if key is None:
            units[record.uid] = (record,)
        elif own is None or key != find_gang_key(cluster, own):
            members = [cluster.state.pods[member.metadata.uid] for member in list_gang(cluster, pod)]
            units[key] = tuple(sorted((each for each in members if each.node), key=lambda each: each.name))
    return list(units.values())


def _iterate_sets(units: Sequence[tuple[PodRecord, ...]], count: int) -> Iterator[tuple[PodRecord, ...]]:
    """Give the sets of eviction units that have a given number of pods together."""
    if count > MOST_PODS:
        yield from (unit for unit in units if len(unit) == count)
        return
    if not count:
        yield ()
        return
    for number, unit in enumerate(units):
        if len(unit) <= count:
            for rest in _iterate_sets(units[number + 1 :], count - len(unit)):
                yield unit + rest


def can_start_without(what_if: WhatIf, usage: PodCardUsage, node: str, pods: Sequence[PodRecord]) -> bool:
    """Return True if a node takes a pod once others have ended, by filter and kube-scheduler's rules."""
    row = np.array([what_if.cluster.state.nodes.rows[node]], dtype=np.intp)
    with without_pods(what_if.cluster, usage, pods):
        return len(what_if.find_rows(leaving={pod.uid for pod in pods}, only=row)) > 0


def _units(usage: PodCardUsage, pods: Sequence[PodRecord]) -> int:
    return sum(sum(usage.get_units(pod).values()) for pod in pods)
