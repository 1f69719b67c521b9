"""Which cards of one node serve a request: the one choice that scheduler and node share.

A policy gives one cost per card from the node's cards and the units asked of each card; cards that fit are
taken in order of (cost, not near, position). Policies never see a preference, so a preference can only break
ties.
"""

from collections.abc import Callable, Collection, Sequence

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.policies import CARD_POLICIES, CardPolicy
from allocator.selector import ANY_CARD, Selector

Asked = int | Callable[[int], int]
"""Units asked of a card: a number, or by the card's size."""


def card_policy(name: str) -> CardPolicy:
    """Look a policy up by its name.

    Raises:
        PolicyError: there is no such policy.
    """
    return CARD_POLICIES.made(name)


def choose(
    cards: Sequence[Card],
    units: Asked,
    count: int,
    policy: str,
    selector: Selector = ANY_CARD,
    near: Collection[int] = (),
) -> tuple[int, ...] | None:
    """Choose `count` different cards with `units` free on each.

    Args:
        cards: all cards of one node, in the order of its words.
        units: units asked of each card, at least 1; by its size where it depends on that.
        count: number of cards, at least 1.
        policy: a name in `CARD_POLICIES`.
        selector: cards that it refuses are left out.
        near: NUMA nodes to prefer among cards of equal cost; those of cards taken before in the same
            call count too.

    Returns:
        Positions in `cards`, best first, or None when fewer than `count` cards fit.

    Raises:
        PolicyError: there is no such policy.
        RequestError: units or count are below 1.
    """
    costs_of = card_policy(policy).costs
    needs = [units_asked(units, card.size_units) for card in cards]
    if count < 1 or min(needs, default=1) < 1 or (isinstance(units, int) and units < 1):
        raise RequestError(f"request of {units} units on {count} cards: allowed is 1 or more of both")
    fitting = [
        i
        for i, (card, need) in enumerate(zip(cards, needs, strict=True))
        if card.free_units >= need and selector.admits(card)
    ]
    if len(fitting) < count:
        return None
    # A policy is asked about one amount; where it depends on the card, once for each.
    by_need = {need: costs_of(cards, need) for need in {needs[i] for i in fitting}}
    costs = {i: by_need[needs[i]][i] for i in fitting}
    preferred = set(near)
    chosen: list[int] = []
    for _ in range(count):
        best = min(fitting, key=lambda i: (costs[i], cards[i].numa not in preferred, i))
        fitting.remove(best)
        chosen.append(best)
        numa = cards[best].numa
        if numa is not None:
            preferred.add(numa)
    return tuple(chosen)


def units_asked(units: Asked, size: int) -> int:
    """Units asked of a card of `size` units."""
    return units if isinstance(units, int) else units(size)
