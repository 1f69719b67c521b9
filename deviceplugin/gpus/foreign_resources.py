"""GPUs that another device plugin offers on a node: it may give out the very cards that gpupack shares."""

import re
from collections.abc import Mapping
from typing import Any

from allocator.errors import QuantityError
from allocator.quantity import parse_quantity
from deviceplugin.gpus.sources import list_vendors


def count_foreign_gpus(*resources: Mapping[str, Any] | None) -> dict[str, int]:
    """Count the GPUs that vendors' own device plugins offer, by resource.

    Args:
        resources: The Node's capacity and allocatable. The larger count of each resource is taken: after the
            plugin has gone the kubelet leaves the capacity for five minutes.
    """
    vendors = list_vendors()
    prefixes = tuple([f"{vendor.domain}/" for vendor in vendors])
    counts: dict[str, int] = {}
    for part in resources:
        for name, value in (part or {}).items():
            if not name.startswith(prefixes):
                continue
            if not any(re.fullmatch(vendor.foreign_resources, name) for vendor in vendors):
                continue
            try:
                count = int(parse_quantity(value))
            except (QuantityError, TypeError):
                continue  # the API server keeps no such thing
            if count > 0:
                counts[name] = max(count, counts.get(name, 0))
    return dict(sorted(counts.items()))


def describe_foreign(counts: Mapping[str, int]) -> str:
    """Say what was found, and what to do about it."""
    offers = ", ".join(f"{name}: {count}" for name, count in counts.items())
    domains = {name.partition("/")[0] for name in counts}
    advice = "; ".join(
        vendor.foreign_advice
        for vendor in list_vendors()
        if vendor.domain in domains and vendor.foreign_advice
    )
    way = f" ({advice})" if advice else ""
    return (
        f"another device plugin offers {offers} here and may give out the same cards: "
        f"keep it off this node{way}, or take the label gpupack.io/node away"
    )
