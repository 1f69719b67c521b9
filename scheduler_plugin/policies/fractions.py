"""The fractions f that the plain scores of algorithm 3 are made of."""

import numpy as np

from scheduler_plugin.policies.registry import Ask, ClusterView, FloatArray, RowArray

# Sums of the same fractions in another order differ in the last bit; scores closer than this are ties.
DECIMALS = 12


def fractions(view: ClusterView, ask: Ask, rows: RowArray) -> tuple[FloatArray, FloatArray]:
    """Compute `f_c = (used_c + request_c) / capacity_c` for cpu, memory and gpu-memory.

    Args:
        view: The cluster now.
        ask: What the pod asks for.
        rows: intp[m], candidate rows.

    Returns:
        f: float64[3, m], 0 where the class is dropped; weight: float64[3, m], 0 where the node's capacity of
        the class is 0 (the class is dropped there), else 1.
    """
    capacity = np.stack((view.cpu_capacity[rows], view.memory_capacity[rows], view.gpu_capacity[rows]))
    used = np.stack((view.cpu_used[rows], view.memory_used[rows], view.gpu_used[rows]))
    request = np.array(((ask.cpu_milli,), (ask.memory_bytes,), (ask.gpu_units,)), dtype=np.int64)
    present = capacity > 0
    f = np.zeros(capacity.shape, dtype=np.float64)
    np.divide(used + request, capacity, out=f, where=present)
    return f, present.astype(np.float64)


def mean(f: FloatArray, weight: FloatArray) -> FloatArray:
    """Mean of f over the classes a node has: float64[m], 0 for a node that has none."""
    result: FloatArray = f.sum(axis=0) / np.maximum(weight.sum(axis=0), 1.0)
    return result
