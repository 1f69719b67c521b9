"""From a JSON list of node names to rows without making a Python object for each name.

kube-scheduler filters nodes in parallel, so the names come in another order with every call. Reading 5 000 of
them one by one walks over 5 000 objects scattered in memory. Here they are cut, hashed and compared as arrays
of 64-bit words. The hash only says where to look: a name is found if all its bytes are equal.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugin.cache.arrays import BoolArray, RowArray
from scheduler_plugin.cache.node_index import NodeIndex

_QUOTE: Final = 0x22
_FIRST_PRINTED: Final = 0x20
_COMMA: Final = 0x2C
_BETWEEN: Final = 3
"""Bytes from the end of a name to the start of the next: `","`."""
_WORD: Final = 8
_LONGEST: Final = 256
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_AGAIN: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_FOLD: Final = np.uint64(29)
_TOP: Final = np.uint64(20)

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class CutNames:
    """A list of names and where they are in it.

    Attributes:
        padded: Its bytes, with zeros behind them.
        starts: intp[m], first byte of each name.
        ends: intp[m], the byte behind each name.
    """

    text: bytes
    padded: Bytes
    starts: Positions
    ends: Positions

    def quoted(self, position: int) -> bytes:
        return self.text[self.starts[position] - 1 : self.ends[position] + 1]


class NameIndex:
    """A hash table from node names to rows, rebuilt when nodes are added or removed."""

    def __init__(self, nodes: NodeIndex) -> None:
        self.nodes = nodes
        self._epoch = -1
        self._columns: list[Words] = []
        self._masks: Words = np.zeros((1, 1), dtype=np.uint64)
        self._table: RowArray = np.full(2, -1, dtype=np.intp)

    def rows(self, names: CutNames) -> RowArray:
        """Find the rows of names: intp[m], -1 where a name has none."""
        if self.nodes.epoch != self._epoch:
            self._build()
        lengths = names.ends - names.starts
        longest = self._masks.shape[1] * _WORD
        if int(lengths.max()) <= longest:
            return self._look_up(self._gather(names.padded, names.starts, lengths))
        found = np.full(len(lengths), -1, dtype=np.intp)
        some = np.flatnonzero(lengths <= longest)
        if some.size:
            found[some] = self._look_up(self._gather(names.padded, names.starts[some], lengths[some]))
        return found

    def _gather(self, padded: Bytes, starts: Positions, lengths: Positions) -> list[Words]:
        """Copy names into columns of words, zeros behind their ends."""
        width = self._masks.shape[1]
        # One element a byte, each as long as the longest name and overlapping the next.
        windows = np.ndarray(
            (len(padded) - width * _WORD + 1,), dtype=f"V{width * _WORD}", buffer=padded, strides=(1,)
        )
        words = windows[starts].view(np.uint64).reshape(-1, width)
        alike = int(lengths[0])
        words &= self._masks[alike] if (lengths == alike).all() else self._masks[lengths]
        return [np.ascontiguousarray(column) for column in words.T]

    def _look_up(self, columns: list[Words]) -> RowArray:
        """Probe the table until every name is found or meets an empty slot."""
        mask = len(self._table) - 1
        slots = _hash(columns) & mask
        rows: RowArray = self._table[slots]
        wrong = np.flatnonzero((rows >= 0) & self._differ(rows, columns))
        while wrong.size:
            slots[wrong] = (slots[wrong] + 1) & mask
            again = self._table[slots[wrong]]
            rows[wrong] = again
            differ = self._differ(again, [column[wrong] for column in columns])
            wrong = wrong[(again >= 0) & differ]
        return rows

    def _differ(self, rows: RowArray, columns: list[Words]) -> BoolArray:
        differ: BoolArray = np.zeros(len(rows), dtype=np.bool_)
        for mine, theirs in zip(self._columns, columns, strict=True):
            differ |= mine[rows] != theirs
        return differ

    def _build(self) -> None:
        encoded = {row: name.encode() for name, row in self.nodes.rows.items()}
        encoded = {row: name for row, name in encoded.items() if len(name) <= _LONGEST}
        width = -(-max(map(len, encoded.values()), default=1) // _WORD) * _WORD
        words = np.zeros((len(self.nodes.names), width // _WORD), dtype=np.uint64)
        for row, name in encoded.items():
            words[row] = np.frombuffer(name.ljust(width, b"\0"), dtype=np.uint64)
        masks = np.zeros((width + 1, width), dtype=np.uint8)
        masks[np.tri(width + 1, width, -1, dtype=np.bool_)] = 0xFF
        self._masks = masks.view(np.uint64)
        self._columns = [np.ascontiguousarray(column) for column in words.T]
        table: list[int] = [-1] * (1 << (4 * len(encoded) + 1).bit_length())
        rows = list(encoded)
        for row, slot in zip(rows, _hash([column[rows] for column in self._columns]).tolist(), strict=True):
            at = slot & (len(table) - 1)
            while table[at] >= 0:
                at = (at + 1) & (len(table) - 1)
            table[at] = row
        self._table = np.array(table, dtype=np.intp)
        self._epoch = self.nodes.epoch


def cut_names(names: bytes) -> CutNames | None:
    """Find where names begin and end in `["a","b"]`; None for any other text.

    Args:
        names: A JSON list of one or more ASCII texts, without spaces and escapes, as Go's encoder writes it.
    """
    if not (names.startswith(b'["') and names.endswith(b'"]') and names.isascii()) or b"\\" in names:
        return None
    padded = np.frombuffer(names + bytes(_LONGEST), dtype=np.uint8)
    quotes = np.flatnonzero(padded == _QUOTE)
    starts, ends = quotes[0::2] + 1, quotes[1::2]
    if len(starts) != len(ends) or ends[-1] != len(names) - 2:
        return None
    if (starts[1:] - ends[:-1] != _BETWEEN).any() or (padded[ends[:-1] + 1] != _COMMA).any():
        return None
    if (padded[: len(names)] < _FIRST_PRINTED).any():
        return None
    return CutNames(names, padded, starts, ends)


def _hash(columns: list[Words]) -> RowArray:
    """Mix the words of each name into one number, not negative."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed ^= column
        mixed *= _MIX
        mixed ^= mixed >> _FOLD
    mixed *= _MIX_AGAIN
    return (mixed >> _TOP).astype(np.intp)
