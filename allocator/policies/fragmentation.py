"""The fragmentation card policy: leave free parts that the demands to come can still use.

A free part of f units on a card costs

    h(f) = sum_m p_m (F_m(f) + 0.5 C_m(f) + 3 S_m(f)) + 20 W(f)

    F_m = f if f < g_m else 0             nothing of size g_m fits
    C_m = f - floor(f / g_m) g_m          what is left when as many as possible of that size are there
    S_m = f (C_m / f)^6                   the same, where it is almost everything
    W   = f - size V(f)                   what no good mix of the demands can use, `pricing.hole_values`

over demands of g_m units with popularity p_m. A request goes where h grows least. Where nothing is known of
the demands, on the node for one, whole cards are kept whole and the fullest card that fits is filled:

    h(f) = 24.5 B(f),   B = f (1.1 - 0.1 f / size), and 0 if the whole card is free

The scheduler's node policy of this name adds the node's cpu and memory to the same terms.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from allocator.cards import Card
from allocator.pricing import hole_values
from allocator.registry import Entry, Parameters

FIT_WEIGHT: Final = 1.0
CAPACITY_WEIGHT: Final = 0.5
SHARP_WEIGHT: Final = 3.0
PRICE_WEIGHT: Final = 20.0
SHARPNESS: Final = 6

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


@lru_cache(maxsize=256)
def hole_costs(size: int, demands: tuple[tuple[int, float], ...] = ()) -> tuple[float, ...]:
    """Compute h for every amount of free units.

    Args:
        size: Units of the card, at least 1.
        demands: Pairs of units on one card and weight, from `as_demands`; where none fits nothing is known.

    Returns:
        h(0) .. h(size).

    Raises:
        PolicyError: the size is below 1.
    """
    asked = {units: weight for units, weight in demands if units <= size}
    if size > 0 and not asked:
        return tuple(UNSEEN_WEIGHT * broken(size, free) for free in range(size + 1))
    values = hole_values(size, asked)
    total = sum(asked.values())
    shares = [(units, weight / total) for units, weight in asked.items()]
    costs = [0.0]
    for free in range(1, size + 1):
        cost = PRICE_WEIGHT * (free - size * values[free])
        for units, share in shares:
            wasted = free % units
            sharp = free * (wasted / free) ** SHARPNESS
            unfit = free if free < units else 0
            cost += share * (FIT_WEIGHT * unfit + CAPACITY_WEIGHT * wasted + SHARP_WEIGHT * sharp)
        costs.append(cost)
    return tuple(costs)


def as_demands(weights: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Write demands the way `hole_costs` takes them; amounts and weights of 0 are left out."""
    return tuple(sorted((units, weight) for units, weight in weights.items() if units > 0 and weight > 0))


def fragmentation(
    cards: Sequence[Card], units: int, demands: tuple[tuple[int, float], ...] = ()
) -> Sequence[float]:
    """Avoid useless rests: `cost = h(free - units) - h(free)`, infinite if the request does not fit."""
    result = []
    for card in cards:
        free = card.free_units
        if free < units:
            result.append(float("inf"))
            continue
        costs = hole_costs(card.size_units, demands)
        result.append(round(costs[free - units] - costs[free], 9))
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
