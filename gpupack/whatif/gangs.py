"""Pods of a gang, which start together or not at all: how many of them fit at once."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from allocator.errors import RequestError
from allocator.names import PERCENT_RESOURCE, POD_GANG
from allocator.quantity import parse_bytes
from allocator.request import PodRequest
from gpupack.whatif.affinity import apart
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import placed_pods
from gpupack.whatif.kube_checks import Wish
from gpupack.whatif.objects import AskPod
from kubeapi.podstate import is_terminal
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.pods import pod_requests, requested
from scheduler_plugin.queue.cache.pods import node_rules, read_gang
from scheduler_plugin.scheduling.fit_counts import most_pods
from scheduler_plugin.scheduling.request import Query

_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """What of a gang waits still.

    Attributes:
        name: Of the gang.
        size: Pods of the whole gang.
        pods: Pods that wait and ask for the same as the one that is asked about, which is one of them. Pods
            that are not there yet are thought to ask for the same.
        others: Pods that wait and ask for something else.
    """

    name: str
    size: int
    pods: int
    others: int


def gang_of(cluster: Cluster, pod: AskPod) -> WaitingGang | None:
    """Find the gang of a pod that waits; None where it starts alone."""
    name, size, fault = read_gang(pod.metadata.annotations or {})
    if fault or not name or size <= 1:
        return None
    members = [
        each
        for each in cluster.pods.values()
        if each.metadata.namespace == pod.metadata.namespace
        and (each.metadata.annotations or {}).get(POD_GANG) == name
        and not is_terminal(each.status.phase)
    ]
    waiting = [each for each in members if not each.spec.node_name]
    own = _asked(cluster, pod)
    alike = sum(_asked(cluster, each) == own for each in waiting)
    missing = max(0, size - len(members))
    return WaitingGang(name, size, alike + missing, len(waiting) - alike)


def _asked(cluster: Cluster, pod: AskPod) -> object:
    """Everything that decides where a pod may go."""
    try:
        request = cluster.request_of(pod)
    except RequestError as error:
        return str(error)
    return request, pod_requests(pod), node_rules(pod)


def count_at_once(
    cluster: Cluster, query: Query, wish: Wish, rows: RowArray, most: int, leaving: Collection[str] = ()
) -> int:
    """Count the pods alike that fit at once, at most so many.

    Args:
        cluster: The cluster.
        query: What each of the pods asks of cards.
        wish: What each asks for besides.
        rows: Of nodes that take one of them.
        most: Where to stop.
        leaving: UIDs of pods that are gone.
    """
    names = [cluster.state.nodes.names[row] for row in rows.tolist()]
    rooms = {
        name: min(most, most_beside_cards(cluster, query.request, wish, name, leaving)) for name in names
    }
    return min(most, sum(placed_pods(cluster, query, rows, rooms).values()))


def count_ever(cluster: Cluster, query: Query, wish: Wish, most: int) -> int:
    """Count the pods alike that could be there at once with nobody else, at most so many; no fewer fit."""
    nodes, blocks = cluster.state.nodes, cluster.hosts.blocks_of_nodes(wish)
    rows = cluster.rows[[nodes.names[row] not in blocks for row in cluster.rows.tolist()]]
    pods = most_pods(nodes, query, rows, emptied=True)
    for needed, capacity in (
        (wish.cpu_milli, nodes.cpu_capacity[rows]),
        (wish.memory_bytes, nodes.memory_capacity[rows]),
    ):
        if needed:
            pods = np.minimum(pods, capacity // needed)
    if _one_a_node(wish):
        pods = np.minimum(pods, 1)
    return min(most, int(pods.sum()))


def most_beside_cards(
    cluster: Cluster, request: PodRequest, wish: Wish, name: str, leaving: Collection[str] = ()
) -> int:
    """Count the pods alike that a node takes at most by what it has besides its cards.

    Args:
        cluster: The cluster.
        request: What each of the pods asks of cards.
        wish: What each asks for besides.
        name: Of the node.
        leaving: UIDs of pods that are gone.
    """
    hosts, nodes = cluster.hosts, cluster.state.nodes
    row = nodes.rows[name]
    gone = [pod for uid in leaving if (pod := cluster.pods.get(uid)) is not None]
    gone = [pod for pod in gone if pod.spec.node_name == name]
    back = [pod_requests(pod) for pod in gone]
    units = PERCENT_RESOURCE if request.percent else cluster.state.resource
    left = [
        (hosts.pod_room(name) + len(gone), 1),
        (hosts.sum_left(name, units) + _of(gone, units), request.effective_units),
        (int(nodes.cpu_capacity[row] - nodes.cpu_used[row]) + sum(cpu for cpu, _ in back), wish.cpu_milli),
        (
            int(nodes.memory_capacity[row] - nodes.memory_used[row]) + sum(size for _, size in back),
            wish.memory_bytes,
        ),
        (1, int(_one_a_node(wish))),
    ]
    for resource, amount in wish.others.items():
        used = hosts.in_use(resource)[name] - _of(gone, resource)
        left.append((hosts.capacity(name, resource) - used, amount))
    return max(0, min(amount // each for amount, each in left if each))


def _of(pods: Collection[AskPod], resource: str) -> int:
    return sum(requested(pod, resource, parse_bytes) for pod in pods)


def _one_a_node(wish: Wish) -> bool:
    """Tell whether two such pods cannot run on one node: they want its port, or to be apart."""
    if wish.ports:
        return True
    pod = wish.pod
    return pod is not None and any(
        term.readable and term.topology_key == _HOSTNAME and term.matches(pod, pod) for term in apart(pod)
    )
