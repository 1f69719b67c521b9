"""The fragmentation of node states: F + 0.5 C + 3 S + 20 W, vectorised over states and shapes.

For a node with `free` units on its cards and shape m (k_m cards of g_m units, cpu, memory, models):

    q_m = how many pods of the shape fit      F_m = free if q_m = 0, else what lies on cards with < g_m free
    C_m = free - q_m k_m g_m                  S_m = free (C_m / free)^6
    W   = sum over cards of f - size V(f), the part of each card's rest that no good mix of demands can use

    B   = sum over cards of f (1.1 - 0.1 f / size), 0 for a card that is free as a whole

    fragmentation = (1 - u) (sum_m p_m (F_m + 0.5 C_m + 3 S_m) + 20 W) + u 24.5 B

F is the published measure. C and S count capacity instead of one more pod. W prices rests by the duals of the
cutting-stock problem (`allocator.pricing`). B keeps cards whole for pods of shapes not seen yet, whose share
is u. Without it a learner that knows nothing would break every card.

What one card adds to q, F, free, W and B depends on its kind (model, size) and free units only. So it is a
row of a table, and a node is the sum of its cards' rows.
"""

from typing import Final

import numpy as np

from allocator.policies.fragmentation import (
    CAPACITY_WEIGHT,
    FIT_WEIGHT,
    PRICE_WEIGHT,
    SHARP_WEIGHT,
    UNSEEN_WEIGHT,
    broken,
)
from allocator.pricing import hole_values
from scheduler_plugin.cache.arrays import FloatArray, LongArray, RowArray
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload

NO_CARD: Final = 0
"""Index of the table's row for a card that is not there."""

_ENOUGH: Final = 1e15


class FragmentationTerms:
    """Evaluates node states against one typical workload.

    Columns of the card table, with G groups of (units, cards, selector):

        [0, G)      pods of the group that the card takes
        [G, 2G)     1 where it takes at least one
        [2G, 3G)    free units lost to the group
        3G          free units
        3G + 1      what W and B add to the result

    All but the last are whole numbers in float64, so sums are exact in any order.

    Args:
        unseen: u, the share of pods that the workload does not know of: 0 to 1.
    """

    def __init__(self, workload: TypicalWorkload, unseen: float) -> None:
        shares = workload.shares()
        groups = list(dict.fromkeys((s.shape.units, s.shape.cards, s.shape.selector) for s in shares))
        where = {group: index for index, group in enumerate(groups)}
        self._demands = workload.card_demands()
        self._groups = groups
        self._units = np.array([group[0] for group in groups], dtype=np.int64)
        self._cards = np.array([group[1] for group in groups], dtype=np.float64)
        self._several = np.flatnonzero(self._cards > 1)
        self._group_of = np.array(
            [where[s.shape.units, s.shape.cards, s.shape.selector] for s in shares], dtype=np.intp
        )
        self._unseen = unseen
        self._popularity = (1.0 - unseen) * np.array([s.popularity for s in shares], dtype=np.float64)
        self._pod_units = np.array([s.shape.units * s.shape.cards for s in shares], dtype=np.float64)
        self._total_popularity = float(self._popularity.sum())
        self._taken_weight = self._popularity * self._pod_units
        self._cpu = _divisor([s.shape.cpu_milli for s in shares])
        self._memory = _divisor([s.memory_bytes for s in shares])
        self._admitted: dict[str, LongArray] = {}
        self._values: dict[int, tuple[float, ...]] = {}
        self._ids: dict[tuple[str, int, int], int] = {}
        self._after: dict[int, dict[int, int]] = {}
        self.table: FloatArray = np.zeros((64, 3 * len(groups) + 2), dtype=np.float64)
        self.card_free: LongArray = np.zeros(64, dtype=np.int64)
        self.card_size: LongArray = np.zeros(64, dtype=np.int64)
        self.card_model: list[str] = [""]
        self._units_of: list[tuple[str, int]] = [("", 0)]

    def card(self, model: str, size: int, free: int) -> int:
        """Find or make the table's row of a card, from 1."""
        key = (model, size, free)
        known = self._ids.get(key)
        if known is not None:
            return known
        index = len(self._ids) + 1
        if index == len(self.table):
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))
            self.card_free = np.concatenate((self.card_free, np.zeros_like(self.card_free)))
            self.card_size = np.concatenate((self.card_size, np.zeros_like(self.card_size)))
        groups = len(self._groups)
        pods = (free // self._units) * self._admits(model)
        row = self.table[index]
        row[:groups] = pods
        row[groups : 2 * groups] = pods > 0
        row[2 * groups : 3 * groups] = np.where(pods > 0, 0, free)
        row[3 * groups] = free
        row[3 * groups + 1] = self._priced(size, free)
        self.card_free[index] = free
        self.card_size[index] = size
        self.card_model.append(model)
        self._units_of.append((model, size))
        self._ids[key] = index
        return index

    def after(self, cards: RowArray, units: int) -> RowArray:
        """Find the rows of the same cards with `units` more in use, which each has free: intp[n]."""
        known = self._after.setdefault(units, {})
        result = []
        for card in cards.tolist():
            left = known.get(card)
            if left is None:
                model, size = self._units_of[card]
                left = known[card] = self.card(model, size, int(self.card_free[card]) - units)
            result.append(left)
        return np.array(result, dtype=np.intp)

    def limits(self, cpu_free: FloatArray, memory_free: FloatArray) -> FloatArray:
        """Compute how many pods of each shape cpu and memory allow.

        Args:
            cpu_free: float64[n], thousandths of a core.
            memory_free: float64[n], bytes.

        Returns:
            float64[n, M].
        """
        by_cpu = np.floor((cpu_free[:, None] + self._cpu[1]) / self._cpu[0])
        # Mean memory is no whole number: forgive the last bit.
        by_memory = np.floor((memory_free[:, None] + self._memory[1]) / self._memory[0] + 1e-9)
        result: FloatArray = np.minimum(by_cpu, by_memory, out=by_cpu)
        return result

    def evaluate(self, sums: FloatArray, limits: FloatArray, at: RowArray) -> FloatArray:
        """Compute the fragmentation of node states.

        Args:
            sums: float64[n, 3G + 2], table rows summed over each node's cards.
            limits: float64[l, M], from `limits`.
            at: intp[n], the row of `limits` of each state.

        Returns:
            float64[n], units.
        """
        groups = len(self._groups)
        counts = sums[:, :groups]
        if self._several.size:
            several = self._several
            needed = self._cards[several]
            counts = counts.copy()
            possible = np.floor(counts[:, several] / needed)
            counts[:, several] = np.where(sums[:, groups + several] >= needed, possible, 0)
        free = sums[:, 3 * groups]
        pods = np.minimum(counts[:, self._group_of], limits[at])
        lost = np.where(pods > 0, sums[:, 2 * groups : 3 * groups][:, self._group_of], free[:, None])
        sharp = 1.0 - pods * (self._pod_units / np.maximum(free, 1.0)[:, None])
        sharp = _power(sharp)
        capacity = free * self._total_popularity - pods @ self._taken_weight
        result: FloatArray = (
            FIT_WEIGHT * (lost @ self._popularity)
            + CAPACITY_WEIGHT * capacity
            + SHARP_WEIGHT * free * (sharp @ self._popularity)
            + sums[:, 3 * groups + 1]
        )
        return result

    def _priced(self, size: int, free: int) -> float:
        """Compute what a card adds to the result whatever else is on its node."""
        if size <= 0:
            return 0.0
        if size not in self._values:
            self._values[size] = hole_values(size, self._demands)
        waste = free - size * self._values[size][free]
        return (1.0 - self._unseen) * PRICE_WEIGHT * waste + self._unseen * UNSEEN_WEIGHT * broken(size, free)

    def _admits(self, model: str) -> LongArray:
        """Find the groups that accept a model: int64[G], 0 or 1."""
        known = self._admitted.get(model)
        if known is None:
            admitted = [int(selector.admits_model(model)) for _, _, selector in self._groups]
            known = self._admitted[model] = np.array(admitted, dtype=np.int64)
        return known


def _divisor(amounts: list[int] | list[float]) -> tuple[FloatArray, FloatArray]:
    """Make division by amounts safe: where nothing is asked, divide a huge number by 1."""
    asked = np.array(amounts, dtype=np.float64)
    return np.where(asked > 0, asked, 1.0), np.where(asked > 0, 0.0, _ENOUGH)


def _power(base: FloatArray) -> FloatArray:
    """Raise to the sharpness of S, which is 6: (x * x * x) squared."""
    cube = base * base
    cube *= base
    cube *= cube
    return cube
