"""least-used: spread over the cards."""

from collections.abc import Sequence
from typing import Any

from allocator.cards import Card
from allocator.registry import Entry, Parameters


class LeastUsed:
    """`cost = used`, in absolute units also where cards differ in size."""

    spreads = True

    def costs(self, cards: Sequence[Card], _units: int) -> Sequence[float]:
        return [card.used_units for card in cards]

    def array_costs(self, size: Any, free: Any, _units: int) -> Any:
        return size - free


def make(_parameters: Parameters) -> LeastUsed:
    """Build the policy."""
    return LeastUsed()


POLICY = Entry("least-used", make, "spread: the card with the fewest units used")
