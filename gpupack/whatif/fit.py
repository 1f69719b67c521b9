"""Counts how many pods of a size fit, and where: now, and after a change."""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.names import (
    COMPUTE_RESOURCE,
    PERCENT_RESOURCE,
    POD_CARDS,
    POD_CONTAINERS,
    POD_GPU_MODEL,
    POD_MIXED_MODELS,
)
from allocator.quantity import canonical
from allocator.request import MAX_UNITS, WHOLE, PodRequest, parse_pod
from allocator.texts import count_of
from gpupack.errors import InputError
from gpupack.whatif.answers import FitAnswer, FitCount, NodePods
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import (
    HostRequirements,
    count_alike,
    find_apart_keys,
    get_sum_column,
    keep_apart,
    require_of_any_pod,
    require_of_plain_pod,
)
from gpupack.whatif.node_results import OFFERED
from scheduler_plugin.cache.amounts import NOTHING, PODS
from scheduler_plugin.cache.arrays import BoolArray, LongArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.scheduling.available import describe_available, explain_widened, widen_patterns
from scheduler_plugin.scheduling.card_costs import CardCosts, get_array_costs
from scheduler_plugin.scheduling.filtering import compute_free_on_one_model, filter_nodes, get_usable_units
from scheduler_plugin.scheduling.fit_counts import count_most_on_empty, count_most_pods
from scheduler_plugin.scheduling.policies.registry import PolicyRequest
from scheduler_plugin.scheduling.reasons import format_demands
from scheduler_plugin.scheduling.request import (
    SchedulingRequest,
    compute_largest_percent,
    find_card_sizes,
    split_rows,
    with_compute,
)
from scheduler_plugin.scheduling.scratch_node import ScratchNode


@dataclass(frozen=True, slots=True)
class FitQuestion:
    """The pods that are asked about.

    Attributes:
        units: Units of GPU memory over all cards of a pod, or of its first container; percent where
            `percent`.
        model: Models of card, as in the annotation gpupack.io/gpu-model; empty: any.
        percent: `units` are percent of a card.
        containers: Where several containers go, as in the annotation gpupack.io/containers; empty: anywhere.
        gang: Pods that have to fit at once; 0: no gang is asked about.
        compute: Percent of the compute of each card that each container asks for; 0: none.
    """

    units: int
    cards: int = 1
    model: str = ""
    percent: bool = False
    more: tuple[int, ...] = ()
    mixed_models: bool = False
    containers: str = ""
    gang: int = 0
    compute: int = 0


def build_request(ask: FitQuestion, resource: str) -> PodRequest:
    """Read a question as the request of a pod.

    Raises:
        InputError: what is wrong with it.
    """
    amounts = (ask.units, *ask.more)
    for units in amounts:
        _check_amount(ask, units)
    annotations = {POD_CARDS: str(ask.cards)}
    if ask.model:
        annotations[POD_GPU_MODEL] = ask.model
    if ask.mixed_models:
        annotations[POD_MIXED_MODELS] = "true"
    if ask.containers:
        annotations[POD_CONTAINERS] = ask.containers
    name = PERCENT_RESOURCE if ask.percent else resource
    compute = {COMPUTE_RESOURCE: canonical(ask.compute)} if ask.compute else {}
    containers = [
        {
            "name": f"c{number}" if number else "pod",
            "resources": {"limits": {name: canonical(units), **compute}},
        }
        for number, units in enumerate(amounts)
    ]
    try:
        request = parse_pod(annotations, (), containers, resource)
    except RequestError as error:
        raise InputError(str(error)) from error
    if request is None:
        raise InputError(f"{ask.units} units; allowed: 1 to {MAX_UNITS}")
    return request


def _check_amount(ask: FitQuestion, units: int) -> None:
    if not 1 <= units <= MAX_UNITS:
        raise InputError(f"{units} units; allowed: 1 to {MAX_UNITS}")
    each, what = f"{units} {'percent' if ask.percent else 'units'}", count_of(ask.cards, "card")
    if ask.cards > 1 and units % ask.cards:
        raise InputError(f"{each} on {what}; allowed: a multiple of the number of cards")
    if ask.percent and units > WHOLE * ask.cards > 0:
        raise InputError(f"{each} on {what}; allowed: at most {WHOLE * ask.cards}")


def answer_fit(
    cluster: Cluster, ask: FitQuestion, changed: Cluster | None = None, notes: Sequence[str] = ()
) -> FitAnswer:
    """Say how many pods fit now and where, and the largest request that fits; the same after a change.

    Nothing is known of the pod but its cards. So it asks for no cpu and memory, and tolerates the taints that
    people set.

    Args:
        changed: The cluster after a change.

    Raises:
        InputError: something is wrong with the question, or no node has cards.
    """
    if changed is None or not changed.has_words:
        require_cards(cluster)
    request = build_request(ask, cluster.state.resource)
    now = count_fit(cluster, request, gang=ask.gang)
    return FitAnswer(
        **msgspec.structs.asdict(now),
        asked=format_demands(request.demands, cluster.unit_mib),
        gang=ask.gang,
        after=None if changed is None else count_fit(changed, request, gang=ask.gang),
        notes=(*notes, *explain_unmatched_model(cluster, request), *cluster.list_omissions()),
        unit_mib=cluster.unit_mib,
    )


def explain_unmatched_model(cluster: Cluster, request: PodRequest) -> list[str]:
    """Say that no card of the cluster is of a model that was asked for, and which models there are."""
    selector, nodes = request.selector, cluster.state.nodes
    rows = cluster.rows[nodes.usable[cluster.rows]]
    present = np.unique(nodes.model[rows][nodes.size[rows] > 0]).tolist()
    if selector.admits_all or any(at >= 0 and selector.admits_model(nodes.model_names[at]) for at in present):
        return []
    there = describe_available(nodes, selector, rows, OFFERED)
    said = f"no card matches: {selector}, and the cluster has {there or 'no card whose model is known'}"
    return [said + explain_widened(widen_patterns(nodes, selector, rows))]


def require_cards(cluster: Cluster) -> None:
    """Check that a cluster has cards at all.

    Raises:
        InputError: no node offers any in this unit.
    """
    if not cluster.has_words:
        raise InputError(explain_no_words(cluster))


def explain_no_words(cluster: Cluster) -> str:
    """Say why no node of a cluster offers cards in its unit."""
    if not cluster.unreadable_nodes:
        return (
            f"no node of {cluster.source} offers GPU memory in units of {cluster.unit_mib} MiB; "
            "is gpupack node running on them? See docs/troubleshooting.md"
        )
    unread, nodes = len(cluster.unreadable_nodes), len(cluster.nodes)
    others = ", and the others offer no GPU memory" if unread < nodes else ""
    return (
        f"the packed words of {unread} of the {nodes} nodes of {cluster.source} cannot be read "
        f"(first: {cluster.first_unreadable_node}){others}. See docs/troubleshooting.md"
    )


def count_fit(
    cluster: Cluster, request: PodRequest, requirements: HostRequirements | None = None, *, gang: int = 0
) -> FitCount:
    """Count the pods that fit, one after the other on what the ones before left.

    Args:
        requirements: Of the pods. Without them, nodes whose taints the pods may not tolerate count apart.
    """
    nodes, hosts = cluster.state.nodes, cluster.kube_checks
    taints_of = hosts.list_repelling_taints if requirements is None else _repels_nobody
    requirements = require_of_any_pod() if requirements is None else requirements
    query = cluster.make_query(request, requirements)
    rows = cluster.keep_accepted_rows(cluster.rows, hosts.find_rejections(requirements))
    numbers = count_by_node(cluster, query, requirements, rows)
    plain = require_of_plain_pod()
    found = tuple(
        NodePods(name, pods, tuple(taints_of(name, plain))) for name, pods in sorted(numbers.items()) if pods
    )
    untainted = rows[[not taints_of(nodes.names[row], plain) for row in rows.tolist()]]
    largest = find_largest_request(cluster, query, untainted)
    missing = max(0, gang - sum(each.pods for each in found))
    return FitCount(
        missing_pods=missing,
        pods_on_empty_nodes=count_on_empty_cluster(cluster, query, requirements, gang) if missing else 0,
        pods=sum(each.pods for each in found if not each.tolerations),
        largest_units=largest,
        nodes=found,
        tolerating_pods=sum(each.pods for each in found if each.tolerations),
        largest_tolerating_units=(
            largest if len(untainted) == len(rows) else find_largest_request(cluster, query, rows)
        ),
    )


def count_on_empty_cluster(
    cluster: Cluster, query: SchedulingRequest, requirements: HostRequirements, most: int
) -> int:
    """Compute an upper bound of the equal pods that an empty cluster holds at once, up to a limit."""
    rows = cluster.keep_accepted_rows(cluster.rows, cluster.kube_checks.find_lasting_rejections(requirements))
    asked = requirements.amounts.with_sums(query.request)
    names = (cluster.state.nodes.names[row] for row in rows.tolist())
    counts = count_most_on_empty(cluster.state.nodes, query, asked, rows).tolist()
    pods = dict(zip(names, counts, strict=True))
    kept = (keep_apart(cluster.nodes, [key], pods) for key in find_apart_keys(requirements, requirements))
    return min(most, *(int(sum(each.values())) for each in (pods, *kept)))


def _repels_nobody(_name: str, _requirements: HostRequirements) -> list[str]:
    return []


def count_by_node(
    cluster: Cluster,
    query: SchedulingRequest,
    requirements: HostRequirements,
    rows: RowArray,
    most: int = sys.maxsize,
    leaving: Collection[str] = (),
) -> dict[str, int]:
    """Count how many equal pods each node takes once pods of these UIDs are gone, at most so many each."""
    rooms = {}
    for name in (cluster.state.nodes.names[row] for row in rows.tolist()):
        left = cluster.kube_checks.get_left(name, leaving)
        rooms[name] = min(most, count_alike(requirements, query.request, left, cluster.nodes[name]))
    counts = _count_by_cards(cluster, query, rows, rooms)
    return keep_apart(cluster.nodes, find_apart_keys(requirements, requirements), counts)


def _count_by_cards(
    cluster: Cluster, query: SchedulingRequest, rows: RowArray, most: Mapping[str, int]
) -> Counter[str]:
    """Count how many pods each node takes, by the card policy; at most so many as `most` says.

    Pods that ask for one card fill each card by itself, whichever is first. With more cards the order of the
    choices matters, so the pods are placed one after the other, on all nodes at once.
    """
    nodes = cluster.state.nodes
    rows = rows[filter_nodes(nodes, query, rows)] if len(rows) else rows
    demands = query.request.demands
    if len(demands) == 1 and demands[0].cards == 1:
        pods = zip(rows.tolist(), count_most_pods(nodes, query, rows).tolist(), strict=True)
        return Counter({(name := nodes.names[row]): min(most[name], number) for row, number in pods})
    # Where sizes differ, more or fewer pods fit as one or the other of equally good cards is chosen.
    even = find_card_sizes(nodes, rows) >= 0
    one_by_one, rows = rows[~even], rows[even]
    by_size, others = split_rows(nodes, query, rows)
    counts = _count_one_by_one(cluster, query, np.concatenate((one_by_one, rows[others])), most)
    for in_units, at in by_size:
        counts += _filled(cluster, in_units, rows[at], most)
    return counts


def _filled(
    cluster: Cluster, query: SchedulingRequest, rows: RowArray, most: Mapping[str, int]
) -> Counter[str]:
    """Place pods on many nodes at once, until none takes another.

    As `allocator.policy.choose` does it, but for how near cards are to each other: that decides between cards
    that the policy finds equally good.
    """
    nodes = cluster.state.nodes
    costs = get_array_costs(query.policy_request.card_policy)
    if costs is None or len(query.policy_request.demands) > 1 or query.request.asks_compute:
        return _count_one_by_one(cluster, query, rows, most)
    counts: Counter[str] = Counter()
    left = np.array([row for row in rows.tolist() if most[nodes.names[row]]], dtype=np.intp)
    free: LongArray = nodes.free[left].astype(np.int64)
    while len(left):
        placed = _place_one_pod(query.policy_request, nodes.size[left].astype(np.int64), free, left, costs)
        left, free = left[placed], free[placed]
        counts.update(nodes.names[row] for row in left.tolist())
        more = [counts[nodes.names[row]] < most[nodes.names[row]] for row in left.tolist()]
        left, free = left[more], free[more]
    return counts


def _place_one_pod(
    ask: PolicyRequest, size: LongArray, free: LongArray, rows: RowArray, costs_of: CardCosts
) -> BoolArray:
    """Subtract one pod's cards from the free units of every row; return which rows had them."""
    units, cards, _ = ask.demands[0]
    fits = free >= units
    if ask.admits is not None:
        fits &= ask.admits[rows]
    costs = costs_of(size, free, units)
    costs[~fits] = np.inf
    # The best cards first, all of them different.
    order = np.argsort(costs, axis=1, kind="stable")[:, :cards]
    placed: BoolArray = np.count_nonzero(fits, axis=1) >= cards
    np.put_along_axis(free, order, np.take_along_axis(free, order, axis=1) - units, axis=1)
    return placed


def _count_one_by_one(
    cluster: Cluster, query: SchedulingRequest, rows: RowArray, most: Mapping[str, int]
) -> Counter[str]:
    nodes, policy = cluster.state.nodes, query.policy_request.card_policy
    names = ((row, nodes.names[row]) for row in rows.tolist())
    return Counter(
        {
            name: count_fit_on_cards(build_cards(nodes, row), query.request, policy, most[name])
            for row, name in names
        }
    )


def count_fit_on_cards(cards: Sequence[Card], request: PodRequest, card_policy: str, most: int) -> int:
    """Place pods on cards one after the other until no more fit, up to a limit."""
    node = ScratchNode(cards, NOTHING)
    for number in range(most):
        if node.put_pod(request, card_policy, NOTHING) is None:
            return number
    return most


def find_largest_request(cluster: Cluster, query: SchedulingRequest, rows: RowArray) -> int:
    """Find the largest request, over as many cards, that fits now; 0 for none, or for several containers."""
    nodes, request = cluster.state.nodes, query.request
    if len(request.demands) > 1:
        return 0
    if request.asks_compute:
        query = with_compute(nodes, query)
    rows = rows[nodes.mask_offering(request)[rows]]
    sums = nodes.amounts.compute_left(get_sum_column(request), rows)
    has_left = (sums > 0) & (nodes.amounts.compute_left(PODS, rows) > 0)
    rows, sums = rows[has_left], sums[has_left]
    if not len(rows) or request.cards > nodes.free.shape[1]:
        return 0
    free = get_usable_units(nodes, query.policy_request, rows)
    if request.percent:
        free = compute_largest_percent(free, nodes.size[rows].astype(np.int64))
    each = (
        compute_free_on_one_model(nodes, rows, free, request.cards)
        if request.rules.same_model
        else np.sort(free, axis=1)[:, -request.cards]
    )
    return int(np.minimum(each, sums // request.cards).max()) * request.cards
