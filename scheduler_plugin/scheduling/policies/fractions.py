"""The fractions f that the scores of algorithms 3 and 5 are made of, kept by row and node version."""

from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import ClusterView, FloatArray, LongArray, RowArray
from scheduler_plugin.scheduling.policies.registry import Ask

DECIMALS: Final = 12
"""Sums of the same fractions in another order differ in the last bit; scores closer than this are ties."""


_FEW: Final = 8


class Fractions:
    """`used_c / capacity_c` and `1 / capacity_c` for cpu, memory and gpu-memory of every row.

    Rows are recomputed when their version changes, so a request costs one multiplication and one addition.
    A class of which a node has nothing is dropped there: its fraction is 0 and it counts in no mean.

    Attributes:
        used_total, capacity_total: Sums over all rows as followed last, by class.
    """

    def __init__(self) -> None:
        self.used_total = [0, 0, 0]
        self.capacity_total = [0, 0, 0]
        self._start(0)

    def _start(self, rows: int) -> None:
        self._versions: LongArray = np.full(rows, -1, dtype=np.int64)
        self._raw_used: LongArray = np.zeros((3, rows), dtype=np.int64)
        self._raw_capacity: LongArray = np.zeros((3, rows), dtype=np.int64)
        self._used: FloatArray = np.zeros((3, rows), dtype=np.float64)
        self._inverse: FloatArray = np.zeros((3, rows), dtype=np.float64)
        self._present: FloatArray = np.zeros((3, rows), dtype=np.float64)
        self._capacities_changed = True
        self._complete = False
        self.used_total = [0, 0, 0]
        self.capacity_total = [0, 0, 0]

    def follow(self, view: ClusterView) -> RowArray:
        """Recompute the rows that changed, and return them."""
        if len(view.version) != len(self._versions):
            self._start(len(view.version))
        changed = np.flatnonzero(view.version != self._versions)
        if not changed.size:
            return changed
        columns = (
            (view.cpu_capacity, view.cpu_used),
            (view.memory_capacity, view.memory_used),
            (view.gpu_capacity, view.gpu_used),
        )
        if changed.size <= _FEW:
            for row in changed.tolist():
                for at, (capacity, used) in enumerate(columns):
                    self._set(at, row, int(capacity[row]), int(used[row]))
        else:
            for at, (capacity, used) in enumerate(columns):
                self._set_many(at, changed, capacity[changed], used[changed])
        self._versions[changed] = view.version[changed]
        if self._capacities_changed:
            self._capacities_changed = False
            self._complete = bool((self._present.all(axis=0) | ~view.usable).all())
        return changed

    def _set(self, at: int, row: int, capacity: int, used: int) -> None:
        self.used_total[at] += used - int(self._raw_used[at, row])
        self._raw_used[at, row] = used
        if capacity != self._raw_capacity[at, row]:
            self.capacity_total[at] += capacity - int(self._raw_capacity[at, row])
            self._raw_capacity[at, row] = capacity
            self._capacities_changed = True
            self._inverse[at, row] = 1.0 / capacity if capacity > 0 else 0.0
            self._present[at, row] = capacity > 0
        self._used[at, row] = used * self._inverse[at, row]

    def _set_many(self, at: int, rows: RowArray, capacity: LongArray, used: LongArray) -> None:
        self._raw_used[at, rows] = used
        self._raw_capacity[at, rows] = capacity
        self._capacities_changed = True
        self.used_total[at] = int(self._raw_used[at].sum())
        self.capacity_total[at] = int(self._raw_capacity[at].sum())
        present = capacity > 0
        inverse = np.divide(1.0, capacity, out=np.zeros(len(rows)), where=present)
        self._inverse[at, rows] = inverse
        self._used[at, rows] = used * inverse
        self._present[at, rows] = present

    def before(self, rows: RowArray) -> FloatArray:
        """`used_c / capacity_c` as followed last: float64[3, m]."""
        return self._used.take(rows, axis=1)

    def after(self, ask: Ask, rows: RowArray) -> FloatArray:
        """`(used_c + request_c) / capacity_c` as followed last: float64[3, m].

        Args:
            ask: What the pod asks for.
            rows: intp[m].
        """
        request = np.array(((ask.cpu_milli,), (ask.memory_bytes,), (ask.gpu_units,)), dtype=np.float64)
        result = self._inverse.take(rows, axis=1)
        result *= request
        result += self._used.take(rows, axis=1)
        return result

    def present(self, rows: RowArray, ask: Ask | None = None) -> FloatArray | None:
        """1 where the node has something of the class, else 0: float64[3, m]; None: 1 everywhere.

        Args:
            rows: intp[m]; only a pod that asks for no card has rows without cards.
            ask: What the pod asks for; None: for cards.
        """
        plain = ask is not None and not ask.demands
        return None if self._complete and not plain else self._present.take(rows, axis=1)


def mean(f: FloatArray, present: FloatArray | None) -> FloatArray:
    """Mean over the classes a node has (None: all three): float64[m], 0 for a node that has none."""
    result: FloatArray = f[0] + f[1]
    result += f[2]
    result /= 3.0 if present is None else np.maximum(present[0] + present[1] + present[2], 1.0)
    return result
