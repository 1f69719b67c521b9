"""Upper bound of what the pods of a run could have filled of a cluster, wherever they had been put.

A policy may not refuse what fits. So a better placement keeps every pod that was placed and adds any that
were dropped. That placement fills cards in ways p with waste w_p. The least waste is at least the value of
the linear programme

    minimise sum_p w_p x_p  subject to  placed_m <= sum_p a_mp x_p <= arrived_m  for every size m < 1 card

(whole cards waste nothing and are always there). Whatever the prices pi, duality gives a bound that holds:

    waste >= sum_m (pi_m placed_m + min(0, pi_m) dropped_m) + cards * min(0, min_p (w_p - sum_m pi_m a_mp))

so the programme need not be solved to the end. Cpu, memory, models and nodes are left out: with them the
waste can only be larger.
"""

from collections.abc import Mapping
from functools import partial, reduce
from math import gcd
from typing import Final

from allocator.pricing import best_filling, improve, read_filling

_EPSILON: Final = 1e-9
_STEPS: Final = 2000
_MAX_SIZES: Final = 64


def compute_unavoidable_waste(
    card_units: int, cards: int, placed: Mapping[int, int], dropped: Mapping[int, int]
) -> float:
    """Bound from below the units that stay free in every placement.

    Args:
        placed: Cards asked for by the pods that run, by units on each.
        dropped: Cards asked for by the pods that were dropped.

    Returns:
        Units, at least 0.
    """
    sizes = sorted((u for u in {*placed, *dropped} if 0 < u < card_units), reverse=True)
    if not sizes or len(sizes) > _MAX_SIZES:
        return 0.0
    kept = [float(placed.get(size, 0)) for size in sizes]
    more = [float(dropped.get(size, 0)) for size in sizes]
    step = reduce(gcd, sizes)
    widths = [size // step for size in sizes]
    length = card_units // step
    prices = _compute_prices(card_units, sizes, widths, length, kept, more)
    # The card's own size is part of every filling's waste: w_p = card - sum a g.
    best = best_filling(length, widths, [size + price for size, price in zip(sizes, prices, strict=True)])[0]
    slack = min(0.0, card_units - best[length])
    used = sum(price * count for price, count in zip(prices, kept, strict=True))
    spared = sum(min(0.0, price) * count for price, count in zip(prices, more, strict=True))
    return max(0.0, used + spared + cards * slack)


def _compute_prices(
    card_units: int, sizes: list[int], widths: list[int], length: int, kept: list[float], more: list[float]
) -> list[float]:
    """Solve the programme by the revised simplex method with generated columns.

    Rows: `sum_p a_mp x_p - s_m = placed_m` and `s_m + t_m = dropped_m`.
    """
    count = len(sizes)
    rows = range(2 * count)
    inverse = [[1.0 if i == j else 0.0 for j in rows] for i in rows]
    costs = [0.0] * (2 * count)
    amounts = [0.0] * (2 * count)
    for m in range(count):
        fitting = length // widths[m]
        inverse[m][m] = 1.0 / fitting
        costs[m] = float(card_units - fitting * sizes[m])
        amounts[m] = kept[m] / fitting
        amounts[count + m] = more[m]
    entering_for = partial(_find_entering_column, card_units, sizes, widths, length)
    return improve(inverse, amounts, costs, entering_for, _STEPS)[:count]


def _find_entering_column(
    card_units: int, sizes: list[int], widths: list[int], length: int, prices: list[float]
) -> tuple[list[float], float]:
    """Find a column that lowers the waste: a way to fill cards, or a slack; zeros at the end."""
    count = len(sizes)
    for m in range(count):
        # s_m costs nothing: reduced cost pi_m - sigma_m; t_m: -sigma_m.
        slack = [0.0] * (2 * count)
        slack[count + m] = 1.0
        if prices[count + m] > _EPSILON:
            return slack, 0.0
        if prices[m] - prices[count + m] < -_EPSILON:
            slack[m] = -1.0
            return slack, 0.0
    values, last = best_filling(length, widths, [size + prices[m] for m, size in enumerate(sizes)])
    if values[length] <= card_units + 1e-6:
        return [0.0] * (2 * count), 0.0
    filling = read_filling(length, widths, last)
    used = sum(amount * size for amount, size in zip(filling, sizes, strict=True))
    return filling + [0.0] * count, card_units - used
