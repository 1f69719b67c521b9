"""The compute of nodes' cards, in percent of each card's own."""

from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import (
    BoolArray,
    IntArray,
    LongArray,
    RowArray,
    add_cards,
    add_rows,
    copy_columns,
    share_columns,
)
from scheduler_plugin.cache.row_changes import RowChanges

_NO_MASK: Final[tuple[int, int, BoolArray]] = 0, 0, np.zeros((0, 0), dtype=np.bool_)
"""No answer of `ComputeColumns.mask_free` so far."""


class ComputeColumns:
    """The compute of each card: what pods may ask for, what they have, and what is left.

    Invariant, kept by `update_free`: `free = limit - used - assumed`.

    Attributes:
        changes: Where the owner of the rows records changes.
        limit: int32[R], percent of each card's compute that pods may ask for; 0 where the node does not
            publish its compute.
        used: int32[R, K], percent published by the node.
        assumed: int32[R, K], percent of bound pods that the words do not contain yet.
        free: int32[R, K], less than 0 where pods have more.
    """

    def __init__(self, rows: int, cards: int, changes: RowChanges) -> None:
        self.changes = changes
        self.limit: IntArray = np.zeros(rows, dtype=np.int32)
        self.used: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.assumed: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.free: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self._mask = _NO_MASK

    def copy(self, changes: RowChanges) -> "ComputeColumns":
        return copy_columns(self, changes=changes)

    def update_free(self, row: int) -> None:
        """Recompute what is left of a row, whose change its owner records."""
        free = self.free[row]
        np.subtract(self.limit[row], self.used[row], out=free)
        free -= self.assumed[row]

    def as_emptied(self) -> "ComputeColumns":
        """Make a view as if no pod were there; see `NodeArrays.as_emptied`."""
        return share_columns(self, free=np.broadcast_to(self.limit[:, None], self.free.shape), _mask=_NO_MASK)

    def get_free(self, rows: RowArray) -> LongArray:
        """Return what is left of cards: int64[m, K], 0 where pods have more."""
        return np.maximum(self.free[rows].astype(np.int64), 0)

    def mask_free(self, percent: int) -> BoolArray:
        """Tell which cards have so much left: bool[R, K], read-only.

        Pods that wait ask for the same again and again, so the last answer is kept, and follows changed rows.
        """
        count, known, mask = self._mask
        alike = known == percent and mask.shape == self.free.shape
        if alike and count == self.changes.count:
            return mask
        changed = self.changes.list_since(count) if alike else None
        if changed is None:
            mask = self.free >= percent
        elif changed.size:
            mask = mask.copy()
            mask[changed] = self.free[changed] >= percent
        mask.flags.writeable = False
        self._mask = self.changes.count, percent, mask
        return mask

    def add_rows(self, more: int) -> None:
        for name in ("limit", "used", "assumed", "free"):
            setattr(self, name, add_rows(getattr(self, name), more))

    def add_cards(self, width: int) -> None:
        for name in ("used", "assumed", "free"):
            setattr(self, name, add_cards(getattr(self, name), width))
