"""Reads what a pod asks for from its containers and annotations, once, with errors made for people.

The messages become scheduler events, and an event that differs between attempts re-queues the pod at once.
So a message depends on the pod alone. The first mistake in a fixed order is reported: containers in the order
of the kubelet, then annotations.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

from allocator.card_rules import CardRules
from allocator.errors import QuantityError, RequestError, shown
from allocator.names import (
    COMPUTE_RESOURCE,
    PERCENT_RESOURCE,
    POD_CARD_POLICY,
    POD_CARDS,
    POD_CONTAINERS,
    POD_GPU_MODEL,
    POD_GPU_UUID,
    POD_MIXED_MODELS,
    POD_NODE_POLICY,
)
from allocator.policies import CARD_POLICIES
from allocator.quantity import parse_integer
from allocator.registry import Registry
from allocator.selector import ANY_CARD, Selector

Kind = Literal["init", "sidecar", "main"]

ContainerPlaces = Literal["", "same-card", "apart"]
"""Values of the annotation that says where a pod's containers go; empty: where the policy likes each best."""

MAX_POD_CARDS: Final = 64
MAX_UNITS: Final = 1 << 17
"""Largest request of a container, and largest card. No node can offer as many: the kubelet takes a list of
device IDs of 4 MiB, which ends below 100 000. Less than what `1Mi` stands for, so that no amount of bytes is
taken for units."""

WHOLE: Final = 100
"""Percent of a whole card."""

_CARDS: Final = re.compile(r"[1-9][0-9]?")

Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A container that asks: its name, units (1 or more, over all its cards) and kind.

    In a `PodRequest` in percent, percent of a card stand in place of units.

    Attributes:
        compute: percent of the compute of each of its cards; 0 if it takes what is left.
    """

    name: str
    units: int
    kind: Kind
    compute: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """An amount on each of several different cards, for one or more containers.

    Attributes:
        per_card: units on each card; with `percent`, percent of each card.
        percent: the request is for shares of cards, whatever their size.
        least: with `percent`, the smallest share of a container on a card.
        shares: with `percent`, the share of each container on a card, each rounded down by itself. Set where
            several containers have shares of their own on the same card.
        compute: percent of each card's compute; 0 if none is asked for.
    """

    containers: tuple[str, ...]
    per_card: int
    cards: int
    percent: bool = False
    least: int = 0
    shares: tuple[int, ...] = ()
    compute: int = 0

    def units_on(self, size: int) -> int:
        """Compute the units that it takes of a card of `size` units.

        A share is rounded down, so that shares of 100 percent together always fit. Where a container's share
        is less than one unit this is more than the card has: it cannot be served there.
        """
        if not self.percent:
            return self.per_card
        if self.least * size < WHOLE:
            return size + 1
        if self.shares:
            return sum(share * size // WHOLE for share in self.shares)
        return self.per_card * size // WHOLE

    @property
    def asked(self) -> int | Callable[[int], int]:
        """Units to ask `allocator.policy.choose` for, by the card's size where they depend on it."""
        return self.units_on if self.percent else self.per_card

    @property
    def need(self) -> tuple[int | Callable[[int], int], int, int]:
        """What `allocator.place.choose_each` is asked for: units, cards and compute."""
        return self.asked, self.cards, self.compute


@dataclass(frozen=True)
class PodRequest:
    """What a pod asks for of cards.

    Attributes:
        containers: those that ask, in the kubelet's order: init containers with sidecars, then mains.
        cards: number of cards over which each container's units are split evenly.
        node_policy: the pod's own node policy, None for the cluster's. Any text: only the scheduler, which
            ranks nodes, knows which there are.
        percent: the containers ask for percent of a card, whatever its size, in place of units.
        mixed_models: the cards of one container may be of several models.
        claimed: the status of the waiting pod names its claim, and goes on doing so. Only nodes that serve
            claims run it.
    Invariant (kept by `parse_pod`): every container's units divide by `cards`, and `cards` is 1 when an
    ordinary init container asks. No card is asked for more than 100 percent.
    """

    containers: tuple[ContainerRequest, ...]
    cards: int = 1
    selector: Selector = ANY_CARD
    node_policy: str | None = None
    card_policy: str | None = None
    percent: bool = False
    mixed_models: bool = False
    places: ContainerPlaces = ""
    claimed: bool = False

    @cached_property
    def rules(self) -> CardRules:
        return CardRules(
            same_model=self.cards > 1 and not self.mixed_models,
            apart=self.places == "apart" and len(self.containers) > 1,
        )

    @cached_property
    def shared(self) -> bool:
        """Whether all containers must share one card, because an ordinary init container asks.

        The kubelet hands that container's IDs on to the others at random.
        """
        return any(container.kind == "init" for container in self.containers)

    @cached_property
    def same_cards(self) -> bool:
        """Whether all containers get the same cards, for whatever reason."""
        return self.shared or (self.places == "same-card" and len(self.containers) > 1)

    @cached_property
    def asks_compute(self) -> bool:
        return any(container.compute for container in self.containers)

    @cached_property
    def effective_units(self) -> int:
        """Units (or percent) the pod needs at its peak, by the rule of Kubernetes."""
        return _find_peak((container.kind, container.units) for container in self.containers)

    @property
    def effective_compute(self) -> int:
        """Percent of compute that Kubernetes counts for the pod: once, however many cards it gets."""
        return _find_peak((container.kind, container.compute) for container in self.containers)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """The choices of cards to make, in order."""
        if self.shared:
            least = min(c.units for c in self.containers) if self.percent else 0
            names = tuple(c.name for c in self.containers)
            compute = self.effective_compute
            return (Demand(names, self.effective_units, 1, self.percent, least, compute=compute),)
        if self.same_cards:
            shares = tuple(c.units // self.cards for c in self.containers)
            names = tuple(c.name for c in self.containers)
            compute = sum(c.compute for c in self.containers)
            if not self.percent:
                return (Demand(names, sum(shares), self.cards, compute=compute),)
            return (
                Demand(names, sum(shares), self.cards, self.percent, min(shares), shares, compute=compute),
            )
        return tuple(
            Demand((c.name,), each, self.cards, self.percent, each if self.percent else 0, compute=c.compute)
            for c in self.containers
            for each in (c.units // self.cards,)
        )

    def compute_units(self, size: int) -> int:
        """Compute the units of GPU memory over all its cards, each of which has `size` units."""
        return sum(demand.units_on(size) * demand.cards for demand in self.demands)

    def make_hardness_key(self, size: int) -> tuple[int, int, int]:
        """Make the sort key of pods on cards of `size` units, the hardest to place first.

        That is the one with most units on a card, then most compute of a card, then most units in all.
        """
        units = max(demand.units_on(size) for demand in self.demands)
        compute = max(demand.compute for demand in self.demands)
        return -units, -compute, -self.compute_units(size)

    def demand_of(self, container: str) -> Demand:
        """Find the demand that a container which asks belongs to."""
        return next(demand for demand in self.demands if container in demand.containers)

    def units_of(self, container: ContainerRequest, size: int) -> int:
        """Compute the units that one container has of each of its cards, of `size` units."""
        each = container.units // self.cards
        return each * size // WHOLE if self.percent else each

    def charge_compute(self, chosen: Iterable[Iterable[Named]]) -> dict[Named, int]:
        """Add up the compute that the pod costs on each card, in percent; empty if it asks for none.

        Args:
            chosen: The cards of each demand, however they are named.
        """
        charge: dict[Named, int] = {}
        for demand, cards in zip(self.demands, chosen, strict=True):
            for card in cards if demand.compute else ():
                charge[card] = charge.get(card, 0) + demand.compute
        return charge


def _find_peak(amounts: Iterable[tuple[Kind, int]]) -> int:
    """Find what containers need together at most.

    The larger of every ordinary init container plus the sidecars started before it, and all main containers
    plus all sidecars.
    """
    sidecars = mains = peak = 0
    for kind, amount in amounts:
        if kind == "init":
            peak = max(peak, amount + sidecars)
        elif kind == "sidecar":
            sidecars += amount
        else:
            mains += amount
    return max(peak, mains + sidecars)


def parse_pod(
    metadata_annotations: Mapping[str, str],
    init_containers: Sequence[Mapping[str, Any]],
    containers: Sequence[Mapping[str, Any]],
    resource: str,
    *,
    reads_compute: bool = True,
) -> PodRequest | None:
    """Read a pod's request for `resource`, or for percent of cards, and for compute; None if it has none.

    Args:
        init_containers: `spec.initContainers` as mappings with `name`, `restartPolicy`, `resources`.
        reads_compute: False to read the request as if no container asked for compute.

    Raises:
        RequestError: the first mistake, in one line that names the container or annotation, the value and
            what is allowed.
    """
    asking = _asking(init_containers, containers, resource)
    shares = _asking(init_containers, containers, PERCENT_RESOURCE)
    if asking and shares:
        raise RequestError(
            f"container {shown(asking[0].name)} asks for {resource}, container {shown(shares[0].name)} for "
            f"{PERCENT_RESOURCE}; allowed: one of the two in a pod"
        )
    compute = _asking(init_containers, containers, COMPUTE_RESOURCE) if reads_compute else ()
    asking = _with_compute(asking or shares, compute, resource)
    if not asking:
        return None
    request = PodRequest(
        containers=asking,
        cards=_cards(metadata_annotations, asking),
        percent=bool(shares),
        node_policy=metadata_annotations.get(POD_NODE_POLICY),
        card_policy=_card_policy(metadata_annotations),
        selector=Selector.parse(
            metadata_annotations.get(POD_GPU_MODEL), metadata_annotations.get(POD_GPU_UUID)
        ),
    )
    request = replace(
        request,
        mixed_models=_mixed_models(metadata_annotations),
        places=_places(metadata_annotations, request.containers),
    )
    if request.percent:
        _check_percent(request)
    return request


def parse_admitted(
    metadata_annotations: Mapping[str, str],
    init_containers: Sequence[Mapping[str, Any]],
    containers: Sequence[Mapping[str, Any]],
    resource: str,
) -> tuple[PodRequest | None, RequestError | None]:
    """Read a pod's request as a kubelet counts it, which ignores annotations, and the first mistake in it.

    Node and scheduler must read it alike. A card policy that is not known is left out: its package may be
    installed on one of the two only. The pod has its cards as its other annotations say. A pod with any other
    mistake is taken as if it had no annotations. Compute that cannot be read is none.
    """
    problem: RequestError | None = None
    others = {key: value for key, value in metadata_annotations.items() if key != POD_CARD_POLICY}
    for annotations in (metadata_annotations, others, {}):
        for reads_compute in (True, False):
            try:
                request = parse_pod(
                    annotations, init_containers, containers, resource, reads_compute=reads_compute
                )
            except RequestError as error:
                problem = problem or error
            else:
                return request, problem
    return None, problem


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


def _with_compute(
    asking: tuple[ContainerRequest, ...], shares: tuple[ContainerRequest, ...], resource: str
) -> tuple[ContainerRequest, ...]:
    """Join what containers ask of memory with what they ask of compute."""
    if not shares:
        return asking
    compute = {container.name: container.units for container in shares}
    alone = sorted(compute.keys() - {container.name for container in asking})
    if alone:
        raise RequestError(
            f"container {shown(alone[0])} asks for {COMPUTE_RESOURCE}: {compute[alone[0]]} alone; "
            f"allowed: beside {resource} or {PERCENT_RESOURCE}"
        )
    return tuple(
        replace(container, compute=compute[container.name]) if container.name in compute else container
        for container in asking
    )


def _units(container: Mapping[str, Any], resource: str) -> int:
    """Read one container's units, 0 when it does not ask."""
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get(resource)
    request = (resources.get("requests") or {}).get(resource)
    if limit is None and request is None:
        return 0
    name = container.get("name", "")
    units = None if limit is None else _quantity(name, "limit", resource, limit)
    # Kubernetes fills in a request that is left out, and allows no other than the limit.
    asked = units if request is None else _quantity(name, "request", resource, request)
    if units != asked or units is None:
        raise RequestError(
            f"container {shown(name)} requests {resource}: {shown(request)} with "
            f"{'no limit' if limit is None else f'limit {shown(limit)}'}; "
            "allowed: a request equal to the limit"
        )
    return units


def _quantity(container: str, field: str, resource: str, value: str | int) -> int:
    try:
        units = parse_integer(value)
    except QuantityError:
        units = -1
    most, what = (WHOLE, "percent") if resource == COMPUTE_RESOURCE else (MAX_UNITS, "units")
    if not 0 <= units <= most:
        raise RequestError(
            f"container {shown(container)} has {field} {resource}: {shown(value)}; "
            f"allowed: a whole number of {what} from 0 to {most}, without a suffix such as Gi"
        )
    return units


def _cards(annotations: Mapping[str, str], asking: tuple[ContainerRequest, ...]) -> int:
    text = annotations.get(POD_CARDS)
    if text is None:
        return 1
    cards = int(text) if _CARDS.fullmatch(text) else 0
    if not 1 <= cards <= MAX_POD_CARDS:
        raise RequestError(
            f"annotation {POD_CARDS} is {shown(text)}; allowed: a whole number from 1 to {MAX_POD_CARDS}"
        )
    for container in asking:
        if cards > 1 and container.kind == "init":
            raise RequestError(
                f"annotation {POD_CARDS} is {shown(text)}; allowed: 1 where an init container, here "
                f"{shown(container.name)}, asks for GPU memory and is not a sidecar"
            )
        if container.units % cards:
            raise RequestError(
                f"annotation {POD_CARDS} is {shown(text)}, container {shown(container.name)} asks for "
                f"{container.units} units; allowed: a multiple of the number of cards"
            )
    return cards


def _mixed_models(annotations: Mapping[str, str]) -> bool:
    text = annotations.get(POD_MIXED_MODELS, "false")
    if text not in {"true", "false"}:
        raise RequestError(f"annotation {POD_MIXED_MODELS} is {shown(text)}; allowed: true or false")
    return text == "true"


def _places(annotations: Mapping[str, str], asking: tuple[ContainerRequest, ...]) -> ContainerPlaces:
    text = annotations.get(POD_CONTAINERS)
    if text is None or text == "same-card":
        return "" if text is None else "same-card"
    if text != "apart":
        raise RequestError(f"annotation {POD_CONTAINERS} is {shown(text)}; allowed: same-card or apart")
    for container in asking:
        if container.kind == "init":
            raise RequestError(
                f"annotation {POD_CONTAINERS} is {shown(text)}; allowed: same-card where an init container, "
                f"here {shown(container.name)}, asks for GPU memory and is not a sidecar"
            )
    return "apart"


def _check_percent(request: PodRequest) -> None:
    """Refuse more than a whole card of a card.

    Raises:
        RequestError: a container, or all that share a card, ask for more than 100 percent of each card.
    """
    for container in request.containers:
        if container.units > WHOLE * request.cards:
            raise RequestError(
                f"container {shown(container.name)} asks for {PERCENT_RESOURCE}: {container.units} of "
                f"{request.cards} card(s); allowed: {WHOLE} for each card, and annotation {POD_CARDS} says "
                "how many"
            )
    if request.shared and request.effective_units > WHOLE:
        raise RequestError(
            f"containers that share a card with an init container ask for {PERCENT_RESOURCE}: "
            f"{request.effective_units} together; allowed: {WHOLE}"
        )
    if request.same_cards and request.effective_units > WHOLE * request.cards:
        raise RequestError(
            f"containers on the same card, as annotation {POD_CONTAINERS} says, ask for {PERCENT_RESOURCE}: "
            f"{request.effective_units} together; allowed: {WHOLE} for each of {request.cards} card(s)"
        )


def _card_policy(annotations: Mapping[str, str]) -> str | None:
    name = annotations.get(POD_CARD_POLICY)
    if name is not None and name not in CARD_POLICIES:
        raise unknown_policy(POD_CARD_POLICY, name, CARD_POLICIES)
    return name


def unknown_policy(annotation: str, name: str, registry: Registry[Any]) -> RequestError:
    return RequestError(f"annotation {annotation} is {shown(name)}; allowed: {registry.allowed}")
