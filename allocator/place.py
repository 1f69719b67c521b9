"""Place a whole pod on one node's cards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allocator.cards import Card
from allocator.policy import choose
from allocator.request import PodRequest

CardShares = tuple[tuple[int, int], ...]
"""Pairs of a card's position in the node's card list and units on it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod's containers go.

    Attributes:
        containers: for each container that asks, in the pod's order, its name and its cards.
        charge: units that the pod costs, by card position. On a card that ordinary init containers share
            with the others this is the effective request, less than the sum over the containers.
    """

    containers: tuple[tuple[str, CardShares], ...]
    charge: dict[int, int]


def place(cards: Sequence[Card], request: PodRequest, policy: str) -> Placement | None:
    """Choose cards for every container, each by the card policy on what the ones before left.

    Args:
        cards: all cards of one node, in the order of its words.
        request: what the pod asks for; its own card policy goes before `policy`.
        policy: the cluster's card policy.

    Returns:
        The placement, with positions in `cards`, or None when some container does not fit.

    Raises:
        PolicyError: there is no such policy.
    """
    left = list(cards)
    charge: dict[int, int] = {}
    near: set[int] = set()
    shares: dict[str, CardShares] = {}
    own_units = {container.name: container.units for container in request.containers}
    for demand in request.demands:
        chosen = choose(
            left,
            demand.units_per_card,
            demand.cards,
            request.card_policy or policy,
            request.selector,
            near,
        )
        if chosen is None:
            return None
        for position in chosen:
            card = left[position]
            left[position] = replace(card, used_units=card.used_units + demand.units_per_card)
            charge[position] = charge.get(position, 0) + demand.units_per_card
            if card.numa is not None:
                near.add(card.numa)
        for name in demand.containers:
            shares[name] = tuple((position, own_units[name] // demand.cards) for position in chosen)
    return Placement(
        tuple((container.name, shares[container.name]) for container in request.containers), charge
    )
