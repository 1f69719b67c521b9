"""Which nodes can take a pod, vectorised over node rows; the scalar `allocator.place` is the oracle.

Card choice matters only to pods with several demands: what the first container leaves depends on the card
it gets. Card policies that can tell for arrays are placed on all nodes at once, others one node at a time
after a check that rules most nodes out; so are pods with several cards for a demand, of which whole sets are
compared.
"""

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from allocator.place import Placement, place
from allocator.selector import Selector
from scheduler_plugin.cluster.arrays import BoolArray, LongArray, RowArray
from scheduler_plugin.cluster.cards import cards_of
from scheduler_plugin.cluster.nodes import Exclusion, NodeArrays
from scheduler_plugin.placement.cardcosts import CardCosts, card_costs
from scheduler_plugin.placement.policies.registry import Ask
from scheduler_plugin.placement.query import Query, by_size, in_units, units_by_card

if TYPE_CHECKING:
    from collections.abc import Hashable

CodeArray = np.ndarray[tuple[int], np.dtype[np.int8]]

_NUMA_BITS: Final = 62


class Misfit(IntEnum):
    """Why a node cannot take a pod; the fixed texts are in `reasons`."""

    NONE = 0
    UNKNOWN_NODE = 1
    NO_WORDS = 2
    CORRUPT = 3
    OTHER_UNIT = 4
    NO_PLUGIN = 5
    NOT_ADMITTED = 6
    TOO_SMALL = 7
    NOT_FREE = 8
    HELD_BACK = 9
    NO_SUCH_CARD = 10


_BY_EXCLUSION: Final = {
    Exclusion.VACANT: Misfit.UNKNOWN_NODE,
    Exclusion.NO_WORDS: Misfit.NO_WORDS,
    Exclusion.CORRUPT: Misfit.CORRUPT,
    Exclusion.OTHER_UNIT: Misfit.OTHER_UNIT,
    Exclusion.NO_PLUGIN: Misfit.NO_PLUGIN,
}


class Selectors:
    """Card masks by selector, brought up to date by row when an inventory changes.

    Args:
        limit: Selectors that are remembered.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: dict[Selector, tuple[BoolArray, LongArray]] = {}

    def mask(self, nodes: NodeArrays, selector: Selector) -> BoolArray | None:
        """Tell which cards a selector admits: bool[R, K], None for all."""
        if selector.admits_all:
            return None
        mask, made = self._known.pop(selector, (np.zeros((0, 0), dtype=np.bool_), np.zeros(0, np.int64)))
        if mask.shape != nodes.size.shape:
            mask = np.zeros(nodes.size.shape, dtype=np.bool_)
            made = np.full(nodes.row_count, -1, dtype=np.int64)
        stale = np.flatnonzero(made != nodes.inventory_version)
        if stale.size:
            mask[stale] = _admitted(nodes, selector, stale)
            made[stale] = nodes.inventory_version[stale]
        self._known[selector] = (mask, made)
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
        return mask


def _admitted(nodes: NodeArrays, selector: Selector, rows: RowArray) -> BoolArray:
    """Ask the selector: once a model, once a UUID."""
    # The last entry is for cards of unknown model, index -1.
    models = np.array([selector.admits_model(model) for model in (*nodes.model_names, "")], dtype=np.bool_)
    admitted: BoolArray = models[nodes.model[rows]]
    if selector.uuids or selector.excluded_uuids:
        for at, row in enumerate(rows.tolist()):
            uuids = nodes.uuids[row]
            for card in range(admitted.shape[1]):
                admitted[at, card] &= selector.admits_uuid(uuids[card] if card < len(uuids) else "")
    return admitted


def fitting(nodes: NodeArrays, query: Query, rows: RowArray) -> BoolArray:
    """Tell which nodes have the cards for a pod.

    Args:
        nodes: The arrays.
        query: The pod.
        rows: intp[m], rows in use or not.

    Returns:
        bool[m].
    """
    if not query.request.percent:
        return _fitting(nodes, query, rows)
    fits: BoolArray = nodes.percent[rows]
    sizes = by_size(nodes, rows)
    for size, at in sizes.even:
        fits[at] &= _fitting(nodes, in_units(query, size), rows[at])
    fits[sizes.mixed] &= _mixed(nodes, query, rows[sizes.mixed])
    return fits


def _fitting(nodes: NodeArrays, query: Query, rows: RowArray) -> BoolArray:
    ask = query.ask
    fits: BoolArray = nodes.usable[rows]
    for demand in ask.demands:
        fits &= _has_cards(nodes, ask, rows, demand.units, demand.cards)
    if len(ask.demands) > 1:
        left = np.flatnonzero(fits & ~_surely_together(nodes, ask, rows))
        if left.size:
            fits[left] = _together(nodes, query, rows[left])
    return fits


def _mixed(nodes: NodeArrays, query: Query, rows: RowArray, *, emptied: bool = False) -> BoolArray:
    """Tell which nodes fit a pod that asks for percent, where the cards of a node differ in size."""
    fits: BoolArray = nodes.usable[rows]
    for demand, units in zip(query.request.demands, units_by_card(nodes, query, rows), strict=True):
        there = (nodes.evictable if emptied else nodes.free)[rows] >= units
        if query.ask.admits is not None:
            there &= query.ask.admits[rows]
        fits &= np.count_nonzero(there, axis=1) >= demand.cards
    left = np.flatnonzero(fits)
    if len(query.request.demands) > 1 and left.size:
        fits[left] = _one_by_one(nodes, query, rows[left], emptied=emptied)
    return fits


def _has_cards(nodes: NodeArrays, ask: Ask, rows: RowArray, units: int, cards: int) -> BoolArray:
    """Tell which nodes have so many cards with so many free units."""
    if cards > nodes.free_order.shape[0]:
        return np.zeros(len(rows), dtype=np.bool_)
    if ask.admits is None:
        result: BoolArray = nodes.free_order[cards - 1][rows] >= units
        return result
    counts = np.count_nonzero((nodes.free[rows] >= units) & ask.admits[rows], axis=1)
    admitted: BoolArray = counts >= cards
    return admitted


def _surely_together(nodes: NodeArrays, ask: Ask, rows: RowArray) -> BoolArray:
    """Tell which nodes fit whatever cards are chosen: the choices before spoil one card each."""
    sure: BoolArray = np.ones(len(rows), dtype=np.bool_)
    cards = 0
    for demand in ask.demands:
        cards += demand.cards
        sure &= _has_cards(nodes, ask, rows, demand.units, cards)
    return sure


def _together(nodes: NodeArrays, query: Query, rows: RowArray) -> BoolArray:
    """Place all demands in order on every row."""
    return _placed_each(nodes, query, rows, emptied=False)


def _placed_each(nodes: NodeArrays, query: Query, rows: RowArray, *, emptied: bool) -> BoolArray:
    costs = card_costs(query.ask.card_policy)
    if costs is None or any(demand.cards > 1 for demand in query.ask.demands):
        return _one_by_one(nodes, query, rows, emptied=emptied)
    return place_many(nodes, query.ask, rows, costs, emptied=emptied)


def _one_by_one(nodes: NodeArrays, query: Query, rows: RowArray, *, emptied: bool = False) -> BoolArray:
    """Do what `place_many` does, one node at a time; nodes that are alike are placed on once."""
    selector = query.request.selector
    by_name = card_costs(query.ask.card_policy) is None or selector.uuids or selector.excluded_uuids
    known: dict[Hashable, bool] = {}
    fits = []
    for row in rows.tolist():
        free = (nodes.evictable if emptied else nodes.free)[row]
        arrays = (nodes.size[row], free, nodes.model[row], nodes.numa[row])
        kind = row if by_name else (*(array.tobytes() for array in arrays), nodes.links[row])
        if kind not in known:
            left = free.tolist()
            cards = [
                replace(card, used_units=card.size_units - left[card.index]) for card in cards_of(nodes, row)
            ]
            known[kind] = place(cards, query.request, query.ask.card_policy) is not None
        fits.append(known[kind])
    return np.array(fits, dtype=np.bool_)


def place_many(
    nodes: NodeArrays, ask: Ask, rows: RowArray, costs_of: CardCosts, *, emptied: bool = False
) -> BoolArray:
    """Do what `allocator.place` does, for many nodes at once.

    A card is chosen by the smallest (cost, not near, position); near means on a NUMA node that the pod's
    earlier cards are on, kept as a bit set.

    Args:
        nodes: The arrays.
        ask: What the pod asks for, one card a demand.
        rows: intp[m].
        costs_of: The card policy.
        emptied: Place on cards as if every pod had been evicted.

    Returns:
        bool[m], every demand found its cards.
    """
    free = (nodes.evictable if emptied else nodes.free)[rows].astype(np.int64)
    return take_many(nodes, ask, rows, costs_of, free)


def take_many(nodes: NodeArrays, ask: Ask, rows: RowArray, costs_of: CardCosts, free: LongArray) -> BoolArray:
    """Do what `place_many` does on cards of which so much is free, and take what is placed off that.

    Args:
        nodes: The arrays.
        ask: What the pod asks for.
        rows: intp[m].
        costs_of: The card policy.
        free: int64[m, K], changed in place; of rows where not every demand found its cards it is of no use.

    Returns:
        bool[m], every demand found its cards.
    """
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
        costs = costs_of(size, free, demand.units)
        costs[~fits] = np.inf
        far = (bits & near[:, None]) == 0
        order = np.where(costs == costs.min(axis=1)[:, None], far * width + position, 2 * width)
        best = order.argmin(axis=1)
        ok &= fits[count, best]
        free[count, best] -= demand.units
        near |= bits[count, best]
    return ok


def place_on(nodes: NodeArrays, row: int, query: Query) -> Placement | None:
    """Choose a pod's cards on one node, None where it does not fit; the scalar, exact way."""
    if not nodes.usable[row] or (query.request.percent and not nodes.percent[row]):
        return None
    return place(cards_of(nodes, row), query.request, query.ask.card_policy)


def misfits(nodes: NodeArrays, query: Query, rows: RowArray) -> CodeArray:
    """Say why nodes that `fitting` refused cannot take a pod.

    Args:
        nodes: The arrays.
        query: The pod.
        rows: intp[m], none of which fits.

    Returns:
        int8[m], a `Misfit` each: the first in the order of its values that is true; NO_SUCH_CARD in place of
        NOT_ADMITTED where no card of the whole cluster is admitted, most likely a slip of the pen.
    """
    ask = query.ask
    codes: CodeArray = np.full(len(rows), Misfit.NOT_FREE, dtype=np.int8)
    codes[~_could_fit(nodes, query, rows)] = Misfit.TOO_SMALL
    if ask.admits is not None:
        most = max(demand.cards for demand in ask.demands)
        admitted = np.count_nonzero(ask.admits[rows] & (nodes.size[rows] > 0), axis=1)
        somewhere = bool((ask.admits & (nodes.size > 0)).any())
        codes[admitted < most] = Misfit.NOT_ADMITTED if somewhere else Misfit.NO_SUCH_CARD
    excluded = nodes.exclusion[rows]
    for exclusion, misfit in _BY_EXCLUSION.items():
        codes[excluded == exclusion] = misfit
    if query.request.percent:
        codes[nodes.usable[rows] & ~nodes.percent[rows]] = Misfit.NO_PLUGIN
    return codes


def _could_fit(nodes: NodeArrays, query: Query, rows: RowArray) -> BoolArray:
    """Tell which nodes could take the pod if every other pod were evicted."""
    if not query.request.percent:
        return _large_enough(nodes, query, rows)
    enough: BoolArray = np.zeros(len(rows), dtype=np.bool_)
    sizes = by_size(nodes, rows)
    for size, at in sizes.even:
        enough[at] = _large_enough(nodes, in_units(query, size), rows[at])
    enough[sizes.mixed] = _mixed(nodes, query, rows[sizes.mixed], emptied=True)
    return enough


def _large_enough(nodes: NodeArrays, query: Query, rows: RowArray) -> BoolArray:
    """The same for a pod that asks for units."""
    ask = query.ask
    sizes = nodes.evictable[rows]
    if ask.admits is not None:
        sizes = np.where(ask.admits[rows], sizes, 0)
    enough: BoolArray = np.ones(len(rows), dtype=np.bool_)
    for demand in ask.demands:
        enough &= np.count_nonzero(sizes >= demand.units, axis=1) >= demand.cards
    if len(ask.demands) > 1:
        left = np.flatnonzero(enough)
        enough[left] = _placed_each(nodes, query, rows[left], emptied=True)
    return enough
