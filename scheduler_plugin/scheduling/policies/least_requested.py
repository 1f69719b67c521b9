"""least-requested: spread pods over the emptiest nodes."""

import numpy as np

from allocator.registry import Entry, Parameters
from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.scheduling.policies.fractions import DECIMALS, Fractions, mean
from scheduler_plugin.scheduling.policies.registry import Ask


class LeastRequested:
    """Score: `mean_c(f_c)`, `f_c = (used_c + request_c) / capacity_c`, classes of capacity 0 dropped."""

    epoch = 0
    by_row = True
    ranks_plain_pods = True

    def __init__(self) -> None:
        self._fractions = Fractions()

    def score(self, view: ClusterView, ask: Ask, rows: RowArray) -> FloatArray:
        """Score rows by the mean requested fraction after placing the pod, 0 (empty) to 1 (full)."""
        self._fractions.follow(view)
        return np.round(mean(self._fractions.after(ask, rows), self._fractions.present(rows, ask)), DECIMALS)


def make(_parameters: Parameters) -> LeastRequested:
    """Build the policy."""
    return LeastRequested()


POLICY = Entry("least-requested", make, "spread pods over the emptiest nodes")
