"""What nodes offer and what their pods request of it besides cards, one column of amounts a row."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from scheduler_plugin.cache.amounts import FIXED, NOT_COUNTED, Amounts
from scheduler_plugin.cache.arrays import (
    BoolArray,
    LongArray,
    RowArray,
    add_rows,
    copy_columns,
    share_columns,
)
from scheduler_plugin.cache.row_changes import RowChanges

_FEW_ROWS: Final = 8
"""Rows of which each by itself is faster than arithmetic on arrays: most often one has changed."""


class AmountColumns:
    """`Amounts` of many nodes: the resources in the order of `Amounts`, then `other_resources`.

    Attributes:
        changes: Where changes of rows are recorded.
        capacity: int64[C, R], what nodes offer.
        requested: int64[C, R], what their pods request of it.
        other_resources: Names of the further resources that have a column.
    """

    def __init__(self, rows: int, changes: RowChanges) -> None:
        self.changes = changes
        self.capacity: LongArray = np.zeros((FIXED, rows), dtype=np.int64)
        self.requested: LongArray = np.zeros((FIXED, rows), dtype=np.int64)
        self.other_resources: list[str] = []

    def copy(self, changes: RowChanges | None = None) -> "AmountColumns":
        return copy_columns(self, changes=changes or self.changes.copy())

    def as_emptied(self) -> "AmountColumns":
        """Make a view as if no pod were there; see `NodeArrays.as_emptied`."""
        return share_columns(self, requested=np.broadcast_to(np.int64(0), self.requested.shape))

    def set_capacity(self, row: int, amounts: Amounts) -> None:
        """Set what a node offers to pods in all; more than `NOT_COUNTED` of a resource counts as that."""
        self._set_column(self.capacity, row, amounts)

    def set_requested(self, row: int, amounts: Amounts) -> None:
        """Set what the pods of a node request; more than `NOT_COUNTED` of a resource counts as that."""
        self._set_column(self.requested, row, amounts)

    def add_requested(self, row: int, amounts: Amounts, times: int = 1) -> None:
        """Add `times` times what a pod requests to what the pods of a node do; -1 subtracts it."""
        self.requested[:, row] += times * np.array(self._make_column(amounts), dtype=np.int64)
        self.changes.record(row)

    def _set_column(self, table: LongArray, row: int, amounts: Amounts) -> None:
        column = self._make_column(amounts)
        if table[:, row].tolist() != column:
            table[:, row] = column
            self.changes.record(row)

    def _make_column(self, amounts: Amounts) -> list[int]:
        column = list(amounts[:FIXED])
        if self.other_resources:
            column += [amounts.get(name) for name in self.other_resources]
        return column if max(column) <= NOT_COUNTED else [min(each, NOT_COUNTED) for each in column]

    def set_other_resources(self, names: Sequence[str]) -> None:
        """Count these further resources and no others; nodes have nothing of them so far."""
        self.other_resources = list(names)
        more = np.zeros((len(names), self.capacity.shape[1]), dtype=np.int64)
        self.capacity = np.concatenate([self.capacity[:FIXED], more])
        self.requested = np.concatenate([self.requested[:FIXED], more])
        self.changes.record_all()

    def list_asked(self, asked: Amounts) -> list[tuple[int, int]]:
        """List the positions of what is asked for, with the amount.

        Further resources that no node policy names are left out, because they are not counted.
        """
        positions = []
        for resource, amount in asked.list_asked():
            if isinstance(resource, int):
                positions.append((resource, amount))
            elif resource in self.other_resources:
                positions.append((FIXED + self.other_resources.index(resource), amount))
        return positions

    def compute_left(self, resource: int, rows: RowArray) -> LongArray:
        """Compute what rows have left of the resource at a position; it may be less than 0."""
        left: LongArray = self.capacity[resource][rows] - self.requested[resource][rows]
        return left

    def mask_fits(self, asked: Amounts, rows: RowArray) -> BoolArray:
        """Tell which rows have enough left, as `Amounts.fits_in` does: bool[m]."""
        positions = self.list_asked(asked)
        if len(rows) <= _FEW_ROWS:
            fit = [self._fits(positions, row) for row in rows.tolist()]
            return np.array(fit, dtype=np.bool_)
        fits: BoolArray = np.ones(len(rows), dtype=np.bool_)
        for resource, amount in positions:
            fits &= self.compute_left(resource, rows) >= amount
        return fits

    def fits(self, asked: Amounts, row: int) -> bool:
        """Tell whether a row has enough left."""
        return self._fits(self.list_asked(asked), row)

    def _fits(self, positions: Iterable[tuple[int, int]], row: int) -> bool:
        has, used = self.capacity[:, row].tolist(), self.requested[:, row].tolist()
        return all(amount <= has[resource] - used[resource] for resource, amount in positions)

    def count_fits(self, asked: Amounts, rows: RowArray) -> LongArray:
        """Count the equal pods that rows have enough left for, as `Amounts.count_in` does: int64[m]."""
        most: LongArray = np.full(len(rows), NOT_COUNTED)
        for resource, amount in self.list_asked(asked):
            np.minimum(most, self.compute_left(resource, rows) // amount, out=most)
        return np.maximum(most, 0, out=most)

    def add_rows(self, more: int) -> None:
        self.capacity = add_rows(self.capacity, more, axis=1)
        self.requested = add_rows(self.requested, more, axis=1)
