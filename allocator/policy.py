"""Which cards of one node serve a request: the one choice that scheduler and node share.

A policy gives one cost per card from the node's cards and the units asked of each card; cards that fit are
taken in order of (cost, not near, position). Policies never see a preference, so a preference can only break
ties.
"""

from collections.abc import Collection, Sequence

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.policies import CARD_POLICIES, CardPolicy
from allocator.selector import ANY_CARD, Selector


def card_policy(name: str) -> CardPolicy:
    """Look a policy up by its name.

    Raises:
        PolicyError: there is no such policy.
    """
    return CARD_POLICIES.made(name)


def choose(
    cards: Sequence[Card],
    units: int,
    count: int,
    policy: str,
    selector: Selector = ANY_CARD,
    near: Collection[int] = (),
) -> tuple[int, ...] | None:
    """Choose `count` different cards with `units` free on each.

    Args:
        cards: all cards of one node, in the order of its words.
        units: units asked of each card, at least 1.
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
    if units < 1 or count < 1:
        raise RequestError(f"request of {units} units on {count} cards: allowed is 1 or more of both")
    fitting = [i for i, card in enumerate(cards) if card.free_units >= units and selector.admits(card)]
    if len(fitting) < count:
        return None
    costs = costs_of(cards, units)
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
