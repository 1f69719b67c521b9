"""Card policies for many cards at once; the scalar `costs` of `allocator.policies` is the oracle."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from allocator.cards import Card
from allocator.policies.interface import CardPolicy
from allocator.policy import card_policy, costs_of_fitting, wrong_costs
from allocator.registry import one_line
from scheduler_plugin.cache.arrays import FloatArray, LongArray

CardCosts = Callable[[LongArray, LongArray, int], FloatArray]
"""From int64[m, K] sizes and free units, and units asked, to float64[m, K]; inf where they are not free."""

_COSTS_BY_NAME: dict[str, tuple[CardPolicy, CardCosts | None]] = {}


def get_array_costs(name: str) -> CardCosts | None:
    """Return a card policy's function for arrays; None if it only has `costs`, for one node at a time.

    Raises:
        PolicyError: (allocator's) there is no such policy. The returned function raises it too, if the policy
        returns invalid costs.
    """
    policy = card_policy(name)
    known = _COSTS_BY_NAME.get(name)
    if known is None or known[0] is not policy:
        known = _COSTS_BY_NAME[name] = policy, _make_array_costs(name, policy)
    return known[1]


def _make_array_costs(name: str, policy: Any) -> CardCosts | None:
    array_costs = getattr(policy, "array_costs", None)
    if array_costs is not None:

        def computed(size: LongArray, free: LongArray, units: int) -> FloatArray:
            try:
                costs: FloatArray = np.array(array_costs(size, free, units), dtype=np.float64)
            except Exception as error:
                what = f"array_costs for {units} units cannot be had: {one_line(error)}"
                raise wrong_costs(name, what) from error
            if costs.shape != size.shape:
                raise wrong_costs(name, f"array_costs of shape {costs.shape} for cards of {size.shape}")
            costs[free < units] = np.inf
            if np.isnan(costs).any():
                raise wrong_costs(name, f"array_costs for {units} units have nan")
            return costs

        return computed
    return _make_costs_by_fill(name) if getattr(policy, "by_fill", False) else None


def _make_costs_by_fill(name: str) -> CardCosts:
    @lru_cache(maxsize=1024)
    def table(size: int, units: int) -> FloatArray:
        """Costs of a card by its free units: float64[size + 1]."""
        cards = [Card(0, "", "", size, size - free) for free in range(size + 1)]
        costs = costs_of_fitting(cards, units, name)
        return np.array([costs.get(free, np.inf) for free in range(size + 1)], dtype=np.float64)

    def looked_up(size: LongArray, free: LongArray, units: int) -> FloatArray:
        costs: FloatArray = np.full(size.shape, np.inf, dtype=np.float64)
        for each in np.unique(size).tolist():
            if each >= units:
                here = (size == each) & (free >= units)
                costs[here] = table(each, units)[free[here]]
        return costs

    return looked_up
