"""Counts how many equal pods fit on nodes at once, and what must become free for the first one. Pure."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from allocator.exact import fit_together
from allocator.request import Demand
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.arrays import IntArray, LongArray, RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.filtering import filter_nodes, get_usable_units
from scheduler_plugin.scheduling.request import SchedulingRequest, compute_units_by_card

MOST_SEARCHED: Final = 256
"""Cards, and demands, up to which all ways are tried; of more only the sums are compared."""

MOST_COUNTED: Final = 4096
"""Highest count of pods for one node."""

NEVER: Final = 1 << 40
"""Units that a card, or a node, never has: where a demand cannot be served at all."""


def count_most_pods(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> LongArray:
    """Count the equal pods that nodes can hold at once, judged by their cards.

    Returns:
        int64[m], at most `MOST_COUNTED` each. No node takes more; one may take fewer where a pod has several
        containers, each on cards of its own.
    """
    free = get_usable_units(nodes, query.policy_request, rows)
    has_cards = nodes.size[rows] > 0
    most: LongArray = np.full(len(rows), MOST_COUNTED, dtype=np.int64)
    total = np.zeros(free.shape, dtype=np.int64)
    rules = query.request.rules
    by_demand = compute_units_by_card(nodes, query, rows)
    compute = nodes.compute.get_free(rows)
    for demand, units in zip(query.request.demands, by_demand, strict=True):
        fits = np.where(has_cards & (units > 0), free // np.maximum(units, 1), 0)
        if demand.compute:
            fits = np.minimum(fits, compute // demand.compute)
        if rules.same_model and nodes.inventory.mixed_models[rows].any():
            models = nodes.model[rows]
            groups = [
                count_card_groups(np.where(models == model, fits, 0), demand.cards)
                for model in np.unique(models).tolist()
            ]
            most = np.minimum(most, np.sum(groups, axis=0))
        else:
            most = np.minimum(most, count_card_groups(fits, demand.cards))
        total += units * demand.cards
    if rules.apart:
        # Each pod has as many different cards as its demands have together.
        fewest = np.maximum(np.minimum.reduce(by_demand), 1)
        fits = np.where(has_cards, free // fewest, 0)
        most = np.minimum(most, count_card_groups(fits, sum(each.cards for each in query.request.demands)))
    least = np.where(has_cards, total, NEVER).min(axis=1, initial=NEVER)
    most = np.minimum(most, free.sum(axis=1) // np.maximum(least, 1))
    if percent := query.policy_request.compute:
        most = np.minimum(most, np.where(free > 0, compute, 0).sum(axis=1) // percent)
    most[~filter_nodes(nodes, query, rows)] = 0
    return most


def count_most_on_empty(
    nodes: NodeArrays, query: SchedulingRequest, beside: Amounts, rows: RowArray
) -> LongArray:
    """Count the equal pods that nodes hold once all others have ended: int64[m], see `count_most_pods`."""
    emptied = nodes.as_emptied()
    most = count_most_pods(emptied, query, rows)
    return np.minimum(most, emptied.amounts.count_fits(beside, rows), out=most)


def compute_least_missing(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> LongArray:
    """Compute how many units must at least become free on nodes before a pod fits: int64[m].

    That is what the demand that needs most would lack on the cards of each node alone, where compute that is
    short counts as that part of a card's units, and no less than the units that all of them lack. `NEVER`
    where empty cards do not suffice for one.
    """
    size = get_usable_units(nodes.as_emptied(), query.policy_request, rows)
    taken = (nodes.used[rows] + nodes.assumed[rows]).astype(np.int64)
    limit, compute_free = nodes.compute_limit[rows][:, None], nodes.compute_free[rows].astype(np.int64)
    most: LongArray = np.zeros(len(rows), dtype=np.int64)
    total = np.zeros(len(rows), dtype=np.int64)
    for demand, units in zip(query.request.demands, compute_units_by_card(nodes, query, rows), strict=True):
        lacks = np.maximum(0, taken + units - size)
        if demand.compute:
            percent = np.maximum(0, demand.compute - compute_free)
            np.maximum(lacks, percent * size // np.maximum(limit, 1), out=lacks)
        never = (size < units) | (limit < demand.compute)
        lacks[never] = NEVER
        if demand.cards > lacks.shape[1]:
            return np.full(len(rows), NEVER, dtype=np.int64)
        np.maximum(most, np.sort(lacks, axis=1)[:, : demand.cards].sum(axis=1), out=most)
        # What pods have beyond a card's size ends once for all demands.
        lacks = np.where(never, NEVER, np.maximum(0, np.minimum(taken, size) + units - size))
        total += np.sort(lacks, axis=1)[:, : demand.cards].sum(axis=1)
    return np.minimum(np.maximum(most, total), NEVER)


def can_ever_hold_all(nodes: NodeArrays, kinds: Iterable[tuple[SchedulingRequest, int]]) -> bool:
    """Tell whether empty cards could hold pods with different requests at once.

    Nodes, models, cpu and memory are ignored, so a yes is not certain; a no is.

    Args:
        kinds: Requests, and the number of pods with each.
    """
    usable = nodes.usable
    sizes = nodes.evictable[usable]
    limits = np.broadcast_to(nodes.compute_limit[usable][:, None], sizes.shape)
    demands = [demand for query, pods in kinds for demand in query.request.demands * pods]
    if int(sizes.astype(np.int64).sum()) < sum(
        _compute_least_units(demand, sizes) * demand.cards for demand in demands
    ):
        return False
    there = sizes > 0
    cards = [
        (size, size, limit) for size, limit in zip(sizes[there].tolist(), limits[there].tolist(), strict=True)
    ]
    if len(cards) > MOST_SEARCHED or len(demands) > MOST_SEARCHED:
        return True
    found = fit_together(cards, [demand.need for demand in demands])
    return found.picks is not None or not found.complete


def _compute_least_units(demand: Demand, sizes: IntArray) -> int:
    if not demand.percent:
        return demand.per_card
    return min((demand.units_on(size) for size in np.unique(sizes[sizes > 0]).tolist()), default=0)


def count_card_groups(fits: LongArray, cards: int) -> LongArray:
    """Count groups of `cards` different cards of a node; a card is in as many groups as pods fit on it."""
    high: LongArray = np.minimum(fits.sum(axis=1) // cards, MOST_COUNTED)
    low: LongArray = high if cards == 1 else np.zeros_like(high)
    while (low < high).any():
        middle = (low + high + 1) // 2
        enough = np.minimum(fits, middle[:, None]).sum(axis=1) >= middle * cards
        low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
    return low
