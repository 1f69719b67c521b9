"""A node on paper, for questions about pods that are not there yet or would be gone. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from allocator.cards import Card
from allocator.place import Placement, place
from allocator.podcards import ByPosition
from allocator.request import PodRequest
from scheduler_plugin.cache.amounts import Amounts

NO_COMPUTE: Final[ByPosition] = MappingProxyType({})

Undo = Callable[[], object]
"""Takes a change back; changes may be taken back in any order, each once."""


class PutPod(NamedTuple):
    """A pod that was put on a node."""

    placement: Placement
    undo: Undo


class ScratchNode:
    """What is left of a node as pods are put on it and taken off.

    Attributes:
        cards: Its cards by position, with what the pods take; more than a card's size may be taken.
        left: What is left besides; less than 0 where pods ask for more than there is.
    """

    def __init__(self, cards: Iterable[Card], left: Amounts) -> None:
        self.cards = list(cards)
        self.left = left

    def put_pod(self, request: PodRequest, card_policy: str, asked: Amounts) -> PutPod | None:
        """Put a pod on the cards that its card policy chooses; None if not everything is left for it.

        Raises:
            PolicyError: the card policy gives no valid costs.
        """
        if not asked.fits_in(self.left):
            return None
        placement = place(self.cards, request, card_policy)
        return (
            None
            if placement is None
            else PutPod(placement, self.add_pod(asked, placement.charge, placement.compute))
        )

    def add_pod(
        self, asked: Amounts, units_by_card: ByPosition, compute_by_card: ByPosition = NO_COMPUTE
    ) -> Undo:
        """Put a pod on given cards, whatever is left there."""
        return self._change(asked, units_by_card, compute_by_card, 1)

    def remove_pod(
        self, asked: Amounts, units_by_card: ByPosition, compute_by_card: ByPosition = NO_COMPUTE
    ) -> Undo:
        return self._change(asked, units_by_card, compute_by_card, -1)

    def _change(self, asked: Amounts, units: ByPosition, compute: ByPosition, times: int) -> Undo:
        for at in units.keys() | compute.keys():
            card = self.cards[at]
            self.cards[at] = replace(
                card,
                used_units=card.used_units + times * units.get(at, 0),
                compute_used=card.compute_used + times * compute.get(at, 0),
            )
        self.left = self.left.add(asked, -times)
        return partial(self._change, asked, units, compute, -times)
