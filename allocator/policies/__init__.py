"""Card policies: one small pure module each, found by name through the registry."""

from importlib import import_module
from typing import Final

from allocator.errors import CardPolicyError
from allocator.installed import installed
from allocator.policies.interface import CardPolicy, lacks
from allocator.registry import Registry

_MODULES: Final = (
    "fragmentation",
    "least_used",
    "most_used",
)
"""Modules of gpupack's own policies, in this folder; each has a `POLICY`."""

CARD_POLICIES: Final[Registry[CardPolicy]] = Registry(
    "card policy", "gpupack.card_policies", CardPolicyError, lacks, installed
)
CARD_POLICIES.register(*(import_module(f"{__name__}.{name}").POLICY for name in _MODULES))

__all__ = ["CARD_POLICIES", "CardPolicy"]
