"""Node states by number: equal nodes share one, so what was computed for one holds for all."""

from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import ClusterView, FloatArray, LongArray, RowArray
from scheduler_plugin.scheduling.policies.fragmentation_terms import NO_CARD, FragmentationTerms

TIE_LEVELS: Final = 512
"""Steps in which free GPU, and within a step free cpu, decide between equal increases."""

_SPARE: Final = 8192


class NodeStates:
    """Gives every node row the number of its state, anew when the row's version changes.

    A state is the node's free cpu and memory and its cards, sorted, as rows of `FragmentationTerms.table`.
    Numbers are given out until there are too many; then all are forgotten and `generation` grows.

    Attributes:
        generation: +1 whenever numbers change their meaning.
        of_row: intp[R], the state of each row.
        cards: intp[n, K], table rows of each state's cards, sorted, largest first.
        sums: float64[n, 3G + 2], their sum.
        cpu_free, memory_free: float64[n].
        tie: float64[n], 0 to TIE_LEVELS^2 - 1: smaller has less free GPU, then less free cpu.
        value: float64[n], fragmentation, NaN where not computed.
    """

    def __init__(self, terms: FragmentationTerms) -> None:
        self.generation = 0
        self._terms = terms
        self._start(0, 0)

    def _start(self, rows: int, width: int) -> None:
        self.generation += 1
        self._numbers: dict[tuple[int, ...], int] = {}
        self._width = width
        self._limit = 8 * rows + _SPARE
        self._versions: LongArray = np.full(rows, -1, dtype=np.int64)
        self._most_gpu = 1
        self._most_cpu = 1
        capacity = max(64, rows)
        self._cards_of_row: list[list[int]] = [[]] * rows
        self._orders: RowArray = np.zeros((rows, width), dtype=np.intp)
        self._ordered: LongArray = np.full(rows, -1, dtype=np.int64)
        self.of_row: RowArray = np.zeros(rows, dtype=np.intp)
        self.cards: RowArray = np.full((capacity, width), NO_CARD, dtype=np.intp)
        self.sums: FloatArray = np.zeros((capacity, self._terms.table.shape[1]), dtype=np.float64)
        self.cpu_free: FloatArray = np.zeros(capacity, dtype=np.float64)
        self.memory_free: FloatArray = np.zeros(capacity, dtype=np.float64)
        self.tie: FloatArray = np.zeros(capacity, dtype=np.float64)
        self.value: FloatArray = np.full(capacity, np.nan, dtype=np.float64)

    @property
    def capacity(self) -> int:
        return len(self.value)

    def follow(self, view: ClusterView) -> None:
        """Bring the rows' states up to date; costs nothing for rows whose version is the same."""
        rows, width = view.size.shape
        if rows != len(self._versions) or width != self._width or len(self._numbers) > self._limit:
            self._start(rows, width)
        changed = np.flatnonzero(view.version != self._versions)
        if not changed.size:
            return
        if not self._numbers:
            self._most_gpu = max(1, int(view.gpu_capacity.max()))
            self._most_cpu = max(1, int(view.cpu_capacity.max()))
        # Many rows are alike where all are new: after a start, and whenever pods of another shape come.
        alike: dict[tuple[bytes, bytes, bytes, int, int], int] = {}
        cpu = np.maximum(0, view.cpu_capacity[changed] - view.cpu_used[changed]).tolist()
        memory = np.maximum(0, view.memory_capacity[changed] - view.memory_used[changed]).tolist()
        for row, cpu_free, memory_free in zip(changed.tolist(), cpu, memory, strict=True):
            key = (*_make_cards_key(view, row), cpu_free, memory_free)
            first = alike.setdefault(key, row)
            if first == row:
                self.of_row[row] = self._number(view, row, cpu_free, memory_free)
            else:
                self.of_row[row], self._cards_of_row[row] = self.of_row[first], self._cards_of_row[first]
        self._versions[changed] = view.version[changed]

    def order(self, row: int) -> list[int]:
        """Positions of a row's cards in the order in which its state has them; stable among equals."""
        cards = self._cards_of_row[row]
        return sorted(range(len(cards)), key=cards.__getitem__, reverse=True)

    def orders(self, rows: RowArray) -> RowArray:
        """Positions of the cards of rows as `order` gives them, then those without a card: intp[m, K]."""
        for row in rows[self._ordered[rows] != self._versions[rows]].tolist():
            order = self.order(row)
            self._orders[row] = [*order, *range(len(order), self._width)]
            self._ordered[row] = self._versions[row]
        return self._orders[rows]

    def _cards(self, view: ClusterView, row: int) -> list[int]:
        count = int(view.cards[row])
        card, names = self._terms.card, view.model_names
        return [
            card(names[model] if model >= 0 else "", size, free)
            for model, size, free in zip(
                view.model[row, :count].tolist(),
                view.size[row, :count].tolist(),
                view.free[row, :count].tolist(),
                strict=True,
            )
        ]

    def _number(self, view: ClusterView, row: int, cpu: int, memory: int) -> int:
        own = self._cards_of_row[row] = self._cards(view, row)
        cards = sorted(own, reverse=True)
        key = (cpu, memory, *cards)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            if number == self.capacity:
                self._grow()
            self.cards[number, : len(cards)] = cards
            self.sums[number] = self._terms.table[cards].sum(axis=0)
            self.cpu_free[number] = cpu
            self.memory_free[number] = memory
            free = int(self._terms.card_free[cards].sum())
            self.tie[number] = TIE_LEVELS * _level(free, self._most_gpu) + _level(cpu, self._most_cpu)
        return number

    def _grow(self) -> None:
        for name, empty in (
            ("cards", NO_CARD),
            ("sums", 0.0),
            ("cpu_free", 0.0),
            ("memory_free", 0.0),
            ("tie", 0.0),
            ("value", np.nan),
        ):
            array = getattr(self, name)
            setattr(self, name, np.concatenate((array, np.full_like(array, empty))))


def _make_cards_key(view: ClusterView, row: int) -> tuple[bytes, bytes, bytes]:
    count = view.cards[row]
    return (
        view.model[row, :count].tobytes(),
        view.size[row, :count].tobytes(),
        view.free[row, :count].tobytes(),
    )


def _level(amount: int, most: int) -> int:
    """Map 0..most to 0..TIE_LEVELS - 1, more to the last."""
    return min(TIE_LEVELS - 1, amount * (TIE_LEVELS - 1) // most)
