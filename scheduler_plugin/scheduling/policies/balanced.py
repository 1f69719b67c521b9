"""balanced: keep cpu, memory and GPU memory of a node equally used, so that none strands the others."""

import numpy as np

from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.scheduling.policies.fractions import (
    DECIMALS,
    FractionsPolicy,
    compute_mean,
    make_entry,
)
from scheduler_plugin.scheduling.policies.registry import PolicyRequest


class Balanced(FractionsPolicy):
    """Score: population variance of f, `f_c = (used_c + request_c) / capacity_c`, capacity 0 dropped."""

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by the variance of the requested fractions after placing the pod, 0 (even) to 1/4."""
        self._fractions.follow(view)
        spread = self._fractions.after(ask, rows)
        present = self._fractions.present(rows, ask)
        spread -= compute_mean(spread, present)
        spread *= spread
        if present is not None:
            spread *= present
        return np.round(compute_mean(spread, present), DECIMALS)


POLICY = make_entry(Balanced, "balanced", "keep cpu, memory and GPU memory of a node equally used")
