"""Prices the free part of a card by what pods ask for, with the cutting-stock problem.

Packing demands of sizes g_m, n_m of each, on as few cards of one size as possible is

    minimise sum_p x_p  subject to  sum_p a_mp x_p >= n_m,   p: a way to fill a card with a_mp of size g_m.

Its dual prices pi_m say what share of a card one demand of that size costs when all fit together well. The
hole value V(f) is the share of a card that a free part of f units can still serve:

    V(f)  =  max { sum_m a_m pi_m : sum_m a_m g_m <= f }

What is lost of the free part is f - size * V(f). Columns are generated (Gilmore and Gomory): the next way to
fill a card is the best one at the prices so far. Standard library only, because the node daemon chooses cards
with it too.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from math import gcd
from typing import Final

from allocator.errors import CardPolicyError

MAX_SIZES: Final = 48
"""Different demand sizes that are priced; of more, neighbours are priced together, as the larger of them."""

_EPSILON: Final = 1e-9
_STEPS_PER_SIZE: Final = 40


def hole_values(size: int, demands: Mapping[int, float]) -> tuple[float, ...]:
    """Compute V for every amount of free units of a card.

    Args:
        size: Units of the card, at least 1.
        demands: How often each amount of units is asked of one card; amounts of 0, beyond the size, or
            asked with weight 0 are left out.

    Returns:
        V(0) .. V(size), growing, V(size) = 1. Without any demand V(f) = f / size: nothing is known.

    Raises:
        CardPolicyError: the size is below 1.
    """
    if size < 1:
        raise CardPolicyError(f"card of {size} units; allowed: 1 or more")
    asked = _merged({units: weight for units, weight in demands.items() if 0 < units <= size and weight > 0})
    if not asked:
        return tuple(free / size for free in range(size + 1))
    sizes = sorted(asked, reverse=True)
    step = reduce(gcd, sizes)
    length = size // step
    widths = [units // step for units in sizes]
    prices = _prices(length, widths, [asked[units] for units in sizes])
    values = best_filling(length, widths, prices)[0]
    return tuple(values[free // step] / values[length] for free in range(size + 1))


def _merged(asked: Mapping[int, float]) -> dict[int, float]:
    """Reduce the sizes to a number that can be priced in milliseconds."""
    sizes = sorted(asked)
    group = -(-len(sizes) // MAX_SIZES)
    merged: dict[int, float] = {}
    for start in range(0, len(sizes), max(1, group)):
        members = sizes[start : start + group]
        merged[members[-1]] = sum(asked[units] for units in members)
    return merged


def _prices(length: int, widths: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Solve the cutting-stock problem by the revised simplex method with generated columns.

    Prices after a limited number of steps are used as they are: any non-negative prices give a usable V.
    """
    rows = range(len(widths))
    total = sum(weights)
    # Basis inverse and basic values; the first basis fills cards with one size each.
    inverse = [[1.0 / (length // widths[i]) if i == j else 0.0 for j in rows] for i in rows]
    amounts = [weights[i] / total * inverse[i][i] for i in rows]
    costs = [1.0] * len(widths)
    steps = _STEPS_PER_SIZE * len(widths)
    prices = improve(inverse, amounts, costs, partial(_entering, length, widths), steps)
    return [max(0.0, price) for price in prices] if any(prices) else [1.0] * len(widths)


def _entering(length: int, widths: Sequence[int], prices: Sequence[float]) -> tuple[list[float], float]:
    """Find a column that lowers the cost, and its own cost; at the end one of zeros, which no row limits."""
    worst = min(range(len(prices)), key=prices.__getitem__)
    if prices[worst] < -_EPSILON:
        return [-1.0 if j == worst else 0.0 for j in range(len(prices))], 0.0
    values, last = best_filling(length, widths, prices)
    if values[length] <= 1 + _EPSILON:
        return [0.0] * len(prices), 0.0
    return read_filling(length, widths, last), 1.0


def improve(
    inverse: list[list[float]],
    amounts: list[float],
    costs: list[float],
    entering_for: Callable[[list[float]], tuple[list[float], float]],
    steps: int,
) -> list[float]:
    """Minimise a linear programme by the revised simplex method with generated columns.

    Args:
        inverse: float[n][n], inverse of the first basis; changed in place, as the next two are.
        amounts: float[n], its basic values, 0 or more.
        costs: float[n], cost of each basic column.
        entering_for: Finds a column that lowers the cost at the prices float[n] of the rows, and its cost.
            At the end it returns a column of zeros.

    Returns:
        float[n], the prices of the rows as of the last basis looked at.
    """
    rows = range(len(inverse))
    prices = [0.0] * len(inverse)
    for _ in range(steps):
        prices = [sum(costs[i] * inverse[i][j] for i in rows if costs[i]) for j in rows]
        entering, cost = entering_for(prices)
        column = [sum(inverse[i][j] * entering[j] for j in rows if entering[j]) for i in rows]
        leaving = _leaving_row(amounts, column)
        if leaving is None:
            break
        _exchange(inverse, amounts, column, leaving)
        costs[leaving] = cost
    return prices


def _leaving_row(amounts: Sequence[float], column: Sequence[float]) -> int | None:
    """Find the basic row that limits an entering column first; None when none does."""
    limits = [(amounts[i] / by, i) for i, by in enumerate(column) if by > _EPSILON]
    return min(limits)[1] if limits else None


def _exchange(
    inverse: list[list[float]], amounts: list[float], column: Sequence[float], leaving: int
) -> None:
    """Exchange one basic column: Gauss-Jordan on the inverse and the basic values."""
    scale = 1.0 / column[leaving]
    row = [value * scale for value in inverse[leaving]]
    amount = amounts[leaving] * scale
    for i, factor in enumerate(column):
        if i != leaving and factor:
            inverse[i] = [value - factor * pivot for value, pivot in zip(inverse[i], row, strict=True)]
            amounts[i] = max(0.0, amounts[i] - factor * amount)
    inverse[leaving] = row
    amounts[leaving] = amount


def best_filling(
    length: int, widths: Sequence[int], prices: Sequence[float]
) -> tuple[list[float], list[int]]:
    """Find the best filling of every length up to this one: its value and its last size (-1: none)."""
    values = [0.0] * (length + 1)
    last = [-1] * (length + 1)
    items = [
        (width, price, m) for m, (width, price) in enumerate(zip(widths, prices, strict=True)) if price > 0
    ]
    for free in range(1, length + 1):
        best, taken = values[free - 1], -1
        for width, price, m in items:
            if width <= free and values[free - width] + price > best + _EPSILON:
                best, taken = values[free - width] + price, m
        values[free], last[free] = best, taken
    return values, last


def read_filling(length: int, widths: Sequence[int], last: Sequence[int]) -> list[float]:
    """Read how many of each size the best filling of a whole card holds."""
    counts = [0.0] * len(widths)
    free = length
    while free > 0:
        taken = last[free]
        if taken < 0:
            free -= 1
        else:
            counts[taken] += 1
            free -= widths[taken]
    return counts
