"""Interface of a card policy: costs of a node's cards for one request."""

from collections.abc import Sequence
from typing import Protocol

from allocator.cards import Card


class CardPolicy(Protocol):
    """Costs of cards; those that fit are taken in order of (cost, not near, position).

    `costs` is all that a policy needs. Two more attributes make the scheduler faster, which asks about
    thousands of nodes. Each must agree with `costs`:

    - array_costs(size, free, units): `costs` for numpy arrays int64[m, K] of sizes and free units. Only for
      policies that look at nothing else. Operators will do, so numpy need not be imported here.
    - by_fill = True: the cost depends on the request and on a card's size and free units alone. The scheduler
      asks once for each and looks it up after that.

    Where kube-scheduler chooses, it takes the first card that fits in a ResourceSlice:

    - spreads = True: the card with the most room stands first there, in place of the fullest one.

    The last one says who chooses:

    - node_policy_chooses = True: a node policy that chooses cards itself does so, because it knows more than
      a card policy is told. `costs` counts where no node policy chooses, as on the node.
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
