"""least-requested: spread pods over the emptiest nodes."""

import numpy as np

from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.scheduling.policies.fractions import (
    DECIMALS,
    FractionsPolicy,
    compute_mean,
    make_entry,
)
from scheduler_plugin.scheduling.policies.registry import PolicyRequest


class LeastRequested(FractionsPolicy):
    """Score: `mean_c(f_c)`, `f_c = (used_c + request_c) / capacity_c`, classes of capacity 0 dropped."""

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by the mean requested fraction after placing the pod, 0 (empty) to 1 (full)."""
        self._fractions.follow(view)
        return np.round(
            compute_mean(self._fractions.after(ask, rows), self._fractions.present(rows, ask)), DECIMALS
        )


POLICY = make_entry(LeastRequested, "least-requested", "spread pods over the emptiest nodes")
