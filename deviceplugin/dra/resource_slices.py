"""The ResourceSlices of a node: its cards as devices that many claims share by memory; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from allocator.cards import Card
from allocator.names import DOMAIN, DRA_API, DRA_COMPUTE, DRA_DRIVER, DRA_MEMORY
from allocator.quantity import canonical
from allocator.request import WHOLE
from deviceplugin.gpus.api.source import GpuCard

SLICES: Final = f"{DRA_API}/resourceslices"

MOST_DEVICES: Final = 64
"""Most devices with taints in one slice, by the API's rule."""

MOST_CHARS: Final = 64
"""Longest text of an attribute, by the API's rule."""

CORDONED: Final = f"{DOMAIN}/cordoned"
CLOSED: Final = f"{DOMAIN}/closed"
UNHEALTHY: Final = f"{DOMAIN}/unhealthy"
OVERUSED: Final = f"{DOMAIN}/over-used"

_VERSION_PARTS: Final = 3


def format_version(text: str) -> str | None:
    """Write a driver's version as a semantic version; None if it is none: `570.00` is 570.0.0."""
    parts = text.split(".")
    if not all(part.isdecimal() for part in parts) or len(parts) > _VERSION_PARTS:
        return None
    numbers = [str(int(part)) for part in parts]
    return ".".join((numbers + ["0"] * _VERSION_PARTS)[:_VERSION_PARTS])


def order_by_room(cards: Sequence[Card], *, fullest_first: bool = True) -> list[Card]:
    """Order cards so that the first that fits is the one that a card policy would choose.

    kube-scheduler takes the first device of the slice that has room. Fullest first is best fit; emptiest
    first spreads.
    """
    sign = 1 if fullest_first else -1
    return sorted(cards, key=lambda card: (sign * card.free_units, card.index))


def describe_device(
    name: str,
    card: Card,
    gpu: GpuCard,
    unit_mib: int,
    driver: str | None,
    *,
    cordoned: bool = False,
    overused: bool = False,
) -> dict[str, Any]:
    """Describe a card as a device.

    Its capacity is its size whatever is in use: kube-scheduler subtracts what claims have, and a capacity
    must not shrink under them. A claim that says no amount of memory gets the whole card, one that says none
    of compute takes what is left of it, and counts nothing.

    Args:
        cordoned: people keep it free.
        overused: processes of others, or pods beyond their share, leave nothing of it.
    """
    # As the API server writes them.
    whole, unit = canonical(f"{card.size_units * unit_mib}Mi"), canonical(f"{unit_mib}Mi")
    # The API requires that a range has room for one step above its minimum.
    policy: dict[str, Any] = {"default": whole}
    if card.size_units > 1:
        policy["validRange"] = {"min": unit, "max": whole, "step": unit}
    else:
        policy["validValues"] = [whole]
    share = {"min": "0", "max": str(min(WHOLE, card.compute_limit)), "step": "1"}
    attributes: dict[str, Any] = {
        "uuid": {"string": card.uuid[:MOST_CHARS]},
        "model": {"string": card.model[:MOST_CHARS]},
        "index": {"int": card.index},
        "health": {"string": "healthy" if card.healthy else "unhealthy"},
        "type": {"string": "gpu" if gpu.parent is None else "mig"},
    }
    version = format_version(driver) if driver is not None else None
    if version is not None:
        attributes["driverVersion"] = {"version": version}
    if gpu.architecture:
        attributes["architecture"] = {"string": gpu.architecture[:MOST_CHARS]}
    if card.numa is not None:
        attributes["numaNode"] = {"int": card.numa}
    device: dict[str, Any] = {
        "name": name,
        "attributes": attributes,
        "capacity": {
            DRA_MEMORY: {"value": whole, "requestPolicy": policy},
            DRA_COMPUTE: {
                "value": canonical(str(card.compute_limit)),
                "requestPolicy": {"default": "0", "validRange": share},
            },
        },
        "allowMultipleAllocations": True,
    }
    # Where there are several reasons, the one that lasts longest is shown.
    reasons = {
        UNHEALTHY: not card.healthy,
        CORDONED: cordoned,
        CLOSED: card.is_closed,
        OVERUSED: overused,
    }
    key = next((key for key, holds in reasons.items() if holds), None)
    if key is not None:
        device["taints"] = [{"key": key, "effect": "NoSchedule"}]
    return device


def make_slices(
    node: str, devices: Sequence[Mapping[str, Any]], owner: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Make the slices of a node's pool, with devices in the order to try, without the pool's generation."""
    parts = [devices[at : at + MOST_DEVICES] for at in range(0, len(devices), MOST_DEVICES)] or [[]]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{DRA_DRIVER}-{number:02}", "ownerReferences": [dict(owner)]},
            "spec": {
                "driver": DRA_DRIVER,
                "nodeName": node,
                "pool": {"name": node, "resourceSliceCount": len(parts)},
                "devices": list(part),
            },
        }
        for number, part in enumerate(parts)
    ]


def is_shared(spec: Mapping[str, Any]) -> bool:
    """Return True if the API server has kept the field by which claims share a device (Kubernetes 1.36)."""
    return all(device.get("allowMultipleAllocations") for device in spec.get("devices") or ())


def differs(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return True if a slice must be written, judged by the fields that this daemon sets.

    The API server adds defaults, such as the time of a taint, and drops fields whose feature is off.
    """
    return _lacks(_without_pool(wanted), _without_pool(found))


def _without_pool(item: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = item.get("spec") or {}
    devices = [{**device, "taints": list(device.get("taints") or ())} for device in spec.get("devices") or ()]
    pool = spec.get("pool") or {}
    return {
        "driver": spec.get("driver"),
        "nodeName": spec.get("nodeName"),
        "count": pool.get("resourceSliceCount"),
        "devices": devices,
    }


def _lacks(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return True
        return any(_lacks(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(wanted) != len(found):
            return True
        return any(_lacks(one, other) for one, other in zip(wanted, found, strict=True))
    return bool(wanted != found)
