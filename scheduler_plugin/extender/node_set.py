"""A set of nodes, one bit each: remembered of the calls of some hundred refused pods.

The names of 5 000 nodes, which come in another order with every call, take 0.7 MB a pod.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.node_index import NodeIndex


@dataclass(frozen=True, slots=True)
class NodeSet:
    """A set of nodes; it means all nodes once nodes were added or removed, since rows change then."""

    bits: bytes = b""
    epoch: int = -1

    @classmethod
    def from_rows(cls, index: NodeIndex, rows: RowArray) -> Self:
        member = np.zeros(len(index.names), dtype=np.bool_)
        member[rows] = True
        return cls(np.packbits(member).tobytes(), index.epoch)

    def rows(self, index: NodeIndex) -> RowArray:
        """Rows of the nodes: intp[m]."""
        if self.epoch != index.epoch:
            return np.fromiter(index.rows.values(), np.intp, len(index.rows))
        return np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, dtype=np.uint8)))
