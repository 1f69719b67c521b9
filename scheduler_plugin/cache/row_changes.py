"""Which rows of the node arrays have changed, for those that keep something computed from them."""

from collections import deque
from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import LongArray, RowArray, add_rows, copy_columns

MAX_RECENT_CHANGES: Final = 256
"""Changes of rows that are remembered individually."""


class RowChanges:
    """The changes of rows so far.

    Invariant: every change of a row adds one to its version. Versions outlive a row's node, so a version is
    never seen twice with different contents.

    Attributes:
        version: int64[R].
        count: How often a row has changed, all rows together; a change of all at once adds one.
    """

    def __init__(self, rows: int) -> None:
        self.version: LongArray = np.zeros(rows, dtype=np.int64)
        self.count = 0
        self._recent_rows: deque[int] = deque(maxlen=MAX_RECENT_CHANGES)

    def copy(self) -> "RowChanges":
        return copy_columns(self)

    def record(self, row: int) -> None:
        self.version[row] += 1
        self.count += 1
        self._recent_rows.append(row)

    def record_all(self) -> None:
        self.version += 1
        self.count += 1
        self._recent_rows.clear()

    def list_since(self, count: int) -> RowArray | None:
        """List the rows changed since `count` had this value; None if that is too long ago, or all have."""
        missed = self.count - count
        if missed > len(self._recent_rows):
            return None
        return np.array(sorted({self._recent_rows[-at] for at in range(1, missed + 1)}), dtype=np.intp)

    def add_rows(self, more: int) -> None:
        self.version = add_rows(self.version, more)
