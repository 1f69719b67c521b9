"""most-used: pack the cards."""

from collections.abc import Sequence
from typing import Any

from allocator.cards import Card
from allocator.registry import Entry, Parameters


class MostUsed:
    """`cost = -used`, so the fullest card that still fits comes first."""

    def costs(self, cards: Sequence[Card], _units: int) -> Sequence[float]:
        return [-card.used_units for card in cards]

    def array_costs(self, size: Any, free: Any, _units: int) -> Any:
        return free - size


def make(_parameters: Parameters) -> MostUsed:
    """Build the policy."""
    return MostUsed()


POLICY = Entry("most-used", make, "pack: the card with the most units used that still fits")
