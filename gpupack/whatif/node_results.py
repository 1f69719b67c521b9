"""Why nodes refuse a pod: kube-scheduler's and filter's reasons, grouped, with numbers."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from allocator.quantity import format_memory
from allocator.texts import count_of
from gpupack.whatif.answers import ClosestNode, NodeGroup
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import HostRequirements, get_sum_column
from scheduler_plugin.cache.arrays import LongArray, RowArray
from scheduler_plugin.scheduling.available import describe_available, explain_widened, widen_patterns
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes, get_usable_units
from scheduler_plugin.scheduling.node_fit import (
    CORDONED,
    CPU,
    MEMORY,
    NEIGHBOURS,
    NOT_READY,
    PODS,
    PORTS,
    RESOURCE,
    SELECTOR,
    SUM,
    TAINT,
    Rejection,
    Shortage,
)
from scheduler_plugin.scheduling.reasons import FilterReason, format_amount, format_demands, format_rules
from scheduler_plugin.scheduling.request import SchedulingRequest, compute_units_by_card

_FILTER_REASONS: Final = {reason.json_name: reason for reason in FilterReason}
_BY_CODE: Final = {int(reason): Rejection(name) for name, reason in _FILTER_REASONS.items()}
_NO_WORDS: Final = _BY_CODE[FilterReason.NO_WORDS]
_WITH_CARDS: Final = [name for name, reason in _FILTER_REASONS.items() if reason < FilterReason.NOT_ADMITTED]
"""Reasons of nodes that have cards which the pod may use."""

ORDER: Final = (
    *(name for name, reason in _FILTER_REASONS.items() if reason < FilterReason.TOO_SMALL),
    SUM,
    *(
        name
        for name, reason in _FILTER_REASONS.items()
        if reason >= FilterReason.TOO_SMALL and reason.exclusion is None
    ),
    CPU,
    MEMORY,
    RESOURCE,
    PODS,
    PORTS,
    NEIGHBOURS,
    TAINT,
    SELECTOR,
    CORDONED,
    NOT_READY,
    *(name for name, reason in _FILTER_REASONS.items() if reason.exclusion is not None),
)
"""Nodes that come closest stand first: filter's reasons as everywhere, kube-scheduler's among them."""

_EXAMPLES: Final = 3
OFFERED: Final = 8


@dataclass(frozen=True, slots=True)
class NodeResults:
    """The finding for every node."""

    fits: tuple[str, ...]
    rejections: dict[str, Rejection]
    groups: tuple[NodeGroup, ...]


def collect_node_results(
    cluster: Cluster, query: SchedulingRequest, requirements: HostRequirements
) -> NodeResults:
    nodes, rows = cluster.state.nodes, cluster.rows
    out = rows[~filter_nodes(nodes, query, rows)]
    codes = explain_rejections(nodes, query, out)
    refused = zip(out.tolist(), codes.tolist(), strict=True)
    rejections_by_node = {nodes.names[row]: _BY_CODE[code] for row, code in refused}
    for name, rejection in cluster.kube_checks.find_all_rejections(requirements, query.request).items():
        of_cards = rejections_by_node.get(name)
        # A node without GPU memory is that first of all, whatever taints it has; its sum comes last.
        if of_cards is None or not (of_cards == _NO_WORDS or rejection.reason == SUM):
            rejections_by_node[name] = rejection
    fits = tuple(nodes.names[row] for row in rows.tolist() if nodes.names[row] not in rejections_by_node)
    return NodeResults(fits, rejections_by_node, _groups(cluster, query, rejections_by_node))


def _groups(
    cluster: Cluster,
    query: SchedulingRequest,
    rejections: dict[str, Rejection],
) -> tuple[NodeGroup, ...]:
    names: defaultdict[Rejection, list[str]] = defaultdict(list)
    for name in sorted(rejections):
        names[rejections[name]].append(name)
    groups = [
        _group(cluster, query, {name: rejections[name] for name in members}) for members in names.values()
    ]
    return tuple(sorted(groups, key=lambda group: (ORDER.index(group.reason), -group.count, group.text)))


def _group(
    cluster: Cluster,
    query: SchedulingRequest,
    rejections: dict[str, Rejection],
) -> NodeGroup:
    """Describe nodes that are refused for one reason; of a resource the node with most of it left tells."""
    names = list(rejections)
    shortages = {name: each.shortage for name, each in rejections.items() if each.shortage is not None}
    closest = max(shortages, key=lambda name: shortages[name].left, default=names[0])
    rejection = rejections[closest]
    rows = np.array([cluster.state.nodes.rows[name] for name in names], dtype=np.intp)
    best, asked = None, 0
    if rejection.reason in _WITH_CARDS:
        too_small = rejection.reason == FilterReason.TOO_SMALL.json_name
        best, asked = find_closest_node(cluster, query, rows, empty=too_small)
    if rejection.reason == FilterReason.COMPUTE_NOT_FREE.json_name:
        best = find_closest_compute(cluster, query, rows)
    if rejection.reason in {CPU, MEMORY, RESOURCE}:
        best = ClosestNode(closest, None, None)
    if rejection.reason == SUM:
        left = cluster.state.nodes.amounts.compute_left(get_sum_column(query.request), rows)
        best = ClosestNode(names[int(left.argmax())], None, None)
    if not asked:
        asked = max(
            demand.units_on(0) if not query.request.percent else 0 for demand in query.request.demands
        )
    text = _Sentences(cluster, query).explain(rejection, rows, best, asked)
    return NodeGroup(rejection.reason, len(names), best, asked, text, tuple(names[:_EXAMPLES]))


def _describe_shortage(shortage: Shortage) -> str:
    resource = shortage.resource
    left, asked = (_format_resource(resource, amount) for amount in (shortage.left, shortage.asked))
    name = "host memory" if resource == "memory" else resource
    return f"the most {name} that a node has left is {left}, asked {asked}"


def _format_resource(resource: str, amount: int) -> str:
    if resource == "cpu":
        return _cores(amount)
    in_bytes = resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-")
    return f"{amount >> 20} MiB" if in_bytes else str(amount)


def _cores(milli: int) -> str:
    """Write thousandths of a core: "124 cpu", "0.5 cpu"."""
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") + " cpu"


def find_closest_node(
    cluster: Cluster, query: SchedulingRequest, rows: RowArray, *, empty: bool
) -> tuple[ClosestNode | None, int]:
    """Find the node whose cards lack the least, its deciding card, and what is asked of that card in units.

    Where a pod asks for c cards the c-th emptiest decides: as many have at least as much free.
    """
    nodes = cluster.state.nodes
    demands = query.request.demands
    at = max(range(len(demands)), key=lambda i: (demands[i].per_card * demands[i].cards, demands[i].cards))
    demand = demands[at]
    if not len(rows) or demand.cards > nodes.free.shape[1]:
        return None, 0
    shown = nodes.as_emptied() if empty else nodes
    free = get_usable_units(shown, query.policy_request, rows)
    left = free - compute_units_by_card(nodes, query, rows)[at]
    left[nodes.size[rows] == 0] = -(1 << 40)
    order = np.argsort(-left, axis=1, kind="stable")[:, demand.cards - 1]
    deciding = left[np.arange(len(rows)), order]
    first = int(deciding.argmax())
    card = int(order[first])
    row = int(rows[first])
    if not nodes.size[row, card]:
        return None, 0
    number = cluster.state.node_records[nodes.names[row]].get_card_number(card)
    left_units = int(get_usable_units(nodes, query.policy_request, rows[[first]])[0, card])
    best = ClosestNode(nodes.names[row], number, left_units)
    return best, demand.units_on(int(nodes.size[row, card]))


def find_closest_compute(cluster: Cluster, query: SchedulingRequest, rows: RowArray) -> ClosestNode | None:
    """Find the node whose cards with the memory free lack the least compute, and its deciding card.

    It is found for the demand that asks for most compute of each card; see `find_closest_node`.
    """
    nodes = cluster.state.nodes
    demands = query.request.demands
    at = max(range(len(demands)), key=lambda i: (demands[i].compute, demands[i].cards))
    free = get_usable_units(nodes, query.policy_request, rows)
    has_memory = (free >= compute_units_by_card(nodes, query, rows)[at]) & (nodes.size[rows] > 0)
    left = np.where(has_memory, nodes.compute_free[rows], -(1 << 30))
    order = np.argsort(-left, axis=1, kind="stable")[:, demands[at].cards - 1]
    first = int(left[np.arange(len(rows)), order].argmax())
    card, row = int(order[first]), int(rows[first])
    if not has_memory[first, card]:
        return None
    return ClosestNode(
        nodes.names[row],
        cluster.state.node_records[nodes.names[row]].get_card_number(card),
        int(nodes.free[row, card]),
        max(0, int(nodes.compute_free[row, card])),
    )


class _Sentences:
    """Says why, with the numbers of a group."""

    def __init__(self, cluster: Cluster, query: SchedulingRequest) -> None:
        self._cluster = cluster
        self._query = query
        self._unit = cluster.unit_mib

    def explain(self, rejection: Rejection, rows: RowArray, best: ClosestNode | None, asked: int) -> str:
        special = {
            FilterReason.NOT_FREE.json_name: self._not_free,
            FilterReason.COMPUTE_NOT_FREE.json_name: self._compute_not_free,
            FilterReason.CARD_RULES.json_name: self._card_rules,
            FilterReason.TOO_SMALL.json_name: self._too_small,
            FilterReason.NOT_ADMITTED.json_name: self._not_admitted,
            FilterReason.NO_SUCH_CARD.json_name: self._not_admitted,
            SUM: self._sum,
        }.get(rejection.reason)
        if special is not None:
            return special(rows, best, asked)
        reason = _FILTER_REASONS.get(rejection.reason)
        if reason is not None:
            return reason.sentence.format(unit=format_memory(1, self._unit))
        if rejection.reason in {CPU, MEMORY, RESOURCE} and rejection.shortage is not None:
            return _describe_shortage(rejection.shortage)
        most_pods = "" if rejection.shortage is None else f", {rejection.shortage.capacity}"
        return {
            NOT_READY: "the node is not Ready",
            CORDONED: "the node is cordoned (SchedulingDisabled)",
            TAINT: f"the node has the taint {rejection.detail}, which the pod does not tolerate",
            SELECTOR: "the pod's nodeSelector or node affinity does not match the node",
            PODS: f"the node has as many pods as it may have{most_pods}",
            PORTS: "another pod has a host port that this one wants",
            NEIGHBOURS: f"the required pod {rejection.detail or 'affinity'} does not allow the node",
        }[rejection.reason]

    def _not_free(self, rows: RowArray, best: ClosestNode | None, asked: int) -> str:
        demands = self._query.request.demands
        wanted = format_demands(demands, self._unit)
        if best is None or best.free_units is None:
            return f"no node has the cards for {wanted} free"
        free, short = (
            format_memory(best.free_units, self._unit),
            format_memory(max(0, asked - best.free_units), self._unit),
        )
        if len(demands) > 1:
            return f"{wanted} do not fit together on any node; the closest card has {free} free"
        demand = demands[0]
        what = format_memory(asked, self._unit)
        if demand.cards == 1 and demand.percent:  # of a larger card more is asked, and more may be free
            each = format_amount(demand, self._unit)
            return f"the closest card has {free} free, {each} of it is {what}: {short} short"
        if demand.cards == 1:
            return f"the largest free share of a card is {free}, asked {what}: {short} short"
        each = format_amount(demand, self._unit)
        usable = get_usable_units(self._cluster.state.nodes, self._query.policy_request, rows)
        most = self._count_most_cards(rows, usable)
        if not most:
            with_most = f"the closest node has {demand.cards} with {free}"
            return f"no card of any node has {each} free, asked are {demand.cards}; {with_most}"
        return f"at most {count_of(most, 'card')} of a node have {each} free, asked are {demand.cards}"

    def _compute_not_free(self, _rows: RowArray, best: ClosestNode | None, _asked: int) -> str:
        demands = self._query.request.demands
        wanted = format_demands(demands, self._unit)
        if best is None or best.free_units is None or len(demands) > 1:
            return f"{wanted} do not fit together on any node: compute is short on cards with the memory"
        asked = demands[0].compute
        free = format_memory(best.free_units, self._unit)
        which = "the closest card" if demands[0].cards == 1 else f"of {demands[0].cards} cards the last one"
        left = f"only {best.compute_free} percent of its compute left, asked {asked}"
        return f"{which} has {free} free, but {left}"

    def _count_most_cards(self, rows: RowArray, units: LongArray) -> int:
        """Count the cards of a node that have what the first demand asks of each, on the node with most."""
        nodes = self._cluster.state.nodes
        there = units >= compute_units_by_card(nodes, self._query, rows)[0]
        return int(np.count_nonzero(there & (nodes.size[rows] > 0), axis=1).max())

    def _card_rules(self, _rows: RowArray, _best: ClosestNode | None, _asked: int) -> str:
        request = self._query.request
        return f"there is room, but no {format_rules(request.demands, request.rules, self._unit)}"

    def _too_small(self, rows: RowArray, _best: ClosestNode | None, _asked: int) -> str:
        nodes, ask = self._cluster.state.nodes, self._query.policy_request
        sizes = get_usable_units(nodes.as_emptied(), ask, rows)
        demands = self._query.request.demands
        wanted = format_demands(demands, self._unit)
        compute, limit = (
            max(demand.compute for demand in demands),
            int(nodes.compute_limit[rows].max()),
        )
        if compute > limit:
            return f"a card gives {limit} percent of its compute in all, asked {wanted}"
        if not sizes.any():
            return f"no card is healthy and in use there, asked {wanted}"
        most = max(demand.cards for demand in demands)
        cards = int(np.count_nonzero(sizes, axis=1).max())
        if most > cards:
            return f"the node with the most cards has {cards} that are healthy, asked are {most}"
        if len(demands) > 1 and self._each_fits(rows, sizes):
            return f"{wanted} do not fit together on any node, even with all of its healthy cards empty"
        enough = self._count_most_cards(rows, sizes) if len(demands) == 1 else 0
        if enough:
            cards_of = f"{count_of(enough, 'healthy card')} of a node"
            return f"at most {cards_of} can hold {format_amount(demands[0], self._unit)}, asked are {most}"
        return f"the largest healthy card has {format_memory(int(sizes.max()), self._unit)}, asked {wanted}"

    def _each_fits(self, rows: RowArray, sizes: LongArray) -> bool:
        """Return True if some empty node would have the cards for each demand separately."""
        nodes, query = self._cluster.state.nodes, self._query
        there = [
            np.count_nonzero((sizes > 0) & (sizes >= units), axis=1) >= demand.cards
            for demand, units in zip(
                query.request.demands, compute_units_by_card(nodes, query, rows), strict=True
            )
        ]
        return bool(np.logical_and.reduce(there).any())

    def _not_admitted(self, rows: RowArray, _best: ClosestNode | None, _asked: int) -> str:
        selector = self._query.request.selector
        there = describe_available(self._cluster.state.nodes, selector, rows, OFFERED)
        said = f"the pod's {selector}, and the cards there are {there or 'of no known model'}"
        return said + explain_widened(widen_patterns(self._cluster.state.nodes, selector, rows))

    def _sum(self, rows: RowArray, _best: ClosestNode | None, _asked: int) -> str:
        request = self._query.request
        sums = self._cluster.state.nodes.amounts.compute_left(get_sum_column(request), rows)
        most = max(0, int(sums.max()))
        left = f"{most} percent" if request.percent else format_memory(most, self._unit)
        return (
            "by kube-scheduler's count of the node's sum too little is left "
            f"({left}): it counts pods on unhealthy cards against the others"
        )
