"""Interface of a card policy: costs of a node's cards for one request."""

from collections.abc import Sequence
from typing import Protocol

from allocator.cards import Card


class CardPolicy(Protocol):
    """Costs of cards; those that fit are taken in order of (cost, not near, position).

    `costs` is all that a policy needs. The scheduler, which asks about thousands of nodes, is faster with one
    of two more attributes, each of which must agree with `costs`:

        array_costs(size, free, units): the same for numpy arrays int64[m, K] of sizes and free units, for
            policies that look at nothing else; operators will do, so numpy need not be imported here.
        by_fill = True: the cost depends on a card's size and free units and on the request alone, so it is
            asked once for each and then looked up.

    Where kube-scheduler chooses, the first card that fits in a ResourceSlice is taken:

        spreads = True: the card with the most room stands first there, in place of the fullest one.

    One says who chooses:

        node_policy_chooses = True: a node policy that chooses cards itself does so, with more than a card
            policy is told; `costs` counts where there is none, on the node for one.
    """

    def costs(self, cards: Sequence[Card], units: int, /) -> Sequence[float]:
        """Cost of each card for a request of `units` on it, lower is better.

        Args:
            cards: All cards of one node, in the order of its words, whether they fit or not.
            units: Units asked of a card, at least 1.

        Returns:
            As many numbers as there are cards.
        """
        ...


def lacks(policy: object) -> str:
    """Say what an object lacks to be a card policy; empty: nothing."""
    if not callable(getattr(policy, "costs", None)):
        return "a method costs(cards, units)"
    if not callable(getattr(policy, "array_costs", lacks)):
        return "a usable method array_costs(size, free, units)"
    return ""
