"""Node arrays in shared memory: the committer writes rows, pre-schedulers keep copies up to date.

A row's version is written last and read first. So a reader of a half-written row has an older version than
the one that follows. The committer sees the difference and scores the node again.
"""

from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scheduler_plugin.cache.node_arrays import NodeArrays

if TYPE_CHECKING:
    from scheduler_plugin.cache.arrays import LongArray

_FIELDS: Final = (
    "requested",
    "gpu_used",
    "assumed",
    "occupied",
    "free",
)
_EPOCH_WORDS: Final = 1


class SharedRows:
    """What changes of `NodeArrays` while a batch is scheduled: versions, requests and cards' use.

    Args:
        nodes: The process's own arrays; rows, cards and names must stay what they are.
        name: Name of the shared memory to join; None makes it from `nodes`.
    """

    def __init__(self, nodes: NodeArrays, name: str | None = None) -> None:
        self._nodes = nodes
        arrays = [nodes.version, *(_by_row(nodes, field) for field in _FIELDS)]
        size = 8 * _EPOCH_WORDS + sum(_rounded(array.nbytes) for array in arrays)
        self._memory = SharedMemory(name, create=name is None, size=size)
        self._owner = name is None
        self._epoch: LongArray = np.ndarray((_EPOCH_WORDS,), dtype=np.int64, buffer=self._memory.buf)
        offset = 8 * _EPOCH_WORDS
        views: list[Any] = []
        for array in arrays:
            views.append(np.ndarray(array.shape, dtype=array.dtype, buffer=self._memory.buf, offset=offset))
            offset += _rounded(array.nbytes)
        self._version: LongArray = views[0]
        self._fields = dict(zip(_FIELDS, views[1:], strict=True))
        if self._owner:
            self._epoch[0] = 0
            for row in range(nodes.row_count):
                self.publish(row)

    @property
    def name(self) -> str:
        """Name to join under."""
        return self._memory.name

    @property
    def epoch(self) -> int:
        """Weights epoch of the committer."""
        return int(self._epoch[0])

    def publish(self, row: int, epoch: int | None = None) -> None:
        """Write a row of the own arrays, and the weights epoch."""
        for field, shared in self._fields.items():
            shared[row] = _by_row(self._nodes, field)[row]
        if epoch is not None:
            self._epoch[0] = epoch
        self._version[row] = self._nodes.version[row]

    def snapshot(self) -> int:
        """Copy the rows that changed into the own arrays, and return the epoch."""
        epoch = self.epoch
        versions = self._version.copy()
        for row in np.flatnonzero(versions != self._nodes.version).tolist():
            for field, shared in self._fields.items():
                _by_row(self._nodes, field)[row] = shared[row]
            self._nodes.free_order[:, row] = np.sort(self._nodes.free[row])[::-1]
            self._nodes.version[row] = versions[row]
        return epoch

    def close(self) -> None:
        """Leave the shared memory; its owner removes it."""
        # The views must go before the buffer that they look into.
        del self._epoch, self._version, self._fields
        self._memory.close()
        if self._owner:
            self._memory.unlink()


def _by_row(nodes: NodeArrays, field: str) -> Any:
    """Look into an array whose first axis is the rows."""
    return nodes.amounts.requested.T if field == "requested" else getattr(nodes, field)


def _rounded(size: int) -> int:
    """Round up to whole words, so that every array is aligned."""
    return -(-size // 8) * 8
