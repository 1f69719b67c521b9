"""Place a whole pod on one node's cards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allocator.card_rules import NO_RULES, CardRules
from allocator.cards import Card, CardAmounts, pair_amounts
from allocator.exact import place_exactly
from allocator.policy import Need, choose, units_asked
from allocator.records import Assignment
from allocator.request import PodRequest
from allocator.selector import ANY_CARD, Selector

CardShares = tuple[tuple[int, int], ...]
"""Pairs of a card's position in the node's card list and units on it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The cards that a pod's containers get.

    Attributes:
        containers: for each container that asks, in the pod's order, its name and its cards.
        charge: units that the pod costs, by card position. On a card that ordinary init containers share
            with the others this is the effective request, less than the sum over the containers.
        compute: percent of compute that the pod costs, by card position; empty if it asks for none.
    """

    containers: tuple[tuple[str, CardShares], ...]
    charge: dict[int, int]
    compute: Mapping[int, int] = field(default_factory=dict)

    @property
    def amounts(self) -> dict[int, CardAmounts]:
        return pair_amounts(self.charge, self.compute)

    def name_cards(self, uuids: Sequence[str]) -> Assignment | None:
        """Name the cards by the UUIDs of the node's cards; None if the node publishes none."""
        if not uuids:
            return None
        return {
            container: tuple((uuids[card], units) for card, units in shares)
            for container, shares in self.containers
        }


def place(cards: Sequence[Card], request: PodRequest, policy: str) -> Placement | None:
    """Choose cards for every container, by the card policy; None if they do not fit. See `choose_each`.

    Raises:
        CardPolicyError: there is no such policy.
    """
    demands = [demand.need for demand in request.demands]
    chosen = choose_each(cards, demands, request.card_policy or policy, request.selector, request.rules)
    return None if chosen is None else placed(request, chosen, [card.size_units for card in cards])


def choose_each(
    cards: Sequence[Card],
    demands: Iterable[Need],
    policy: str,
    selector: Selector = ANY_CARD,
    rules: CardRules = NO_RULES,
) -> list[tuple[int, ...]] | None:
    """Choose cards for one demand after the other, on what the ones before left: positions in `cards`.

    Where that leaves one of them no cards, each gets what the policy prefers of the cards that leave the rest
    room: a pod of several containers fits wherever there is any way to place it. See `exact` for the limit.

    Raises:
        CardPolicyError: there is no such policy.
    """
    demands = list(demands)
    chosen = _one_after_the_other(cards, demands, policy, selector, rules)
    if chosen is None and len(demands) > 1:
        return place_exactly(cards, demands, policy, selector, rules)
    return chosen


def _one_after_the_other(
    cards: Sequence[Card],
    demands: Iterable[Need],
    policy: str,
    selector: Selector,
    rules: CardRules,
) -> list[tuple[int, ...]] | None:
    left = list(cards)
    near: set[int] = set()
    result = []
    for units, count, compute in demands:
        chosen = choose(
            left, units, count, policy, selector, near, same_model=rules.same_model, compute=compute
        )
        if chosen is None:
            return None
        for position in chosen:
            card = left[position]
            left[position] = rules.take(card, units_asked(units, card.size_units), compute)
            if card.numa is not None:
                near.add(card.numa)
        result.append(chosen)
    return result


def placed(request: PodRequest, chosen: Sequence[Sequence[int]], sizes: Sequence[int]) -> Placement:
    """Write the cards chosen for each of a pod's demands as its placement; `sizes` are units by card."""
    charge: dict[int, int] = {}
    shares: dict[str, CardShares] = {}
    by_name = {container.name: container for container in request.containers}
    for demand, positions in zip(request.demands, chosen, strict=True):
        for position in positions:
            charge[position] = charge.get(position, 0) + demand.units_on(sizes[position])
        for name in demand.containers:
            shares[name] = tuple(
                (position, request.units_of(by_name[name], sizes[position])) for position in positions
            )
    return Placement(
        tuple((container.name, shares[container.name]) for container in request.containers),
        charge,
        request.charge_compute(chosen),
    )
