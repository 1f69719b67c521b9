"""Finds what a pod asks most of, and what nodes have left of it: of GPU memory, what would be used.

A pod that asks for c cards with u units each takes the tightest set. Among a node's admitted cards with u
units free, those are the c smallest. The pod's remaining amount is the sum of what those cards have free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray, ClusterView, IntArray, LongArray, RowArray
from scheduler_plugin.scheduling.policies.fractions import CLASSES, CPU, GPU, MEMORY, list_asked, list_columns
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest

ORDER: Final = (GPU, CPU, MEMORY)
"""Which class dominates among equals."""

NO_SET: Final = np.int64(1) << 62
"""Remaining amount of a node without such a set."""

_MAX_REST: Final = np.uint32(2**31 - 1)


def compute_tightest(
    view: ClusterView, demand: CardDemand, admits: BoolArray | None, rows: RowArray
) -> LongArray:
    """Compute what the tightest set of cards of each row has free: int64[m], `NO_SET` without a set.

    Args:
        admits: bool[R, K], cards that may be used; None: all.
    """
    units, cards, _ = demand
    # To look at all rows takes less time than to gather the cards of a quarter of them.
    everywhere = admits is None and 4 * len(rows) > view.free_order.shape[1]
    if everywhere:
        free = view.free_order
    elif admits is None:
        free = view.free_order.take(rows, axis=1)
    else:
        free = compute_tighter(view, demand, rows) if demand.compute else view.free[rows]
        free = np.where(admits[rows], free, -1).T
        free = np.sort(free, axis=0)[::-1] if cards > 1 else free
    least = _compute_tightest_card(free, units) if cards == 1 else _compute_tightest_cards(free, units, cards)
    return least[rows] if everywhere else least


def compute_tighter(view: ClusterView, demand: CardDemand, rows: RowArray) -> IntArray:
    """Compute what cards have free by the tighter of their two numbers: int32[m, K], in units.

    `Card.by_tighter_number` says the same of one card.
    """
    free: IntArray = view.free[rows]
    limit = np.maximum(view.compute_limit[rows], 1)[:, None]
    by_compute = view.size[rows] * view.compute_free[rows] // limit
    tighter: IntArray = np.where(free >= demand.units, np.maximum(demand.units, by_compute), free)
    return np.minimum(free, tighter)


def _compute_tightest_card(free: IntArray, units: int) -> LongArray:
    """Compute what the fullest card with the units has free: int64[m], `NO_SET` where there is none.

    `free` is int32[K, m], -1 where a card may not be used. What a card lacks is, as an unsigned number, more
    than any card has, so one minimum finds the card.
    """
    rest = (free - np.int32(units)).view(np.uint32).min(axis=0)
    least: LongArray = rest.astype(np.int64) + units
    least[rest > _MAX_REST] = NO_SET
    return least


def _compute_tightest_cards(free: IntArray, units: int, cards: int) -> LongArray:
    """Compute what the fullest cards with the units have free together: int64[m], `NO_SET` where too few are.

    Args:
        free: int32[K, m], free units of each node from largest to smallest, -1 where a card may not be used.
        units: That each card must have.
        cards: Cards, 2 or more.
    """
    count, width = free.shape
    if cards > count:
        return np.full(width, NO_SET)
    fitting = (free >= units).sum(axis=0, dtype=np.int64)
    flat = free.ravel()
    # Positions of each node's last card that fits; where none does, of some card.
    at = (fitting - 1) * width + np.arange(width)
    total: LongArray = flat.take(at).astype(np.int64)
    for _ in range(cards - 1):
        at -= width
        total += flat.take(at)
    total[fitting < cards] = NO_SET
    return total


@dataclass(frozen=True, slots=True)
class ClassSearch:
    """The request of a search in one resource class.

    Attributes:
        demand: The pod's largest demand; one card of 0 units where another class than gpu-memory dominates.
        amount: What the pod asks of the class; of gpu-memory over all cards of the demand.
        total: What all nodes have of it.
    """

    name: str
    demand: CardDemand
    amount: int
    total: int

    def left(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> LongArray:
        """Amounts that rows have left of the class: int64[m], of gpu-memory in the tightest set of cards."""
        if self.name != GPU:
            return compute_host_left(view, self.name, rows)
        return compute_tightest(view, self.demand, ask.admits, rows)


def find_search(view: ClusterView, ask: PolicyRequest, order: Sequence[str]) -> ClassSearch:
    """Find the dominant class, and what to search for in it."""
    asked = dict(zip(CLASSES, list_asked(ask, ()), strict=True))
    totals = {
        name: int(capacity.sum()) for name, (capacity, _) in zip(CLASSES, list_columns(view, ()), strict=True)
    }
    name = find_dominant_class(asked, totals, order)
    if name != GPU:
        return ClassSearch(name, CardDemand(0, 1), asked[name], totals[name])
    demand = max(ask.demands, key=lambda d: (d.units, d.cards), default=CardDemand(0, 1))
    return ClassSearch(name, demand, demand.units * demand.cards, totals[name])


def find_dominant_class(asked: dict[str, int], totals: dict[str, int], order: Sequence[str] = ORDER) -> str:
    """Find the class of which a request takes the largest share of the totals; ties go by `order`."""
    best = order[0]
    for name in order:
        # asked / total as a comparison of products: exact.
        if totals[name] > 0 and (
            totals[best] <= 0 or asked[name] * totals[best] > asked[best] * totals[name]
        ):
            best = name
    return best


def iterate_card_sets(free: list[int], cards: int) -> Iterator[tuple[int, int]]:
    """List the sets of a node's cards that are the tightest for some number of units.

    Yields:
        Position of the set's smallest card in `free`, and the sum of what the set's cards have free.
    """
    for at in range(len(free) - 1, cards - 2, -1):
        # Of cards that have the same free the last one begins the smaller set.
        if free[at] > 0 and (at + 1 == len(free) or free[at + 1] != free[at]):
            yield at, sum(free[at + 1 - cards : at + 1])


def compute_host_left(view: ClusterView, name: str, rows: RowArray) -> LongArray:
    """Compute what rows have left of cpu or memory: int64[m]."""
    capacity, used = list_columns(view, ())[CLASSES.index(name)]
    return (capacity - used)[rows]
