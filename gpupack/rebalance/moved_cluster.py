"""Builds the cluster as it would be after moves, so that filter itself can be asked about it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from allocator.errors import AllocatorError
from allocator.names import NODE_HOLDS, POD_ALLOCATION, POD_ASSIGNED
from allocator.packing import node_resources, read_node
from allocator.records import dump_assigned, dump_holds, load_holds
from gpupack.rebalance.movable_pods import MovablePod
from gpupack.rebalance.plan_state import Destination
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.what_if import PodCardUsage
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.pod_cards import PodCards


def apply_moves(cluster: Cluster, moves: Sequence[tuple[MovablePod, Destination]]) -> Cluster:
    """Make the cluster after moves: words without the pods, and the pods bound elsewhere as bind would."""
    nodes, pods, usage = dict(cluster.nodes), dict(cluster.pods), PodCardUsage(cluster)
    leaving: dict[str, list[MovablePod]] = {}
    for movable, destination in moves:
        leaving.setdefault(movable.node, []).append(movable)
        pods[movable.uid] = bind_pod(cluster, movable.pod, destination)
    for name, movable_pods in leaving.items():
        nodes[name] = remove_from_words(nodes[name], movable_pods, usage.get_pod_cards(name))
    return cluster.with_objects(nodes, pods)


def remove_from_words(node: Node, movable_pods: Sequence[MovablePod], pod_cards: PodCards) -> Node:
    """Return a node without pods in its words, which may not contain all of them yet."""
    annotations = node.metadata.annotations or {}
    try:
        holds = load_holds(annotations[NODE_HOLDS])
        words = read_node(node.status.allocatable or {})
    except (AllocatorError, KeyError):
        return node
    contained = {movable.uid: movable for movable in movable_pods if movable.uid in holds.uids}
    if not contained or words is None:
        return node
    used = words.used
    for movable in contained.values():
        used = _subtract(used, movable.units)
    compute = _subtract(words.compute_used, pod_cards.get_freed_compute(*contained))
    written = node_resources(replace(words, used=used, compute_used=compute, revision=words.revision + 1))
    amounts: dict[str, str | int] = {**(node.status.allocatable or {}), **written}
    units_left = {uid: units for uid, units in holds.units.items() if uid not in contained}
    left = replace(holds, uids=holds.uids - contained.keys(), units=units_left)
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            node.metadata, annotations={**annotations, NODE_HOLDS: dump_holds(left)}
        ),
        status=msgspec.structs.replace(node.status, allocatable=amounts),
    )


def _subtract(used: Sequence[int], freed: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(max(0, amount - freed.get(card, 0)) for card, amount in enumerate(used))


def bind_pod(cluster: Cluster, pod: Pod, destination: Destination) -> Pod:
    """Make a pod as bind has just put it somewhere."""
    nodes = cluster.state.nodes
    assigned = destination.placement.name_cards(nodes.uuids[nodes.rows[destination.node]])
    annotations = {
        name: value
        for name, value in (pod.metadata.annotations or {}).items()
        if name not in {POD_ALLOCATION, POD_ASSIGNED}
    }
    if assigned is not None:
        annotations[POD_ASSIGNED] = dump_assigned(assigned)
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=destination.node, scheduling_gates=None),
    )


def find_refused_moves(
    before: Cluster, then: Cluster, moves: Sequence[tuple[MovablePod, Destination]]
) -> list[str]:
    """List the UIDs of moved pods that the rules of kube-scheduler, or filter, refuse where they are then."""
    refused = []
    for movable, destination in moves:
        what_if = movable.make_what_if(then)
        rejections = then.kube_checks.find_all_rejections(
            what_if.requirements, what_if.query.request, leaving={movable.uid}, only=[destination.node]
        )
        row = then.state.nodes.rows[destination.node]
        short, was = (cluster.state.nodes.mask_overcharged(row) for cluster in (then, before))
        if rejections or bool((short & ~was).any()):
            refused.append(movable.uid)
    return refused
