"""From scores to an order: ties by node name, and the extender protocol's integers 0..10 by rank."""

from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import FloatArray, IntArray, LongArray, RowArray

MAX_SCORE: Final = 10
"""Highest score of the extender protocol."""


def rank_best(scores: FloatArray, name_ranks: LongArray, limit: int) -> RowArray:
    """Find the first candidates by (score, name), in order.

    Args:
        scores: float64[m], lower is better; inf is left out.
        name_ranks: int64[m], order of the candidates' names, all distinct.

    Returns:
        intp[k], positions in `scores`, best first, k <= limit.
    """
    if limit == 1:
        return _rank_best_one(scores, name_ranks)
    last = np.partition(scores, limit - 1)[limit - 1] if len(scores) > limit else np.inf
    positions = np.flatnonzero(scores <= last if last < np.inf else scores < np.inf)
    if positions.size > limit:
        kept = scores[positions]
        sure = positions[kept < last]
        ties = positions[kept == last]
        wanted = limit - sure.size
        ties = ties[np.argpartition(name_ranks[ties], wanted - 1)[:wanted]]
        positions = np.concatenate((sure, ties))
    order = np.lexsort((name_ranks[positions], scores[positions]))
    return positions[order]


def _rank_best_one(scores: FloatArray, name_ranks: LongArray) -> RowArray:
    """Find what `best` finds with a limit of 1: our manifests ask for just that, once a pod."""
    if not len(scores):
        return np.zeros(0, dtype=np.intp)
    lowest = scores.min()
    if not lowest < np.inf:
        return np.zeros(0, dtype=np.intp)
    ties: RowArray = (scores == lowest).nonzero()[0]
    first = int(name_ranks[ties].argmin())
    return ties[first : first + 1]


def convert_to_protocol(scores: FloatArray, name_ranks: LongArray) -> IntArray:
    """Map scores to the protocol, int32[m]: 10 for the best, one less for each next one, never below 0.

    kube-scheduler breaks equal scores at random, so the first eleven differ; raw scores rounded to 0..10
    would lose the order.

    Args:
        scores: float64[m], lower is better; inf gets 0.
        name_ranks: int64[m], all distinct.
    """
    result: IntArray = np.zeros(len(scores), dtype=np.int32)
    first = rank_best(scores, name_ranks, MAX_SCORE)
    result[first] = MAX_SCORE - np.arange(len(first), dtype=np.int32)
    return result
