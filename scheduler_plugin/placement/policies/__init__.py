"""Node policies: one small pure module each, found by name through the registry.

The extender, the simulator and Python users call the same code: `make(name)` builds a policy, and its
`score` ranks candidate rows of a `ClusterView`, lower is better.
"""

from scheduler_plugin.placement.policies import (
    balanced,
    best_fit,
    fragmentation,
    least_requested,
    weighted_balance,
)
from scheduler_plugin.placement.policies.registry import NODE_POLICIES, make, names

NODE_POLICIES.register(
    balanced.POLICY,
    best_fit.POLICY,
    fragmentation.POLICY,
    least_requested.POLICY,
    weighted_balance.POLICY,
)

__all__ = ["NODE_POLICIES", "make", "names"]
