"""least-requested: spread pods over the emptiest nodes."""

from typing import Final

import numpy as np

from allocator.registry import Entry, Parameters
from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.scheduling.policies.fractions import (
    DECIMALS,
    FractionsPolicy,
    compute_mean,
    parse_resources,
)
from scheduler_plugin.scheduling.policies.registry import PolicyRequest

NAME: Final = "least-requested"


class LeastRequested(FractionsPolicy):
    """Score: `mean_c(f_c)`, `f_c = (used_c + request_c) / capacity_c`, classes of capacity 0 dropped."""

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by the mean requested fraction after placing the pod, 0 (empty) to 1 (full)."""
        self._fractions.follow(view)
        return np.round(
            compute_mean(self._fractions.after(ask, rows), self._fractions.present(rows, ask)), DECIMALS
        )


def make(parameters: Parameters) -> LeastRequested:
    """Build the policy.

    Args:
        parameters: `resources`, further classes.

    Raises:
        PolicyError: a name that no further resource can have.
    """
    return LeastRequested(parse_resources(NAME, parameters))


POLICY = Entry(NAME, make, "spread pods over the emptiest nodes", ("resources",))
