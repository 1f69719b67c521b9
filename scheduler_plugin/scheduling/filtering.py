"""Finds the nodes that can take a pod, vectorised over node rows; the scalar `allocator.place` is the oracle.

1. A pod with one demand fits where enough cards are free, of one model where its cards must be.
2. A pod with several demands is placed by the card policy. That is done for all nodes at once where the
   policy has array costs and each demand is for one card.
3. If that fails or is not possible, sums rule out most nodes. The others are searched exactly, once for all
   nodes that are alike.
"""

from typing import Final

import numpy as np

from allocator.exact import fit_together
from allocator.place import place
from scheduler_plugin.cache.arrays import BoolArray, LongArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.card_costs import CardCosts, get_array_costs
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest
from scheduler_plugin.scheduling.reasons import FilterReason
from scheduler_plugin.scheduling.request import (
    SchedulingRequest,
    compute_units_by_card,
    split_rows,
    with_compute,
    without_compute,
    without_rules,
)

CodeArray = np.ndarray[tuple[int], np.dtype[np.int8]]

_NUMA_BITS: Final = 62

_EVERY_BYTE: Final = np.uint64(0x0101010101010101)

_UNITS: Final = 1 << 20
_PERCENT: Final = 1 << 10
"""More than a card has of units, and gives away of its compute, where one number says all of a card."""


def filter_nodes(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> BoolArray:
    """Tell which of the rows, in use or not, have the cards for a pod: bool[m]."""
    query = with_compute(nodes, query)
    by_size, others = split_rows(nodes, query, rows)
    fits: BoolArray = nodes.mask_offering(query.request)[rows]
    for in_units, at in by_size:
        fits[at] = _filter_even_rows(nodes, in_units, rows[at], fits[at])
    if others.size:
        fits[others] = _filter_mixed_rows(nodes, query, rows[others], fits[others])
    return fits


def _filter_even_rows(
    nodes: NodeArrays, query: SchedulingRequest, rows: RowArray, fits: BoolArray
) -> BoolArray:
    """Tell which of the nodes in `fits` have the cards, where only the free units of cards matter."""
    ask = query.policy_request
    for demand in ask.demands:
        fits &= _has_cards(nodes, ask, rows, demand, demand.cards)
    if len(ask.demands) > 1:
        left = np.flatnonzero(fits)
        left = left[~_fit_with_any_cards(nodes, ask, rows[left])]
        if left.size:
            fits[left] = _fit_together(nodes, query, rows[left])
    return fits


def get_usable_units(nodes: NodeArrays, ask: PolicyRequest, rows: RowArray) -> LongArray:
    """Return the free units of the cards that the pod may use: int64[m, K]; 0 for other cards."""
    free: LongArray = nodes.free[rows].astype(np.int64)
    return free if ask.admits is None else np.where(ask.admits[rows], free, 0)


def compute_free_on_one_model(nodes: NodeArrays, rows: RowArray, free: LongArray, cards: int) -> LongArray:
    """Compute the most units that `cards` cards of one model have free each: int64[m], 0 for none.

    Args:
        free: int64[m, K], free units of the cards that count, 0 of the others.
    """
    most: LongArray = np.zeros(len(rows), dtype=np.int64)
    if cards > free.shape[1]:
        return most
    models = nodes.model[rows]
    for model in np.unique(models).tolist():
        of_model = np.sort(np.where(models == model, free, 0), axis=1)[:, -cards]
        np.maximum(most, of_model, out=most)
    return most


def _filter_mixed_rows(
    nodes: NodeArrays, query: SchedulingRequest, rows: RowArray, fits: BoolArray
) -> BoolArray:
    """Tell which of the nodes in `fits` have the cards, where also the size or model of cards matters."""
    for demand, units in zip(query.request.demands, compute_units_by_card(nodes, query, rows), strict=True):
        there = nodes.free[rows] >= units
        if query.policy_request.admits is not None:
            there &= query.policy_request.admits[rows]
        if query.request.rules.same_model:
            fits &= compute_free_on_one_model(nodes, rows, there.astype(np.int64), demand.cards) > 0
        else:
            fits &= np.count_nonzero(there, axis=1) >= demand.cards
    left = np.flatnonzero(fits)
    if left.size and len(query.request.demands) > 1:
        fits[left] = _fit_exactly(nodes, query, rows[left])
    return fits


def _has_cards(
    nodes: NodeArrays, ask: PolicyRequest, rows: RowArray, demand: CardDemand, cards: int
) -> BoolArray:
    """Tell which nodes have `cards` cards that each have what the demand asks of one."""
    if cards > nodes.free.shape[1]:
        return np.zeros(len(rows), dtype=np.bool_)
    # `with_compute` has left only cards with the least compute that any demand asks for.
    more_compute = demand.compute > ask.least_compute
    if ask.admits is None and not more_compute and nodes.free_order.size:
        result: BoolArray = nodes.free_order[cards - 1][rows] >= demand.units
        return result
    # To look at all rows takes less time than to gather the cards of a quarter of them.
    everywhere = 4 * len(rows) > nodes.row_count
    at = slice(None) if everywhere else rows
    there: BoolArray = nodes.free[at] >= demand.units
    if ask.admits is not None:
        there &= ask.admits[at]
    if more_compute:
        there &= nodes.compute.mask_free(demand.compute)[at]
    admitted = _have_so_many(there, cards)
    return admitted[rows] if everywhere else admitted


def _have_so_many(there: BoolArray, cards: int) -> BoolArray:
    """Tell which rows of bool[m, K] have so many True, with the bytes of eight cards as one integer."""
    short = -there.shape[1] % 8
    eights = (np.pad(there, ((0, 0), (0, short))) if short else there).view(np.uint64)
    if cards == 1 and eights.shape[1] == 1:
        any_there: BoolArray = eights[:, 0] != 0
        return any_there
    # The product's highest byte is the sum of all bytes.
    counts = eights * _EVERY_BYTE >> np.uint64(56)
    result: BoolArray = (counts[:, 0] if eights.shape[1] == 1 else counts.sum(axis=1)) >= cards
    return result


def _fit_with_any_cards(nodes: NodeArrays, ask: PolicyRequest, rows: RowArray) -> BoolArray:
    """Tell which nodes fit whichever cards are chosen, as each earlier choice can spoil one card only."""
    sure: BoolArray = np.ones(len(rows), dtype=np.bool_)
    cards = 0
    for demand in ask.demands:
        cards += demand.cards
        sure &= _has_cards(nodes, ask, rows, demand, cards)
    return sure


def _fit_apart(nodes: NodeArrays, ask: PolicyRequest, rows: RowArray) -> BoolArray:
    """Tell which nodes fit where no card serves two demands: the n-th largest gets the n-th emptiest card."""
    asked = sorted((demand.units for demand in ask.demands for _ in range(demand.cards)), reverse=True)
    if len(asked) > nodes.free.shape[1]:
        return np.zeros(len(rows), dtype=np.bool_)
    if ask.admits is None and nodes.free_order.size:
        free: LongArray = nodes.free_order[: len(asked), rows].T.astype(np.int64)
    else:
        free = np.sort(get_usable_units(nodes, ask, rows), axis=1)[:, ::-1][:, : len(asked)]
    result: BoolArray = np.all(free >= np.array(asked), axis=1)
    return result


def _fit_together(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> BoolArray:
    """Tell where all demands fit together, given that each fits alone; `query` is in units."""
    ask = query.policy_request
    if ask.rules.apart:
        fits = _fit_apart(nodes, ask, rows)
        left = np.flatnonzero(fits & query.request.asks_compute)
    else:
        costs = get_array_costs(ask.card_policy)
        fits = np.zeros(len(rows), dtype=np.bool_)
        if costs is not None and all(demand.cards == 1 for demand in ask.demands):
            fits = _place_many(nodes, ask, rows, costs)
        left = np.flatnonzero(~fits)
        if left.size:
            left = left[_could_fit_by_sums(nodes, ask, rows[left])]
            fits[left] = _fit_largest_first(nodes, ask, rows[left])
            left = left[~fits[left]]
    if left.size:
        fits[left] = _fit_exactly(nodes, query, rows[left])
    return fits


def _could_fit_by_sums(nodes: NodeArrays, ask: PolicyRequest, rows: RowArray) -> BoolArray:
    """Rule out nodes by the sum of free units, and by how many demands of each size their cards can hold."""
    free = get_usable_units(nodes, ask, rows)
    compute_free = nodes.compute.get_free(rows)
    could: BoolArray = free.sum(axis=1) >= ask.gpu_units
    for units, compute in {(demand.units, demand.compute) for demand in ask.demands}:
        larger = [
            demand.cards for demand in ask.demands if demand.units >= units and demand.compute >= compute
        ]
        held = np.minimum(free // units, len(larger))
        if compute:
            held = np.minimum(held, compute_free // compute)
        # No card is two of one demand's cards.
        could &= held.sum(axis=1) >= sum(larger)
    return could


def _fit_largest_first(nodes: NodeArrays, ask: PolicyRequest, rows: RowArray) -> BoolArray:
    """Place the largest demand first, as `allocator.exact` starts: whatever fits here, it finds too.

    A demand for one card takes the fullest card that has the units; for several cards, the emptiest.
    """
    free = get_usable_units(nodes, ask, rows)
    compute_free = nodes.compute.get_free(rows)
    ok: BoolArray = np.ones(len(rows), dtype=np.bool_)
    for units, cards, compute in sorted(ask.demands, reverse=True):
        fits = free >= units
        if compute:
            fits &= compute_free >= compute
        ok &= np.count_nonzero(fits, axis=1) >= cards
        order = np.where(fits, free if cards == 1 else -free, np.iinfo(np.int64).max)
        best = np.argsort(order, axis=1, kind="stable")[:, :cards]
        for left, taken in ((free, units), (compute_free, compute)):
            if taken:
                np.put_along_axis(left, best, np.take_along_axis(left, best, axis=1) - taken, axis=1)
    return ok


def _fit_exactly(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> BoolArray:
    """Tell where a pod's demands fit together in any way, by one search for each kind of equal nodes."""
    request, free = query.request, get_usable_units(nodes, query.policy_request, rows)
    # Positions do not matter, nor cards that are of no use, nor what the pod does not ask for.
    nothing = np.int64(0)
    models = nodes.model[rows].astype(np.int64) + 1 if request.rules.same_model else nothing
    sizes = nodes.size[rows].astype(np.int64) if request.percent else nothing
    compute = nodes.compute.get_free(rows) if request.asks_compute else nothing
    kinds = np.sort(
        np.where(free > 0, ((models * _UNITS + sizes) * _PERCENT + compute) * _UNITS + free, 0), axis=1
    )
    parts = [np.broadcast_to(part, free.shape) for part in (models, sizes, free, compute)]
    names = ["", *nodes.model_names]
    demands = [demand.need for demand in request.demands]
    known: dict[bytes, bool | None] = {}
    fits = []
    for at, row in enumerate(rows.tolist()):
        key = kinds[at].tobytes()
        if key not in known:
            cards = zip(*(part[at].tolist() for part in parts), strict=True)
            of_use = [card for card in cards if card[2] > 0]
            found = fit_together(
                [card[1:] for card in of_use], demands, [names[card[0]] for card in of_use], request.rules
            )
            known[key] = found.picks is not None if found.complete else None
        fit = known[key]
        # What a search that was cut off did not find the policy may find on this node's own cards.
        fits.append(_can_place(nodes, query, row) if fit is None else fit)
    return np.array(fits, dtype=np.bool_)


def _can_place(nodes: NodeArrays, query: SchedulingRequest, row: int) -> bool:
    """Do what `_place_many` does for one node."""
    free = nodes.free[row].tolist()
    cards = [card.with_free_units(free[card.index]) for card in build_cards(nodes, row)]
    return place(cards, query.request, query.policy_request.card_policy) is not None


def _place_many(nodes: NodeArrays, ask: PolicyRequest, rows: RowArray, costs_of: CardCosts) -> BoolArray:
    """Take one card for each demand in turn, for many nodes at once.

    `allocator.place` starts in the same way. If this fails, the demands may still fit together.

    The card with the smallest (cost, not near, position) is chosen. Near means on a NUMA node of the pod's
    earlier cards, kept as a bit set.

    Args:
        ask: What the pod asks for, one card a demand.
        rows: intp[m].

    Returns:
        bool[m], every demand found its cards.
    """
    free = nodes.free[rows].astype(np.int64)
    compute_free = nodes.compute.get_free(rows)
    size = nodes.size[rows].astype(np.int64)
    admits = None if ask.admits is None else ask.admits[rows]
    numa = nodes.numa[rows].astype(np.int64)
    bits = np.where((numa >= 0) & (numa < _NUMA_BITS), np.int64(1) << np.clip(numa, 0, _NUMA_BITS), 0)
    near = np.zeros(len(rows), dtype=np.int64)
    count = np.arange(len(rows))
    width = free.shape[1]
    position = np.arange(width, dtype=np.int64)
    ok = np.ones(len(rows), dtype=np.bool_)
    for demand in ask.demands:
        fits = free >= demand.units
        if admits is not None:
            fits &= admits
        if demand.compute:
            fits &= compute_free >= demand.compute
        costs = costs_of(size, free, demand.units)
        costs[~fits] = np.inf
        far = (bits & near[:, None]) == 0
        order = np.where(costs == costs.min(axis=1)[:, None], far * width + position, 2 * width)
        best = order.argmin(axis=1)
        ok &= fits[count, best]
        free[count, best] -= demand.units
        if demand.compute:
            compute_free[count, best] -= demand.compute
        near |= bits[count, best]
    return ok


def explain_rejections(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> CodeArray:
    """Say why nodes that `filter_nodes` refused cannot take a pod.

    Args:
        rows: intp[m], none of which fits.

    Returns:
        int8[m], a `FilterReason` each. The exclusion of a whole node comes first, else NO_COMPUTE,
        NOT_ADMITTED, TOO_SMALL, COMPUTE_NOT_FREE (the memory is there) or NOT_FREE. CARD_RULES means that
        there is room, but not within the pod's card rules. NO_SUCH_CARD replaces NOT_ADMITTED if no card of
        the whole cluster is admitted, which is probably a typo.
    """
    ask = query.policy_request
    codes: CodeArray = np.full(len(rows), FilterReason.NOT_FREE, dtype=np.int8)
    emptied = nodes.as_emptied()
    could = filter_nodes(emptied, query, rows)
    if query.request.asks_compute:
        codes[filter_nodes(nodes, without_compute(query), rows)] = FilterReason.COMPUTE_NOT_FREE
    codes[~could] = FilterReason.TOO_SMALL
    if ask.rules.apart or (ask.rules.same_model and nodes.inventory.mixed_models[rows].any()):
        free = without_rules(query)
        codes[~could & filter_nodes(emptied, free, rows)] = FilterReason.CARD_RULES
        codes[filter_nodes(nodes, free, rows)] = FilterReason.CARD_RULES
    if ask.admits is not None:
        most = max(demand.cards for demand in ask.demands)
        admitted = np.count_nonzero(ask.admits[rows] & (nodes.size[rows] > 0), axis=1)
        somewhere = bool((ask.admits & (nodes.size > 0)).any())
        codes[admitted < most] = FilterReason.NOT_ADMITTED if somewhere else FilterReason.NO_SUCH_CARD
    if query.request.asks_compute:
        codes[nodes.compute_limit[rows] == 0] = FilterReason.NO_COMPUTE
    excluded = nodes.exclusion[rows]
    for reason in FilterReason:
        if reason.exclusion is not None:
            codes[excluded == reason.exclusion] = reason
    if query.request.percent:
        codes[nodes.usable[rows] & ~nodes.percent[rows]] = FilterReason.NO_PLUGIN
    if query.request.claimed:
        codes[nodes.usable[rows] & ~nodes.serves_claims[rows]] = FilterReason.NO_CLAIMS
    return codes
