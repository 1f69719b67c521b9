"""The demo's nodes and pods."""

from collections.abc import Mapping
from random import Random
from typing import Any, Final

NODES: Final = {"node-a100": "8xa100-40", "node-l40s": "4xl40s", "node-t4": "2xt4"}

PODS: Final[tuple[dict[str, Any], ...]] = (
    *({"units": [4]} for _ in range(6)),
    *({"units": [10]} for _ in range(4)),
    *({"units": [20]} for _ in range(2)),
    {"units": [39]},
    {"units": [44]},
    {"units": [16], "cards": 2},
    {"units": [32], "cards": 4},
    {"units": [3, 5]},
    {"units": [6], "init": 12},
    {"units": [6], "sidecar": 2},
    {"units": [14]},
)
TOO_LARGE: Final[dict[str, Any]] = {"units": [45]}

Shapes = Mapping[str, dict[str, Any]]
"""Pods by name: arguments of `EmbeddedCluster.make_pod_manifest`."""


def shuffle_shapes(seed: int) -> dict[str, dict[str, Any]]:
    """Name the pods, in an order that depends on the seed."""
    order = Random(seed).sample(PODS, len(PODS))  # noqa: S311 - chance, not secrecy
    return {f"pod-{number:02}": shape for number, shape in enumerate(order)}


def count_units(shape: Mapping[str, Any]) -> int:
    return int(max(sum(shape["units"]) + shape.get("sidecar", 0), shape.get("init", 0)))


def count_whole_gpus(shape: Mapping[str, Any]) -> int:
    return int(shape.get("cards", 1))


def describe_request(shape: Mapping[str, Any]) -> str:
    said = " + ".join(f"{units} GiB" for units in shape["units"])
    if "cards" in shape:
        said += f" over {shape['cards']} cards"
    if "init" in shape:
        said += f", init container {shape['init']} GiB"
    if "sidecar" in shape:
        said += f", sidecar {shape['sidecar']} GiB"
    return said
