"""Places a pod's demands on copies of node states, card by card, each on the best card left."""

from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray, FloatArray, RowArray
from scheduler_plugin.scheduling.card_costs import CardCosts
from scheduler_plugin.scheduling.policies.fragmentation_terms import FragmentationTerms

RESOLUTION: Final = 1e6
"""Increases closer than 1 / this, in units, are equal: sums in another order differ in the last bits."""


class StatePlacer:
    """Places demands on copies of states.

    Attributes:
        cards, sums: Cards and sums of the states, as they are after the placements so far.
        value: float64[n], fragmentation after the last placement.
        fits: bool[n], everything was placed so far.
        evaluated: Something was.
        answers: float64[u], fragmentation of the states that are only asked for.

    Args:
        cards, sums: Cards and sums of the states to place on; changed in place.
        others: float64[u, 3G + 2], sums of states to evaluate on the way.
        limits: float64[n + u, M], of both.
    """

    def __init__(
        self,
        terms: FragmentationTerms,
        cards: RowArray,
        sums: FloatArray,
        others: FloatArray,
        limits: FloatArray,
    ) -> None:
        self._terms = terms
        self._limits = limits
        self._others = others
        self.cards = cards
        self.sums = sums
        self.value: FloatArray = np.zeros(len(cards), dtype=np.float64)
        self.fits: BoolArray = np.ones(len(cards), dtype=np.bool_)
        self.evaluated = False
        self.answers: FloatArray = self.value[:0]

    def nothing(self) -> None:
        """Evaluate the states with nothing placed on cards."""
        self.value = self._evaluate(self.sums, np.arange(len(self.cards)))

    def demand(
        self, units: int, count: int, allowed: BoolArray | None, costs: CardCosts | None
    ) -> list[RowArray]:
        """Place one demand; return the positions of its cards by state, `count` times intp[n].

        Args:
            allowed: bool[n, K], cards that may be taken; None: all.
            costs: The card policy; None: the cards that fragment least.
        """
        left = self._terms.card_free[self.cards] >= units
        if allowed is not None:
            left &= allowed
        everyone = np.arange(len(self.cards))
        positions: list[RowArray] = []
        for _ in range(count):
            preferred = left if costs is None else self._first(left, costs, units)
            candidates = _distinct(preferred, self.cards)
            self.fits &= candidates.any(axis=1)
            at, position = np.nonzero(candidates)
            old = self.cards[at, position]
            new = self._terms.after(old, units)
            sums = self.sums[at] - self._terms.table[old] + self._terms.table[new]
            values: FloatArray = np.full(candidates.shape, np.inf, dtype=np.float64)
            values[at, position] = np.rint(self._evaluate(sums, at) * RESOLUTION) / RESOLUTION
            best: RowArray = values.argmin(axis=1)
            self.value = values[everyone, best]
            taken = candidates[everyone, best]
            index = np.zeros(candidates.shape, dtype=np.intp)
            index[at, position] = np.arange(at.size)
            pick = index[everyone, best][taken]
            self.cards[taken, best[taken]] = new[pick]
            self.sums[taken] = sums[pick]
            left[everyone, best] = False
            positions.append(best)
        return positions

    def _evaluate(self, sums: FloatArray, at: RowArray) -> FloatArray:
        if self.evaluated or not len(self._others):
            self.evaluated = True
            return self._terms.evaluate(sums, self._limits, at)
        self.evaluated = True
        places = np.arange(len(self.cards), len(self._limits))
        result = self._terms.evaluate(
            np.concatenate((sums, self._others)), self._limits, np.concatenate((at, places))
        )
        self.answers = result[len(sums) :]
        mine: FloatArray = result[: len(sums)]
        return mine

    def _first(self, left: BoolArray, costs: CardCosts, units: int) -> BoolArray:
        """Keep the one card of each state that a card policy takes."""
        free, size = self._terms.card_free[self.cards], self._terms.card_size[self.cards]
        cost = np.where(left, costs(size, free, units), np.inf)
        result: BoolArray = np.zeros_like(left)
        result[np.arange(len(cost)), cost.argmin(axis=1)] = True
        result &= left
        return result


def _distinct(candidates: BoolArray, cards: RowArray) -> BoolArray:
    """Drop candidates that are the same as the candidate before them."""
    result = candidates.copy()
    result[:, 1:] &= ~(candidates[:, :-1] & (cards[:, 1:] == cards[:, :-1]))
    return result
