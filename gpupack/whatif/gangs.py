"""Pods of a gang, which start together or not at all: how many of them fit at once."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from allocator.errors import RequestError, shown
from gpupack.whatif.cluster import Cluster, read_requested_unit
from gpupack.whatif.kube_checks import (
    NODE_NAME,
    HostRequirements,
    find_apart_keys,
    find_places,
    wants_near,
)
from kubeapi.objects import Pod
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.gang_names import read_gang_key, read_gang_name
from scheduler_plugin.cache.pod_groups import find_coscheduling_key
from scheduler_plugin.queue.cache.pods import read_gang
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import score_nodes
from scheduler_plugin.scheduling.ranking import rank_best
from scheduler_plugin.scheduling.request import SchedulingRequest
from scheduler_plugin.scheduling.scratch_node import ScratchNode


@dataclass(frozen=True, eq=False)
class GangMembers:
    """Waiting pods of a gang that ask for the same."""

    query: SchedulingRequest
    requirements: HostRequirements
    pods: int


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """The pods of a gang that still wait.

    Attributes:
        size: Pods of the whole gang.
        pods: Pods that wait and ask for the same as the one that is asked about, which is one of them. Pods
            that are not there yet are thought to ask for the same.
        refused: A pod that is needed and whose request cannot be given, and why; empty for none.
    """

    name: str
    size: int
    pods: int
    others: tuple[GangMembers, ...] = ()
    refused: str = ""

    def has_unchecked_affinity(self, own: HostRequirements) -> bool:
        """Tell whether any of its pods wants another one near."""
        kinds = ((own, self.pods), *((kind.requirements, kind.pods) for kind in self.others))
        return any(
            wants_near(one, other)
            for (one, pods), (other, _) in product(kinds, repeat=2)
            if one is not other or pods > 1
        )


def find_gang(cluster: Cluster, pod: Pod) -> WaitingGang | None:
    """Find the gang of a pod that waits and whose request can be given; None if it starts alone."""
    name, size, fault = _read_gang(cluster, pod)
    if fault or not name or size <= 1:
        return None
    members = list_gang(cluster, pod)
    # More pods than a PodGroup's minCount need not start with the others.
    spare = max(0, len(members) - size) if pod.scheduling_group is not None else 0
    by_key = {_key_pod(cluster, pod): [pod]}
    for each in members:
        if each is not pod and not each.spec.node_name:
            by_key.setdefault(_key_pod(cluster, each), []).append(each)
    kinds: list[GangMembers] = []
    refused: list[str] = []
    for pods in by_key.values():
        try:
            request = cluster.read_request(pods[0])
        except RequestError as error:
            refused += [f"{each.full_name} is refused: {error}" for each in pods]
            continue
        if request is not None:
            requirements = HostRequirements.from_pod(pods[0])
            kinds.append(GangMembers(cluster.make_query(request, requirements), requirements, len(pods)))
    own, *others = _leave_out(cluster, kinds, spare - len(refused))
    return WaitingGang(
        name,
        size,
        own.pods + max(0, size - _count_there(cluster, pod, members)),
        tuple(kind for kind in others if kind.pods),
        next(iter(refused[spare:]), ""),
    )


def _count_there(cluster: Cluster, pod: Pod, members: Sequence[Pod]) -> int:
    """Count the pods of a gang that are not missing: as kube-scheduler does of a PodGroup, else as the queue.

    For the queue pods without cards are none of the gang, and pods of the same run that have succeeded count.
    """
    if pod.scheduling_group is not None:
        return len(members)
    controllers = (each.metadata.controller for each in members)
    owners = {controller.uid for controller in controllers if controller is not None}
    key = read_gang_key(pod)
    succeeded = (
        each
        for each in (cluster.pods_by_gang[key] if key is not None else ())
        if each.status.phase == "Succeeded" and any(map(each.metadata.is_controlled_by, owners))
    )
    return sum(read_requested_unit(each) is not None for each in (*members, *succeeded))


def _leave_out(cluster: Cluster, kinds: Sequence[GangMembers], spare: int) -> Iterator[GangMembers]:
    """Leave out so many pods, those that ask for most first, but of the first kind the last one."""
    counts = {kind: kind.pods for kind in kinds}
    for kind in _sort_by_hardness(cluster, kinds):
        left_out = min(max(0, spare), kind.pods - (kind is kinds[0]))
        counts[kind] -= left_out
        spare -= left_out
    return (replace(kind, pods=count) for kind, count in counts.items())


def list_gang(cluster: Cluster, pod: Pod) -> list[Pod]:
    """List the pods that start, move and end together with a pod, itself among them.

    Of a gang those of which `PodRecord.is_counted_in_group` is True.
    """
    key = read_gang_key(pod)
    if key is None:
        return [pod]
    return [each for each in cluster.pods_by_gang[key] if cluster.get_record(each).is_counted_in_group]


def find_gang_key(cluster: Cluster, pod: Pod) -> tuple[str, str] | None:
    """Find the key of the pods that are of no use without each other; see `read_gang_key`.

    None for a pod on its own, also of a PodGroup whose pods may run without each other.
    """
    group, size = pod.scheduling_group, read_gang(pod, cluster.coscheduling_groups)[1]
    is_gang = group is None or cluster.pod_groups.ends_together(group, size)
    return read_gang_key(pod) if is_gang else None


def format_gang(cluster: Cluster, pod: Pod) -> str:
    """Write the name of a pod's gang and, in brackets, its size; empty if the pod starts alone."""
    name, size, _ = _read_gang(cluster, pod)
    return f"{name} ({size})" if name and size > 1 else ""


def _read_gang(cluster: Cluster, pod: Pod) -> tuple[str, int, str]:
    name, size, fault = read_gang(pod, cluster.coscheduling_groups)
    group = pod.scheduling_group
    if group is None:
        return name, size, fault
    # An annotation may ask for more than a PodGroup whose pods start one by one.
    least = cluster.pod_groups.get_min_count(group)
    return name, max(1, size) if least == 1 else least, ""


def explain_unknown_gang(cluster: Cluster, pod: Pod) -> str:
    """Say that a pod is treated as single because PodGroups cannot be read; empty if they can."""
    key, groups = pod.scheduling_group, cluster.pod_groups
    if key is None:
        key, groups = find_coscheduling_key(pod.metadata), cluster.coscheduling_groups
    if key is None or not groups.fault or groups.get_group(key) is not None:
        return ""
    name, fault = shown(read_gang_name(pod)), groups.fault
    return f"PodGroups cannot be read ({fault}): how many pods of gang {name} start together is not known"


def explain_held_group(cluster: Cluster, pod: Pod) -> str:
    """Say why kube-scheduler tries no pod of a PodGroup, whatever is free; empty: it does, or may do."""
    key, groups = pod.scheduling_group, cluster.pod_groups
    if key is None or (groups.fault and groups.get_group(key) is None):
        return ""
    if missing := groups.explain_missing(key):
        return f"{missing}, and kube-scheduler tries no pod before it is there"
    group, pods = f"PodGroup {shown(key[1])}", list_gang(cluster, pod)
    lacks = groups.get_min_count(key) - len(pods)
    if lacks > 0:
        there = f"{len(pods)} of the {len(pods) + lacks} pods are there that {group} needs at least"
        return f"{there}: kube-scheduler tries none of them before"
    own = set(pod.gates)
    gated = next((each for each in pods if set(each.gates) - own and not each.spec.node_name), None)
    if gated is not None:
        held = f"pod {gated.metadata.name} of {group} is held by scheduling gate {' and '.join(gated.gates)}"
        return f"{held}: kube-scheduler tries none of the group before that is gone"
    return groups.explain_disagreement(key, [cluster.get_record(each) for each in pods])


def _key_pod(cluster: Cluster, pod: Pod) -> object:
    """Make a key of everything that decides where a pod may go."""
    try:
        request = cluster.read_request(pod)
    except RequestError as error:
        return str(error)
    return request, HostRequirements.from_pod(pod).make_key(cluster.selected_labels)


def find_rows(
    cluster: Cluster,
    query: SchedulingRequest,
    requirements: HostRequirements,
    leaving: Collection[str] = (),
    only: RowArray | None = None,
) -> RowArray:
    """Find the rows of the nodes that take one such pod."""
    nodes = cluster.state.nodes
    rows = cluster.rows if only is None else only
    rows = rows[filter_nodes(nodes, query, rows)]
    if not len(rows):
        return rows
    names = [nodes.names[row] for row in rows.tolist()]
    rejections = cluster.kube_checks.find_all_rejections(
        requirements, query.request, leaving=leaving, only=names
    )
    return cluster.keep_accepted_rows(rows, rejections)


def can_fit_together(cluster: Cluster, kinds: Sequence[GangMembers], leaving: Collection[str] = ()) -> bool:
    """Tell whether room is found for all pods of a gang at once: each in turn, the largest ones first.

    Where it is found all of them fit. Where it is not, another order might find it.
    """
    return all(not left for _, left in place_together(cluster, kinds, leaving))


def place_together(
    cluster: Cluster, kinds: Sequence[GangMembers], leaving: Collection[str] = ()
) -> Iterator[tuple[GangMembers, int]]:
    """Place the pods of a gang, the largest ones first; give each kind, and how many of it find no room."""
    nodes = cluster.state.nodes
    hosts: dict[str, ScratchNode] = {}
    keys = {term.topology_key for kind in kinds for term in kind.requirements.anti_affinity} | {NODE_NAME}
    taken: dict[GangMembers, set[tuple[str, str]]] = {}
    for kind in _sort_by_hardness(cluster, kinds):
        taken[kind] = set()
        apart = [
            (apart_keys, there)
            for other, there in taken.items()
            if (apart_keys := find_apart_keys(kind.requirements, other.requirements))
        ]
        request, policy = kind.query.request, kind.query.policy_request.card_policy
        asked = kind.requirements.amounts.with_sums(request)
        rows = find_rows(cluster, kind.query, kind.requirements, leaving)
        scores = score_nodes(cluster.policies.get_policy(kind.query.request), nodes, kind.query, rows)
        order = [nodes.names[rows[at]] for at in rank_best(scores, nodes.name_rank[rows], len(rows)).tolist()]
        left = kind.pods
        for name in order:
            host = hosts[name] = hosts.get(name) or _make_scratch_node(cluster, name, leaving)
            places = find_places(cluster.nodes[name], keys)
            while left and not any(
                place in there for apart_keys, there in apart for place in places if place[0] in apart_keys
            ):
                if host.put_pod(request, policy, asked) is None:
                    break
                taken[kind] |= places
                left -= 1
            if not left:
                break
        yield kind, left


def _sort_by_hardness(cluster: Cluster, kinds: Sequence[GangMembers]) -> list[GangMembers]:
    """Sort pods of a gang, the hardest to place first, as the queue does."""
    largest = int(cluster.state.nodes.size.max(initial=0))
    return sorted(kinds, key=lambda kind: kind.query.request.make_hardness_key(largest))


def _make_scratch_node(cluster: Cluster, name: str, leaving: Collection[str]) -> ScratchNode:
    nodes = cluster.state.nodes
    left = cluster.kube_checks.get_left(name, leaving)
    return ScratchNode(build_cards(nodes, nodes.rows[name]), left)
