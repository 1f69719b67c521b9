"""Chooses the cards of one node that serve a request: the one choice that scheduler and node share.

A policy gives one cost per card from the node's cards and the units asked of each card. Cards that fit are
taken in order of (cost, position). Among cards of equal cost those are taken that lie nearest to each other
and to those that the pod has, see `topology`. Policies never see that, so it can only break ties.
"""

from collections.abc import Callable, Collection, Sequence
from numbers import Real

from allocator.card_rules import group_by_model
from allocator.cards import Card
from allocator.errors import CardPolicyError, RequestError, shown
from allocator.policies import CARD_POLICIES, CardPolicy
from allocator.registry import one_line
from allocator.selector import ANY_CARD, Selector
from allocator.topology import nearest

Asked = int | Callable[[int], int]
"""Units asked of a card: a number, or by the card's size."""

Need = tuple[Asked, int, int]
"""A demand: units on each card, number of cards, and percent of each card's compute."""


def card_policy(name: str) -> CardPolicy:
    return CARD_POLICIES.made(name)


def node_policy_chooses(name: str) -> bool:
    """Tell whether a card policy leaves the choice to node policies that choose cards themselves.

    Raises:
        CardPolicyError: there is no such policy.
    """
    return bool(getattr(card_policy(name), "node_policy_chooses", False))


def is_spreading(name: str) -> bool:
    """Tell whether a card policy prefers the card with the most room.

    Raises:
        CardPolicyError: there is no such policy.
    """
    return bool(getattr(card_policy(name), "spreads", False))


def choose(
    cards: Sequence[Card],
    units: Asked,
    count: int,
    policy: str,
    selector: Selector = ANY_CARD,
    near: Collection[int] = (),
    *,
    same_model: bool = False,
    compute: int = 0,
) -> tuple[int, ...] | None:
    """Choose `count` different cards with `units` and `compute` free on each.

    Args:
        units: units asked of each card, at least 1; by its size where it depends on that.
        selector: cards that it refuses are left out.
        near: NUMA nodes to prefer among cards of equal cost.
        same_model: all must be of one model: of the one whose `count` cheapest cards cost least together.
        compute: percent asked of each card's compute.

    Returns:
        Positions in `cards`, best first, or None when fewer than `count` cards fit.

    Raises:
        CardPolicyError: there is no such policy, or its costs are none.
        RequestError: units or count are below 1.
    """
    costs = costs_of_fitting(cards, units, policy, selector, count, compute)
    if same_model and count > 1:
        costs = _costs_of_one_model(cards, costs, count)
    if not costs:
        return None
    last = sorted(costs.values())[count - 1]
    groups = (
        [i for i, cost in costs.items() if cost < last],
        [i for i, cost in costs.items() if cost == last],
    )
    sure = len(groups[0])
    chosen = nearest(cards, [(groups[0], sure), (groups[1], count - sure)], near)
    return tuple(sorted(chosen, key=lambda i: (costs[i], cards[i].numa not in near, i)))


def _costs_of_one_model(cards: Sequence[Card], costs: dict[int, float], count: int) -> dict[int, float]:
    """Keep the costs of the model whose `count` cheapest cards cost least; of equal ones the first."""
    groups = [each for each in group_by_model(cards, costs).values() if len(each) >= count]
    best = min(groups, key=lambda each: sum(sorted(costs[at] for at in each)[:count]), default=[])
    return {at: costs[at] for at in best}


def costs_of_fitting(
    cards: Sequence[Card],
    units: Asked,
    policy: str,
    selector: Selector = ANY_CARD,
    count: int = 1,
    compute: int = 0,
) -> dict[int, float]:
    """Ask a policy for the costs, by position, of admitted cards with room; empty if fewer than `count` fit.

    Of a request for compute the policy sees each card as full as the tighter of its two numbers makes it.

    Raises:
        CardPolicyError: there is no such policy, or its costs are none.
        RequestError: units or count are below 1.
    """
    costs_of = card_policy(policy).costs
    needs = [units_asked(units, card.size_units) for card in cards]
    if count < 1 or min(needs, default=1) < 1 or (isinstance(units, int) and units < 1):
        raise RequestError(f"request of {units} units on {count} cards; allowed: 1 or more of both")
    fitting = [
        i
        for i, (card, need) in enumerate(zip(cards, needs, strict=True))
        if card.has_room(need, compute) and selector.admits(card)
    ]
    if len(fitting) < count:
        return {}
    # A policy is asked about one amount; where it depends on the card, once for each.
    by_need = {
        need: asked_costs(
            policy, costs_of, [card.by_tighter_number(need) for card in cards] if compute else cards, need
        )
        for need in {needs[i] for i in fitting}
    }
    costs = {i: by_need[needs[i]][i] for i in fitting}
    for i, cost in costs.items():
        if not isinstance(cost, Real) or cost != cost:  # noqa: PLR0124 - not a number
            raise wrong_costs(policy, f"cost of card {i} for {needs[i]} units is {shown(cost)}")
    return costs


def asked_costs(
    policy: str, costs_of: Callable[[Sequence[Card], int], Sequence[float]], cards: Sequence[Card], units: int
) -> Sequence[float]:
    """Ask a policy for the costs of cards; the values themselves are not checked yet.

    Raises:
        CardPolicyError: it fails, or does not return one cost for each card.
    """
    try:
        costs = costs_of(cards, units)
        count = len(costs)
    except Exception as error:
        raise wrong_costs(policy, f"costs for {units} units cannot be had: {one_line(error)}") from error
    if count != len(cards):
        raise wrong_costs(policy, f"{count} costs for {len(cards)} cards")
    return costs


def wrong_costs(policy: str, what: str) -> CardPolicyError:
    return CardPolicyError(f"{CARD_POLICIES.called(policy)}: {what}; allowed: one number a card, not nan")


def units_asked(units: Asked, size: int) -> int:
    return units if isinstance(units, int) else units(size)
