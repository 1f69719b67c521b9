"""Which node has which row of the arrays, and the order of the nodes' names."""

import json
from bisect import bisect_left
from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import LongArray, add_rows, copy_columns
from scheduler_plugin.errors import StateError

_RANK_GAP: Final = 1 << 32


class NodeIndex:
    """Rows by the names of nodes, and names by row.

    Attributes:
        epoch: +1 whenever `rows` changes.
        rows: Row by node name.
        names: Name by row, empty text for a vacant row.
        quoted: The names as JSON texts, by row.
        rank: int64[R], order of the names; unique among rows in use.
        sorted_names: The names of the nodes in this order.
    """

    def __init__(self, rows: int) -> None:
        self.epoch = 0
        self.rows: dict[str, int] = {}
        self.names: list[str] = [""] * rows
        self.quoted: list[bytes] = [b""] * rows
        self.rank: LongArray = np.zeros(rows, dtype=np.int64)
        self.sorted_names: list[str] = []
        self._vacant_rows = list(range(rows - 1, -1, -1))

    def copy(self) -> "NodeIndex":
        return copy_columns(self)

    @property
    def is_full(self) -> bool:
        """No row is vacant."""
        return not self._vacant_rows

    def add(self, name: str) -> int:
        """Give a node a vacant row; there must be one.

        Raises:
            StateError: it has one already, or no name.
        """
        if not name or name in self.rows:
            raise StateError(f"node {name!r} added; allowed: a name that has no row yet")
        row = self._vacant_rows.pop()
        self.epoch += 1
        self.rows[name] = row
        self.names[row] = name
        self.quoted[row] = json.dumps(name).encode()
        self._set_rank(name, row)
        return row

    def remove(self, name: str) -> int:
        """Make a node's row vacant, and return it.

        Raises:
            StateError: it has none.
        """
        row = self.rows.pop(name, None)
        if row is None:
            raise StateError(f"node {name!r} removed: it has no row")
        self.epoch += 1
        del self.sorted_names[bisect_left(self.sorted_names, name)]
        self.names[row] = ""
        self.quoted[row] = b""
        self._vacant_rows.append(row)
        return row

    def add_rows(self, more: int) -> None:
        old = len(self.names)
        self.names += [""] * more
        self.quoted += [b""] * more
        self.rank = add_rows(self.rank, more)
        self._vacant_rows.extend(range(old + more - 1, old - 1, -1))

    def _set_rank(self, name: str, row: int) -> None:
        """Insert a name between its neighbours; ranks have gaps, so that other ranks seldom change."""
        at = bisect_left(self.sorted_names, name)
        self.sorted_names.insert(at, name)
        below = int(self.rank[self.rows[self.sorted_names[at - 1]]]) if at else 0
        if at + 1 == len(self.sorted_names):
            self.rank[row] = below + _RANK_GAP
            return
        above = int(self.rank[self.rows[self.sorted_names[at + 1]]])
        if above - below > 1:
            self.rank[row] = (below + above) // 2
            return
        rows = [self.rows[each] for each in self.sorted_names]
        self.rank[rows] = np.arange(1, len(rows) + 1, dtype=np.int64) * _RANK_GAP
