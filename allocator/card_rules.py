"""Rules for the cards of a pod as a whole: one model, or separate cards for each container."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from allocator.cards import Card


@dataclass(frozen=True, slots=True)
class CardRules:
    """CardRules is the rules for a choice of cards, besides free units and selectors.

    Attributes:
        same_model: All cards of one container are of one model. Cards whose model is not known are of one.
        apart: No card serves two containers.
    """

    same_model: bool = False
    apart: bool = False

    def left_on(self, card_size: int, used_units: int, units: int) -> int:
        """Return the used units of a card, for the demands that follow, once one demand has `units` of it."""
        return max(card_size, used_units) if self.apart else used_units + units

    def allows(self, cards: Sequence[Card], chosen: Sequence[Collection[int]]) -> bool:
        """Tell whether cards that were chosen for each demand keep the rules."""
        if self.apart and len(set().union(*chosen)) < sum(map(len, chosen)):
            return False
        return not self.same_model or all(len({cards[at].model for at in each}) <= 1 for each in chosen)


NO_RULES: Final = CardRules()
"""Rules of a pod that takes what has room."""


def group_by_model(cards: Sequence[Card], positions: Iterable[int]) -> Mapping[str, list[int]]:
    """Group positions of cards by model, in their order."""
    groups: dict[str, list[int]] = {}
    for at in positions:
        groups.setdefault(cards[at].model, []).append(at)
    return groups
