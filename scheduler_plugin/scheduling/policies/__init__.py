"""Node policies: one small pure module each, found by name through the registry.

The extender, the simulator and Python users call the same code. `make_policy(name)` builds a policy, and its
`score` ranks candidate rows of a `ClusterView`, lower is better.
"""

from importlib import import_module
from typing import Final

from scheduler_plugin.scheduling.policies.registry import NODE_POLICIES, list_names, make_policy

_MODULES: Final = (
    "balanced",
    "best_fit",
    "fragmentation",
    "least_requested",
    "weighted_balance",
)
"""Modules of the own policies, in this folder; each has a `POLICY`."""

NODE_POLICIES.register(*(import_module(f"{__name__}.{name}").POLICY for name in _MODULES))

__all__ = ["NODE_POLICIES", "list_names", "make_policy"]
