"""A version of a node that means the same in every process: what the scores of its row follow from. Pure."""

from itertools import chain
from zlib import crc32

import numpy as np

from scheduler_plugin.cache.charges import AssumedPod
from scheduler_plugin.cache.node_arrays import NodeArrays


def compute_node_version(nodes: NodeArrays, row: int, without: AssumedPod | None = None) -> int:
    """Compute a number that is equal for equal contents of a row: cards, cpu and memory, capacity and use.

    A counter would not do: each process counts the changes that it has seen itself.

    Args:
        nodes: The arrays.
        row: Row of the node.
        without: A pod that is assumed there, and does not count.
    """
    back = without.pod if without is not None else None
    cards = int(nodes.cards[row])
    host = np.array(
        [
            nodes.cpu_capacity[row],
            nodes.cpu_used[row] - (back.cpu_milli if back is not None else 0),
            nodes.memory_capacity[row],
            nodes.memory_used[row] - (back.memory_bytes if back is not None else 0),
            nodes.usable[row],
        ],
        dtype=np.int64,
    )
    free = nodes.free[row, :cards].astype(np.int64)
    if without is not None and without.assigned is not None:
        for uuid, units in chain.from_iterable(without.assigned.values()):
            if uuid in nodes.uuids[row]:
                free[nodes.uuids[row].index(uuid)] += units
    return crc32(
        free.tobytes(), crc32(nodes.size[row, :cards].astype(np.int64).tobytes(), crc32(host.tobytes()))
    )
