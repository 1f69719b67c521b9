"""GPUs that another device plugin offers on a node: it may give out the very cards that gpupack shares."""

import re
from collections.abc import Mapping
from typing import Any, Final

from allocator.errors import QuantityError
from allocator.quantity import parse_quantity

_GPUS: Final = re.compile(r"nvidia\.com/(?:gpu|mig-[a-z0-9.+-]+)(?:\.shared)?")
"""What NVIDIA's device plugin names: whole cards, MIG instances (mixed strategy), and shares of both."""


def count_foreign_gpus(*resources: Mapping[str, Any] | None) -> dict[str, int]:
    """Count the GPUs that NVIDIA's device plugin offers, by resource; what it offers none of is left out.

    Args:
        resources: the Node's capacity and allocatable; the larger count of each resource is taken. After the
            plugin has gone the kubelet leaves the capacity for five minutes.
    """
    found: dict[str, int] = {}
    for part in resources:
        for name, value in (part or {}).items():
            if not name.startswith("nvidia.com/") or not _GPUS.fullmatch(name):
                continue
            try:
                count = int(parse_quantity(value))
            except (QuantityError, TypeError):
                continue  # the API server keeps no such thing
            if count > 0:
                found[name] = max(count, found.get(name, 0))
    return dict(sorted(found.items()))


def describe_foreign(found: Mapping[str, int]) -> str:
    """Say what was found, and what to do about it."""
    offers = ", ".join(f"{name}: {count}" for name, count in found.items())
    return (
        f"another device plugin offers {offers} here and may give out the same cards: keep it off this node "
        "(GPU Operator: label nvidia.com/gpu.deploy.device-plugin=false), "
        "or take the label gpupack.io/node away"
    )
