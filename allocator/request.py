"""What a pod asks for: read from its containers and annotations, once, with errors made for people.

The messages become scheduler events, and an event that differs between attempts re-queues the pod at once.
So a message depends on the pod alone, and the first mistake in a fixed order is the one reported:
containers in the order of the kubelet, then annotations.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from allocator.errors import QuantityError, RequestError, shown
from allocator.names import (
    POD_CARD_POLICY,
    POD_CARDS,
    POD_GPU_MODEL,
    POD_GPU_UUID,
    POD_NODE_POLICY,
)
from allocator.policies import CARD_POLICIES
from allocator.quantity import parse_integer
from allocator.selector import ANY_CARD, Selector

Kind = Literal["init", "sidecar", "main"]

MAX_CARDS: Final = 64
MAX_UNITS: Final = 1 << 17
"""Largest request of a container. No node can offer as many: the kubelet takes a list of device IDs of 4 MiB,
which ends below 100 000. Less than what `1Mi` stands for, so that no amount of bytes is taken for units."""

_CARDS: Final = re.compile(r"[1-9][0-9]?")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container that asks: its name, units (1 or more, the total over its cards) and kind."""

    name: str
    units: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Demand:
    """One choice of cards: `units_per_card` on each of `cards` different cards, for these containers."""

    containers: tuple[str, ...]
    units_per_card: int
    cards: int


@dataclass(frozen=True)
class PodRequest:
    """What a pod asks for.

    Attributes:
        containers: those that ask, in the kubelet's order: init containers with sidecars, then mains.
        cards: number of cards over which each container's units are split evenly.
        selector: the cards that the pod accepts.
        node_policy: the pod's own node policy, None for the cluster's. Any text: only the scheduler, which
            ranks nodes, knows which there are.
        card_policy: the pod's own card policy, None for the cluster's.

    Invariant (kept by `parse_pod`): every container's units divide by `cards`, and `cards` is 1 when an
    ordinary init container asks.
    """

    containers: tuple[ContainerRequest, ...]
    cards: int = 1
    selector: Selector = ANY_CARD
    node_policy: str | None = None
    card_policy: str | None = None

    @cached_property
    def shared(self) -> bool:
        """Whether all containers must share one card, because an ordinary init container asks.

        The kubelet hands that container's IDs on to the others at random.
        """
        return any(container.kind == "init" for container in self.containers)

    @cached_property
    def effective_units(self) -> int:
        """Units the pod needs at its peak, by the rule of Kubernetes.

        The larger of every ordinary init container plus the sidecars started before it, and all main
        containers plus all sidecars.
        """
        sidecars = mains = peak = 0
        for container in self.containers:
            if container.kind == "init":
                peak = max(peak, container.units + sidecars)
            elif container.kind == "sidecar":
                sidecars += container.units
            else:
                mains += container.units
        return max(peak, mains + sidecars)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """The choices of cards to make, in order."""
        if self.shared:
            return (Demand(tuple(c.name for c in self.containers), self.effective_units, 1),)
        return tuple(Demand((c.name,), c.units // self.cards, self.cards) for c in self.containers)


def parse_pod(
    metadata_annotations: Mapping[str, str],
    init_containers: Sequence[Mapping[str, Any]],
    containers: Sequence[Mapping[str, Any]],
    resource: str,
) -> PodRequest | None:
    """Read a pod's request for `resource`.

    Args:
        metadata_annotations: the pod's annotations.
        init_containers: `spec.initContainers` as mappings with `name`, `restartPolicy`, `resources`.
        containers: `spec.containers`, likewise.
        resource: name of the extended resource.

    Returns:
        The request, or None when no container asks (the annotations are not looked at then).

    Raises:
        RequestError: the first mistake, in one line that names the container or annotation, the value and
            what is allowed.
    """
    asking = _asking(init_containers, containers, resource)
    if not asking:
        return None
    cards = _cards(metadata_annotations, asking)
    return PodRequest(
        containers=asking,
        cards=cards,
        node_policy=metadata_annotations.get(POD_NODE_POLICY),
        card_policy=_card_policy(metadata_annotations),
        selector=Selector.parse(
            metadata_annotations.get(POD_GPU_MODEL), metadata_annotations.get(POD_GPU_UUID)
        ),
    )


def _asking(
    init_containers: Sequence[Mapping[str, Any]], containers: Sequence[Mapping[str, Any]], resource: str
) -> tuple[ContainerRequest, ...]:
    kinds: list[tuple[Mapping[str, Any], Kind]] = [
        (container, "sidecar" if container.get("restartPolicy") == "Always" else "init")
        for container in init_containers
    ]
    kinds += [(container, "main") for container in containers]
    asking = []
    for container, kind in kinds:
        units = _units(container, resource)
        if units:
            asking.append(ContainerRequest(str(container.get("name", "")), units, kind))
    return tuple(asking)


def _units(container: Mapping[str, Any], resource: str) -> int:
    """Read one container's units, 0 when it does not ask."""
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get(resource)
    request = (resources.get("requests") or {}).get(resource)
    if limit is None and request is None:
        return 0
    name = shown(container.get("name", ""))
    units = None if limit is None else _quantity(name, "limit", resource, limit)
    # Kubernetes fills in a request that is left out, and allows no other than the limit.
    asked = units if request is None else _quantity(name, "request", resource, request)
    if units != asked or units is None:
        raise RequestError(
            f"container {name} requests {resource}: {shown(request)} with "
            f"{'no limit' if limit is None else f'limit {shown(limit)}'}: "
            "allowed is a request equal to the limit"
        )
    return units


def _quantity(container: str, field: str, resource: str, value: str | int) -> int:
    try:
        units = parse_integer(value)
    except QuantityError:
        units = -1
    if not 0 <= units <= MAX_UNITS:
        raise RequestError(
            f"container {container} has {field} {resource}: {shown(value)}: "
            f"allowed is a whole number of units from 0 to {MAX_UNITS}, without a suffix such as Gi"
        )
    return units


def _cards(annotations: Mapping[str, str], asking: tuple[ContainerRequest, ...]) -> int:
    text = annotations.get(POD_CARDS)
    if text is None:
        return 1
    cards = int(text) if _CARDS.fullmatch(text) else 0
    if not 1 <= cards <= MAX_CARDS:
        raise RequestError(
            f"annotation {POD_CARDS} is {shown(text)}: allowed is a whole number from 1 to {MAX_CARDS}"
        )
    for container in asking:
        if cards > 1 and container.kind == "init":
            raise RequestError(
                f"annotation {POD_CARDS} is {shown(text)}: allowed is 1 where an init container, here "
                f"{shown(container.name)}, asks for GPU memory and is not a sidecar"
            )
        if container.units % cards:
            raise RequestError(
                f"annotation {POD_CARDS} is {shown(text)}, container {shown(container.name)} asks for "
                f"{container.units} units: allowed is a multiple of the number of cards"
            )
    return cards


def _card_policy(annotations: Mapping[str, str]) -> str | None:
    name = annotations.get(POD_CARD_POLICY)
    if name is not None and name not in CARD_POLICIES:
        raise unknown_policy(POD_CARD_POLICY, name, CARD_POLICIES.names())
    return name


def unknown_policy(annotation: str, name: str, allowed: Sequence[str]) -> RequestError:
    """What is wrong with an annotation that names a policy which does not exist."""
    return RequestError(f"annotation {annotation} is {shown(name)}: allowed are {', '.join(allowed)}")
