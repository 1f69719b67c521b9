"""A card of a node as the placement code sees it, and amounts of cards."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

CardAmounts = tuple[int, int]
"""Units, and percent of compute, of one card."""

CardKey = TypeVar("CardKey", int, str)


def pair_amounts(units: Mapping[CardKey, int], compute: Mapping[CardKey, int]) -> dict[CardKey, CardAmounts]:
    """Join units and percent of compute, both by a card's position or by its UUID."""
    return {card: (units.get(card, 0), compute.get(card, 0)) for card in {**units, **compute}}


def add_amounts(totals: dict[int, CardAmounts], amounts: Mapping[int, CardAmounts], times: int = 1) -> None:
    """Add `times` times what cards have of both, by card position."""
    for card, (units, compute) in amounts.items():
        has = totals.get(card, (0, 0))
        totals[card] = has[0] + times * units, has[1] + times * compute


@dataclass(frozen=True, slots=True)
class Card:
    """Card is a GPU, or an instance of a partitioned GPU, at one moment.

    Attributes:
        index: the driver's number of the card.
        uuid: its UUID, as the driver writes it.
        model: product name; empty if the node does not publish it.
        size_units: schedulable memory in units.
        used_units: units that are taken; may exceed the size while accounts catch up, and be less than 0
            where a pod goes of which less was counted than it has.
        healthy: false takes the card out of placement.
        is_closed: true keeps new pods off the card, which is well; those that it has run on.
        numa: NUMA node the card hangs on, None if unknown.
        links: NVLinks to each card of the node, by position in the words; empty if there are none.
        compute_limit: percent of its compute that pods may ask for together; 0 where the node does not
            publish its compute, so that no pod that asks for some gets it there.
        compute_used: percent that are taken, likewise.
    """

    index: int
    uuid: str
    model: str
    size_units: int
    used_units: int
    healthy: bool = True
    is_closed: bool = False
    numa: int | None = None
    links: tuple[int, ...] = ()
    compute_limit: int = 100
    compute_used: int = 0

    @property
    def free_units(self) -> int:
        """Units that can still be given away, 0 to its size; 0 on an unhealthy or closed card."""
        if not self.healthy or self.is_closed:
            return 0
        return max(0, self.size_units - max(0, self.used_units))

    @property
    def compute_free(self) -> int:
        """Percent of compute that can still be given away; less than 0 where more is taken than allowed."""
        return self.compute_limit - max(0, self.compute_used)

    def has_room(self, units: int, compute: int) -> bool:
        """Tell whether so much is free; who asks for no compute does not look at it."""
        return self.free_units >= units and (not compute or self.compute_free >= compute)

    def compute_shortage(self, units: int, compute: int) -> CardAmounts:
        """Compute what pods must free before so much is free, also what they have beyond size and limit."""
        percent = compute - self.compute_free if compute else 0
        return max(0, self.used_units + units - self.size_units), max(0, percent)

    def by_tighter_number(self, units: int) -> "Card":
        """Return the card as full as the tighter of its two numbers makes it, for who asks for compute too.

        A card that has the units keeps them, however little of its compute is left.
        """
        free = self.size_units * self.compute_free // max(1, self.compute_limit)
        if self.free_units < units or self.free_units <= free:
            return self
        return self.with_free_units(max(units, free))

    def with_free_units(self, units: int) -> "Card":
        """Return the card as if so many of its units were free; 0 makes it full."""
        return replace(self, used_units=self.size_units - units)
