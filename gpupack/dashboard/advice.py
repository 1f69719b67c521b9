"""Why pods wait for cards, and what fits now."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from allocator.errors import AllocatorError
from allocator.names import unit_of_resource
from allocator.request import PodRequest, parse_pod
from gpupack.dashboard.objects import SeenPod
from gpupack.dashboard.records import NodeTile
from scheduler_plugin.cluster.objects import container_mappings

MAX_PENDING: Final = 500
"""Shown on the page; how many there are besides is said."""


class Pending(msgspec.Struct, frozen=True):
    """A pod that waits.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        units: that it asks for, on all cards together; 0 where its request is refused.
        cards: over which they are split.
        unit: MiB of one unit; 0 where it asks for percent.
        since: creation, as the API server writes it.
        gated: by scheduling gates.
        why: in words.
    """

    namespace: str
    name: str
    units: int
    cards: int
    unit: int
    since: str
    gated: bool
    why: str


class Fit(msgspec.Struct, frozen=True):
    """How many pods of a size fit.

    Attributes:
        unit: MiB of one unit.
        units: on one card.
        pods: so many fit now.
        nodes: on so many nodes.
    """

    unit: int
    units: int
    pods: int
    nodes: int


def pending(pods: Iterable[SeenPod]) -> list[Pending]:
    """List the pods that ask for cards and have no node, those that wait longest first."""
    found = [each for each in map(_pending, pods) if each is not None]
    return sorted(found, key=lambda each: (each.since, each.namespace, each.name))


def _pending(pod: SeenPod) -> Pending | None:
    if pod.spec.node_name or pod.status.phase not in {"", "Pending"} or pod.metadata.deletion_timestamp:
        return None
    resource = next(iter(_resources(pod)), None)
    if resource is None:
        return None
    request, refusal = _request(pod, resource)
    if request is None and not refusal:
        return None
    return Pending(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        units=request.effective_units if request is not None else 0,
        cards=request.cards if request is not None else 0,
        unit=0 if request is not None and request.percent else unit_of_resource(resource) or 0,
        since=pod.metadata.creation_timestamp or "",
        gated=bool(pod.spec.scheduling_gates),
        why=refusal or _said(pod),
    )


def _resources(pod: SeenPod) -> list[str]:
    """Resources of ours that its containers name."""
    named: set[str] = set()
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        if container.resources is not None:
            named |= (container.resources.limits or {}).keys() | (container.resources.requests or {}).keys()
    return sorted(name for name in named if unit_of_resource(name) or name.startswith("gpupack.io/gpu-"))


def _request(pod: SeenPod, resource: str) -> tuple[PodRequest | None, str]:
    try:
        request = parse_pod(
            pod.metadata.annotations or {},
            container_mappings(pod.spec.init_containers),
            container_mappings(pod.spec.containers),
            resource,
        )
    except AllocatorError as error:
        return None, str(error)
    return request, ""


def _said(pod: SeenPod) -> str:
    """What kube-scheduler says of it."""
    if pod.spec.scheduling_gates:
        return f"It waits for scheduling gates: {', '.join(gate.name for gate in pod.spec.scheduling_gates)}"
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    return "No scheduler has looked at it yet."


SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192)


def fits(tiles: Sequence[NodeTile]) -> list[Fit]:
    """Say how many pods of usual sizes fit on one card each, and the largest that fits, by unit."""
    found = []
    for unit in sorted({tile.unit for tile in tiles if tile.unit}):
        free = [
            [card.free for card in tile.cards if card.free]
            for tile in tiles
            if tile.unit == unit and tile.open
        ]
        largest = max((max(cards) for cards in free if cards), default=0)
        sizes = sorted({size for size in SIZES if size <= largest} | ({largest} if largest else set()))
        for size in sizes:
            counts = [sum(units // size for units in cards) for cards in free]
            found.append(Fit(unit, size, sum(counts), sum(1 for count in counts if count)))
    return found
