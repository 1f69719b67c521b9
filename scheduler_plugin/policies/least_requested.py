"""least-requested: spread pods over the emptiest nodes."""

import numpy as np

from scheduler_plugin.policies.fractions import DECIMALS, fractions, mean
from scheduler_plugin.policies.registry import (
    Ask,
    ClusterView,
    FloatArray,
    Parameters,
    RowArray,
    no_parameters,
    register,
)

NAME = "least-requested"


class LeastRequested:
    """Score: `mean_c(f_c)`, `f_c = (used_c + request_c) / capacity_c`, classes of capacity 0 dropped."""

    epoch = 0

    def score(self, view: ClusterView, ask: Ask, rows: RowArray) -> FloatArray:
        """Score rows by the mean requested fraction after placing the pod, 0 (empty) to 1 (full)."""
        return np.round(mean(*fractions(view, ask, rows)), DECIMALS)


def make(parameters: Parameters) -> LeastRequested:
    """Build the policy.

    Raises:
        PolicyError: parameters were given; it takes none.
    """
    no_parameters(NAME, parameters)
    return LeastRequested()


register(NAME, make)
