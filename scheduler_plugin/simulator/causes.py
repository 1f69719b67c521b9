"""Causes of fragmentation: the published measure F, split by what is missing."""

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from scheduler_plugin.simulator.cluster import SimulatedCluster

if TYPE_CHECKING:
    from scheduler_plugin.cache.arrays import BoolArray, FloatArray

NO_GPU_ASKED: Final = "pods that ask for no GPU"
WRONG_MODEL: Final = "another model is asked for"
TOO_LITTLE: Final = "no card, or too few, with enough free"
NO_CPU: Final = "cpu is used up"
NO_MEMORY: Final = "host memory is used up"
RESTS: Final = "rests on other cards of a node that fits"
USABLE: Final = "usable"


def split_free_gpu(cluster: SimulatedCluster, workload: TypicalWorkload) -> dict[str, float]:
    """Split the free GPU, as a typical pod sees it.

    Args:
        workload: Whose shapes look at the nodes, each weighing by its popularity.

    Returns:
        Percent of the cluster's GPUs by cause and USABLE; the sum is the free share. All but the usable
        part is F of docs/policies/fragmentation.md.
    """
    arrays = cluster.arrays
    free = arrays.free.astype(np.float64)
    node_free: FloatArray = free.sum(axis=1)
    cpu = arrays.cpu_capacity - arrays.cpu_used
    memory = arrays.memory_capacity - arrays.memory_used
    shares = workload.shares()
    amounts = dict.fromkeys((NO_GPU_ASKED, WRONG_MODEL, TOO_LITTLE, NO_CPU, NO_MEMORY, RESTS, USABLE), 0.0)
    without = 1.0 - sum(share.popularity for share in shares)
    amounts[NO_GPU_ASKED] = without * float(node_free.sum())
    by_cards: dict[tuple[int, int], tuple[BoolArray, FloatArray]] = {}
    for share in shares:
        shape = share.shape
        key = (shape.units, shape.cards)
        if key not in by_cards:
            fits = free >= shape.units
            by_cards[key] = (
                np.count_nonzero(fits, axis=1) >= shape.cards,
                np.where(fits, 0.0, free).sum(axis=1),
            )
        enough, rests = by_cards[key]
        left: BoolArray = np.ones(len(node_free), dtype=np.bool_)
        for cause, holds in (
            (WRONG_MODEL, cluster.mask_admitted(shape.selector)),
            (TOO_LITTLE, enough),
            (NO_CPU, cpu >= shape.cpu_milli),
            (NO_MEMORY, memory >= share.memory_bytes),
        ):
            amounts[cause] += share.popularity * float(node_free[left & ~holds].sum())
            left &= holds
        amounts[RESTS] += share.popularity * float(rests[left].sum())
        amounts[USABLE] += share.popularity * float((node_free - rests)[left].sum())
    whole = cluster.units
    return {cause: 100.0 * amount / whole for cause, amount in amounts.items()}


def sum_fragmented(split: dict[str, float]) -> float:
    """F in percent of the cluster's GPUs: everything that is not usable."""
    return sum(amount for cause, amount in split.items() if cause != USABLE)
