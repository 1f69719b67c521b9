"""Rules for the cards of a pod as a whole: one model, or separate cards for each container."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from allocator.cards import Card


@dataclass(frozen=True, slots=True)
class CardRules:
    """The rules for a choice of cards, besides free units and selectors.

    Attributes:
        same_model: All cards of one container are of one model. Cards whose model is not known are of one.
        apart: No card serves two containers.
    """

    same_model: bool = False
    apart: bool = False

    def take(self, card: Card, units: int, compute: int) -> Card:
        """Return a card, for the demands that follow, once one demand has so much of it."""
        used = max(card.size_units, card.used_units) if self.apart else card.used_units + units
        return replace(card, used_units=used, compute_used=card.compute_used + compute)

    def allows(self, cards: Sequence[Card], chosen: Sequence[Collection[int]]) -> bool:
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
