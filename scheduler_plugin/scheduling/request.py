"""The request of a pod for filter and policies: in units, also where the pod asks for percent of a card.

What a share of a card is in units depends on the card's size. On rows whose cards are all of one size, a pod
that asks for percent is one that asks for units. So filter and policies are asked once for each size, and
policies never see percent. Rows whose cards differ are looked at card by card.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocator.card_rules import NO_RULES
from allocator.names import DEFAULT_CARD_POLICY
from allocator.request import WHOLE, PodRequest
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.arrays import BoolArray, ClusterView, IntArray, LongArray, RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """A pod's request for cards; policies get the one of `with_units_for` where it asks for percent."""

    request: PodRequest
    policy_request: PolicyRequest


def make_policy_request(
    request: PodRequest,
    amounts: Amounts,
    card_policy: str = DEFAULT_CARD_POLICY,
    *,
    pod: str = "",
    admits: BoolArray | None = None,
) -> PolicyRequest:
    """Make what policies see of a request for units; one for percent is made so by `with_units_for`.

    Args:
        card_policy: The one of pods that name none.
        pod: UID, for policies that count attempts.
        admits: bool[R, K], the cards that the request's selector admits; None: every card.
    """
    return PolicyRequest(
        amounts=amounts,
        demands=tuple(CardDemand(d.per_card, d.cards, d.compute) for d in request.demands),
        admits=admits,
        card_policy=request.card_policy or card_policy,
        selector=request.selector,
        pod=pod,
        rules=request.rules,
    )


def with_units_for(query: SchedulingRequest, size: int) -> SchedulingRequest:
    """Return the request in units of cards that all have `size` units."""
    if not query.request.percent:
        return query
    demands = tuple(CardDemand(d.units_on(size), d.cards, d.compute) for d in query.request.demands)
    return replace(query, policy_request=replace(query.policy_request, demands=demands))


def with_compute(nodes: NodeArrays, query: SchedulingRequest) -> SchedulingRequest:
    """Return the request with only those cards admitted that have the compute for one of its demands now.

    For a pod with one demand that is all there is to its compute. Several demands may share a card.
    """
    ask = query.policy_request
    if not ask.least_compute:
        return query
    there = nodes.compute.mask_free(ask.least_compute)
    admits = there if ask.admits is None else ask.admits & there
    return SchedulingRequest(query.request, replace(ask, admits=admits))


def without_compute(query: SchedulingRequest) -> SchedulingRequest:
    containers = tuple(replace(container, compute=0) for container in query.request.containers)
    demands = tuple(demand._replace(compute=0) for demand in query.policy_request.demands)
    return replace(
        query,
        request=replace(query.request, containers=containers),
        policy_request=replace(query.policy_request, demands=demands),
    )


def without_rules(query: SchedulingRequest) -> SchedulingRequest:
    """Return the request as if any cards with room would do, so that the rest of it can be judged."""
    request = replace(query.request, mixed_models=True)
    if request.places == "apart":
        request = replace(request, places="")
    return replace(query, request=request, policy_request=replace(query.policy_request, rules=NO_RULES))


def split_rows(
    nodes: NodeArrays, query: SchedulingRequest, rows: RowArray
) -> tuple[Sequence[tuple[SchedulingRequest, RowArray | slice]], RowArray]:
    """Split rows into those on which any card is as good for a pod as another, and all others.

    On the others cards differ in size, and the pod asks for percent, or in model, and it asks for one model.

    Returns:
        The request in units and the positions of its rows, by size of their cards where that matters; and the
        positions of the rows that must be looked at card by card.
    """
    same_model = query.policy_request.rules.same_model and nodes.inventory.mixed_models.any()
    if not (same_model or query.request.percent):
        return [(query, slice(None))], rows[:0]
    differ: BoolArray = nodes.inventory.mixed_models[rows] & same_model
    if not query.request.percent:
        return [(query, np.flatnonzero(~differ) if differ.any() else slice(None))], np.flatnonzero(differ)
    sizes = find_card_sizes(nodes, rows)
    differ |= sizes < 0
    by_size = [
        (with_units_for(query, size), np.flatnonzero(~differ & (sizes == size)))
        for size in np.unique(sizes[~differ]).tolist()
    ]
    return by_size, np.flatnonzero(differ)


def find_card_sizes(view: ClusterView, rows: RowArray) -> IntArray:
    """Find the size that all cards of a row have: int32[m], 0 for a row without cards, -1 if they differ."""
    sizes = view.size[rows]
    largest = sizes.max(axis=1, initial=0)
    same = (sizes == largest[:, None]) | (np.arange(sizes.shape[1]) >= view.cards[rows][:, None])
    found: IntArray = np.where(same.all(axis=1), largest, -1)
    return found


def compute_units_by_card(view: ClusterView, query: SchedulingRequest, rows: RowArray) -> list[LongArray]:
    """Compute the units of each demand on each card: int64[m, K] for each demand."""
    sizes = view.size[rows].astype(np.int64)
    known = {size: [d.units_on(size) for d in query.request.demands] for size in np.unique(sizes).tolist()}
    result = []
    for number in range(len(query.request.demands)):
        units = np.zeros(sizes.shape, dtype=np.int64)
        for size, needs in known.items():
            units[sizes == size] = needs[number]
        result.append(units)
    return result


def compute_largest_percent(free: LongArray, size: LongArray) -> LongArray:
    """Compute the largest share, in percent, that cards with so many free units take; 0 for none."""
    # A share counts for whole units, rounded down, and no share of less than a unit is given.
    shares = np.minimum(WHOLE, ((free + 1) * WHOLE - 1) // np.maximum(size, 1))
    return np.where(shares * size >= WHOLE, shares, 0)


def find_usual_card_size(view: ClusterView, rows: RowArray) -> int:
    """Find the size that most cards of the rows have, 0 if there are no cards."""
    sizes = view.size[rows]
    values, counts = np.unique(sizes[sizes > 0], return_counts=True)
    return int(values[counts.argmax()]) if values.size else 0


def make_learning_request(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> PolicyRequest:
    """Make the request that policies learn from, in units of the cards that most rows have."""
    if not query.request.percent:
        return query.policy_request
    size = find_usual_card_size(nodes, rows) or find_usual_card_size(nodes, np.arange(nodes.row_count))
    return with_units_for(query, size).policy_request
