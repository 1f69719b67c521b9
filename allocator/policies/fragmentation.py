"""The fragmentation card policy: leave free parts that the demands to come can still use.

A free part of f units on a card costs h(f), and a request goes where h grows least. Nothing is known of the
demands on the node for one, so whole cards are kept whole and the fullest card that fits is filled:

    h(f) = 24.5 B(f),   B = f (1.1 - 0.1 f / size), and 0 if the whole card is free

The scheduler's node policy of this name learns the demands; its terms are those of `fragmentation_terms`.
"""

from collections.abc import Sequence
from typing import Final

from allocator.cards import Card
from allocator.registry import Entry, Parameters

FIT_WEIGHT: Final = 1.0
CAPACITY_WEIGHT: Final = 0.5
SHARP_WEIGHT: Final = 3.0
PRICE_WEIGHT: Final = 20.0

UNSEEN_WEIGHT: Final = FIT_WEIGHT + CAPACITY_WEIGHT + SHARP_WEIGHT + PRICE_WEIGHT
"""Weight of B: that of the other terms together, for a rest that nothing fits into."""

_BEST_FIT: Final = 0.1
"""How much B bends, so that among cards in use the fullest that fits is taken."""


def broken(size: int, free: int) -> float:
    """Compute B: what pods that ask for a whole card lose by it, whatever its size.

    That is `free (1.1 - 0.1 free / size)`, 0 if the whole card is free: all that is free on a card in use,
    and a little more the fuller it is.
    """
    return free * (1.0 + _BEST_FIT * (1.0 - free / size)) if free < size else 0.0


def fragmentation(cards: Sequence[Card], units: int) -> Sequence[float]:
    """Avoid useless rests: `cost = h(free - units) - h(free)`, infinite if the request does not fit."""
    result = []
    for card in cards:
        free, size = card.free_units, card.size_units
        if free < units:
            result.append(float("inf"))
        else:
            after, before = (UNSEEN_WEIGHT * broken(size, rest) for rest in (free - units, free))
            result.append(round(after - before, 9))
    return result


class Fragmentation:
    """The policy where the demands are not known; see the module's text."""

    by_fill = True
    node_policy_chooses = True

    def costs(self, cards: Sequence[Card], units: int) -> Sequence[float]:
        return fragmentation(cards, units)


def make(_parameters: Parameters) -> Fragmentation:
    """Build the policy."""
    return Fragmentation()


POLICY: Final = Entry("fragmentation", make, "leave free parts of cards that pods to come can still use")
