"""Adds up what the cluster has left over nodes that can take pods."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpupack.inventory.records import NodeRow


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums for one resource, that is for one unit.

    Attributes:
        resource: its name.
        in_use_units: on all cards.
        size_units: of all cards.
        whole_cards_free: cards that a pod could have alone.
        largest_request: most units that a pod can get on one card.
    """

    resource: str
    in_use_units: int
    size_units: int
    whole_cards_free: int
    largest_request: int


def sum_totals(rows: Sequence[NodeRow]) -> list[Totals]:
    """Add up, ordered by resource.

    Only cards that a pod can get now count as free. They are healthy and not cordoned, and their node is
    Ready, not cordoned and served by a daemon.
    """
    return [
        _of([row for row in rows if row.resource == resource], resource)
        for resource in sorted({row.resource for row in rows if row.resource is not None})
    ]


def _of(rows: Sequence[NodeRow], resource: str) -> Totals:
    cards = [card for row in rows for card in row.cards]
    usable = [card for row in rows if row.takes_pods for card in row.cards]
    return Totals(
        resource,
        in_use_units=sum(card.in_use_units for card in cards),
        size_units=sum(card.size_units for card in cards),
        whole_cards_free=sum(card.free_units == card.size_units > 0 for card in usable),
        largest_request=max((card.free_units for card in usable), default=0),
    )
