"""Cards of one node, from its row of the arrays: for code that looks at one node at a time."""

from collections.abc import Iterable, Sequence

import numpy as np

from allocator.cards import Card
from scheduler_plugin.cache.arrays import BoolArray, ClusterView, RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays


def build_cards(view: ClusterView, row: int) -> tuple[Card, ...]:
    """Build a row's cards in word order; an unhealthy or cordoned card is fully used."""
    return _build_cards(view, row, view.occupied[row].tolist())


def build_charged_cards(nodes: NodeArrays, row: int) -> tuple[Card, ...]:
    """Build a row's cards with all that is charged to them, also beyond their size."""
    return _build_cards(nodes, row, (nodes.used[row] + nodes.assumed[row]).tolist())


def _build_cards(view: ClusterView, row: int, taken: Sequence[int]) -> tuple[Card, ...]:
    count = int(view.cards[row])
    uuids = view.uuids[row] or tuple("" for _ in range(count))
    links = view.links[row] or ((),) * count
    limit = int(view.compute_limit[row])
    return tuple(
        Card(
            index=card,
            uuid=uuids[card],
            model=view.model_names[model] if model >= 0 else "",
            size_units=size,
            used_units=taken[card],
            numa=numa if numa >= 0 else None,
            links=links[card],
            compute_limit=limit,
            compute_used=limit - compute_free,
        )
        for card, (size, model, numa, compute_free) in enumerate(
            zip(
                view.size[row, :count].tolist(),
                view.model[row, :count].tolist(),
                view.numa[row, :count].tolist(),
                view.compute_free[row, :count].tolist(),
                strict=True,
            )
        )
    )


def has_card(view: ClusterView, rows: RowArray, uuid: str) -> BoolArray:
    """Return bool[len(rows)]: True for rows that have the card, usually one or none."""
    return np.fromiter((uuid in view.uuids[row] for row in rows.tolist()), np.bool_, len(rows))


def find_current_positions(
    positions: Iterable[int], uuids_then: Sequence[str], uuids_now: Sequence[str]
) -> dict[int, int]:
    """Map card positions of an earlier moment to positions of now.

    Positions change over time: if a card before it disappears, a card moves up. Only its UUID stays.

    Args:
        uuids_then: UUIDs by position then; empty if the node published none.
        uuids_now: UUIDs by position now; empty if the node publishes none.

    Returns:
        Current positions by earlier position, without the cards that are gone. If either side lacks UUIDs,
        the positions are taken as unchanged.
    """
    if not uuids_then or not uuids_now or tuple(uuids_then) == tuple(uuids_now):
        return {position: position for position in positions}
    now = {uuid: position for position, uuid in enumerate(uuids_now)}
    return {
        position: now[uuids_then[position]]
        for position in positions
        if position < len(uuids_then) and uuids_then[position] in now
    }
