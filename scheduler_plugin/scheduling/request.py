"""A pod's request, ready to be asked of the arrays; in units, also where the pod asks for percent of a card.

What a share of a card is in units depends on the card's size. On the rows whose cards are all of one size a
pod that asks for percent is a pod that asks for units, so filter and policies are asked once for each size:
policies never see percent. Rows whose cards differ are looked at card by card.
"""

from dataclasses import dataclass, replace

import numpy as np

from allocator.request import PodRequest
from scheduler_plugin.cache.arrays import ClusterView, LongArray, RowArray
from scheduler_plugin.scheduling.policies.registry import Ask, CardDemand


@dataclass(frozen=True, slots=True)
class Query:
    """A pod's request, ready to be asked of the arrays.

    Attributes:
        request: What the pod asks of cards.
        ask: The same as policies see it; of a pod that asks for percent only `in_units` of this is.
    """

    request: PodRequest
    ask: Ask


@dataclass(frozen=True, slots=True)
class BySize:
    """Positions of rows by the size of their cards.

    Attributes:
        even: Where all cards of a row have one size: the size and the positions.
        mixed: Where they differ.
    """

    even: tuple[tuple[int, RowArray], ...]
    mixed: RowArray


def in_units(query: Query, size: int) -> Query:
    """What a pod asks for where all cards have `size` units."""
    if not query.request.percent:
        return query
    demands = tuple(CardDemand(d.units_on(size), d.cards) for d in query.request.demands)
    return replace(query, ask=replace(query.ask, demands=demands))


def by_size(view: ClusterView, rows: RowArray) -> BySize:
    """Sort rows by the size of their cards; rows without cards count as of size 0."""
    sizes = view.size[rows]
    largest = sizes.max(axis=1, initial=0)
    same = (sizes == largest[:, None]) | (np.arange(sizes.shape[1]) >= view.cards[rows][:, None])
    even = same.all(axis=1)
    groups = tuple(
        (size, np.flatnonzero(even & (largest == size))) for size in np.unique(largest[even]).tolist()
    )
    return BySize(groups, np.flatnonzero(~even))


def units_by_card(view: ClusterView, query: Query, rows: RowArray) -> list[LongArray]:
    """Units that each demand takes of each card: int64[m, K] for each; more than the card has: not there."""
    sizes = view.size[rows].astype(np.int64)
    known = {size: [d.units_on(size) for d in query.request.demands] for size in np.unique(sizes).tolist()}
    result = []
    for number in range(len(query.request.demands)):
        units = np.zeros(sizes.shape, dtype=np.int64)
        for size, needs in known.items():
            units[sizes == size] = needs[number]
        result.append(units)
    return result


def usual_size(view: ClusterView, rows: RowArray) -> int:
    """The size of cards that most of the rows have, 0 where there are no cards."""
    sizes = view.size[rows]
    values, counts = np.unique(sizes[sizes > 0], return_counts=True)
    return int(values[counts.argmax()]) if values.size else 0
