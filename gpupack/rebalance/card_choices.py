"""Lists all choices of cards that a pod has on a node; cards that do not differ count once."""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import chain

from allocator.card_rules import group_by_model
from allocator.cards import Card
from allocator.place import Placement, placed
from allocator.request import Demand, PodRequest

CardKind = Callable[[Card], Hashable]
"""What tells cards apart besides free units, size and model."""


def list_card_choices(
    cards: Sequence[Card], request: PodRequest, last: Collection[int], kind: CardKind
) -> Iterator[Placement]:
    """Give every choice of cards; of those that differ only in which of the same cards they take, one.

    Args:
        cards: All cards of a node, by position.
        last: Positions that are used only if no other card of their kind is left.
    """
    sizes = [card.size_units for card in cards]
    for chosen in _iterate_choices(cards, request.demands, request, last, kind):
        yield placed(request, chosen, sizes)


def _iterate_choices(
    cards: Sequence[Card],
    demands: Sequence[Demand],
    request: PodRequest,
    last: Collection[int],
    kind: CardKind,
) -> Iterator[list[tuple[int, ...]]]:
    demand, *rest = demands
    groups: dict[Hashable, list[int]] = {}
    for at in sorted(range(len(cards)), key=lambda position: (position in last, position)):
        card = cards[at]
        if card.has_room(demand.units_on(card.size_units), demand.compute) and request.selector.admits(card):
            compute = card.compute_free if request.asks_compute else 0
            key = (card.free_units, compute, card.size_units, card.model, kind(card))
            groups.setdefault(key, []).append(at)
    alike = [list(groups.values())]
    if request.rules.same_model:
        by_model = group_by_model(cards, [group[0] for group in groups.values()])
        alike = [[group for group in groups.values() if group[0] in firsts] for firsts in by_model.values()]
    for chosen in chain.from_iterable(_picks(each, demand.cards) for each in alike):
        if not rest:
            yield [chosen]
            continue
        left = list(cards)
        for at in chosen:
            card = cards[at]
            left[at] = request.rules.take(card, demand.units_on(card.size_units), demand.compute)
        for more in _iterate_choices(left, rest, request, last, kind):
            yield [chosen, *more]


def _picks(groups: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Pick so many positions, the first of each group before its others."""
    if not count:
        yield ()
        return
    for number, group in enumerate(groups):
        if group:
            for rest in _picks([group[1:], *groups[number + 1 :]], count - 1):
                yield (group[0], *rest)
