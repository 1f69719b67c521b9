"""Card policies: one small pure module each, found by name through the registry."""

from typing import Final

from allocator.errors import PolicyError
from allocator.policies import fragmentation, least_used, most_used
from allocator.policies.interface import CardPolicy, lacks
from allocator.registry import Registry

CARD_POLICIES: Final[Registry[CardPolicy]] = Registry(
    "card policy", "gpupack.card_policies", PolicyError, lacks
)
CARD_POLICIES.register(
    fragmentation.POLICY,
    least_used.POLICY,
    most_used.POLICY,
)

__all__ = ["CARD_POLICIES", "CardPolicy"]
