"""Finds which of equally good cards lie nearest to each other: on few NUMA nodes, then with many NVLinks.

A policy says what cards cost, and several may cost the same. A container that gets more than one is better
off with cards of one NUMA node, and among those with linked ones. Its processes talk over the links. Where
sets are equal in both, the one with the first positions is taken, so that scheduler and node choose alike.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain, combinations, product
from math import comb, prod

from allocator.cards import Card

Group = tuple[Sequence[int], int]
"""Positions of cards that are equally good, and how many of them are to be taken."""

MOST_NODES = 8
"""NUMA nodes among which the best are searched for; of more (no server has them) any will do."""

MOST_SETS = 512
"""Sets of which the links are counted, under a millisecond; of more a set is grown card by card."""


def nearest(cards: Sequence[Card], groups: Sequence[Group], near: Collection[int] = ()) -> tuple[int, ...]:
    """Take so many cards of each group that the fewest NUMA nodes are touched, then with the most links.

    Args:
        groups: no two with a card in common, each with as many members as are to be taken, or more.
        near: NUMA nodes that cost nothing: the pod has cards there.
    """
    fixed = [at for members, count in groups if count == len(members) for at in members]
    left = [(members, count) for members, count in groups if 0 < count < len(members)]
    if not left:
        return tuple(sorted(fixed))
    there = {*near, *(cards[at].numa for at in fixed)}
    sets = [
        tuple(sorted((*fixed, *_linked(cards, fixed, choice))))
        for choice in _on_fewest_nodes(cards, left, there)
    ]
    return min(sets, key=lambda chosen: (-links_between(cards, chosen), chosen))


def links_between(cards: Sequence[Card], positions: Iterable[int]) -> int:
    """Count the NVLinks between cards, over all pairs."""
    return sum(_links(cards, one, other) for one, other in combinations(sorted(positions), 2))


def _links(cards: Sequence[Card], one: int, other: int) -> int:
    links = cards[one].links
    return links[other] if other < len(links) else 0


def _on_fewest_nodes(
    cards: Sequence[Card], groups: Sequence[Group], there: Collection[Hashable]
) -> Iterator[Sequence[Group]]:
    """Narrow the groups to the cards of as few more NUMA nodes as possible, in each way there is."""
    others = list(dict.fromkeys(cards[at].numa for members, _ in groups for at in members))
    others = [numa for numa in others if numa not in there]
    if len(others) > MOST_NODES:
        yield list(groups)
        return
    for more in range(len(others) + 1):
        found = False
        for added in combinations(others, more):
            allowed = {*there, *added}
            narrowed: list[Group] = [
                ([at for at in members if cards[at].numa in allowed], n) for members, n in groups
            ]
            if all(len(members) >= count for members, count in narrowed):
                found = True
                yield narrowed
        if found:
            return


def _linked(cards: Sequence[Card], fixed: Sequence[int], groups: Sequence[Group]) -> tuple[int, ...]:
    """Take the cards of each group that have the most links, with each other and with those fixed."""
    everyone = sorted({*fixed, *chain.from_iterable(members for members, _ in groups)})
    # A node has no links, as a rule: many cards have very many pairs.
    linked = any(cards[at].links for at in everyone)
    counts = {_links(cards, one, other) for one, other in combinations(everyone, 2)} if linked else {0}
    if len(counts) == 1:
        # No links, or all through a switch.
        return tuple(at for members, count in groups for at in sorted(members)[:count])
    if prod(comb(len(members), count) for members, count in groups) > MOST_SETS:
        return _grown(cards, fixed, groups)
    sets = product(*(combinations(sorted(members), count) for members, count in groups))
    return min(
        (tuple(chain.from_iterable(parts)) for parts in sets),
        key=lambda chosen: (-links_between(cards, (*fixed, *chosen)), sorted(chosen)),
    )


def _grown(cards: Sequence[Card], fixed: Sequence[int], groups: Sequence[Group]) -> tuple[int, ...]:
    """Begin with each card in turn, and add the one with the most links to those so far."""
    everyone = sorted(chain.from_iterable(members for members, _ in groups))
    group_of = {at: number for number, (members, _) in enumerate(groups) for at in members}
    first_gains = {at: sum(_links(cards, *sorted((at, one))) for one in fixed) for at in everyone}
    results = []
    for first in everyone:
        left, gains = [count for _, count in groups], dict(first_gains)
        chosen: list[int] = []
        total = 0
        best: int | None = first
        while best is not None:
            chosen.append(best)
            total += gains.pop(best)
            left[group_of[best]] -= 1
            for at in gains:
                gains[at] += _links(cards, *sorted((at, best)))
            open_to = [at for at in gains if left[group_of[at]] > 0]
            best = max(open_to, key=lambda at: (gains[at], -at), default=None)
        results.append((-total, sorted(chosen)))
    return tuple(min(results)[1])


def rearranged(
    cards: Sequence[Card],
    demands: Sequence[tuple[int, int, int]],
    chosen: Sequence[Sequence[int]],
    admitted: Collection[int],
) -> tuple[tuple[int, ...], ...]:
    """Exchange chosen cards for others that are just as full, where these lie nearer to each other.

    For a choice that was made without a look at where cards lie. The node is left with the same amounts on
    cards of the same size and model. So every later demand finds what it would have found. Compute counts for
    pods that ask for some.

    Args:
        demands: units on each card, number of cards and percent of compute of each.
        admitted: positions that the pod may use at all.
    """
    asks_compute = any(compute for *_, compute in demands)
    used = [(card.used_units, card.compute_used if asks_compute else 0) for card in cards]
    real = list(range(len(cards)))
    near: set[int] = set()
    result = []
    for (units, _, compute), positions in zip(demands, chosen, strict=True):
        groups: dict[Hashable, list[int]] = {}
        for at in range(len(cards)):
            card = cards[real[at]]
            kind = (card.size_units, used[real[at]], card.model, real[at] in admitted)
            groups.setdefault(kind, []).append(at)
        counts = [(members, sum(at in positions for at in members)) for members in groups.values()]
        taken = nearest(cards, [(sorted(real[at] for at in m), n) for m, n in counts if n], near)
        before = list(real)
        for members, _ in counts:
            # Those taken stand for those chosen from now on, the others for the others.
            there = sorted((before[at] for at in members), key=lambda at: (at not in taken, at))
            for at, stands in zip(
                sorted(members, key=lambda at: (at not in positions, at)), there, strict=True
            ):
                real[at] = stands
        for at in taken:
            used[at] = used[at][0] + units, used[at][1] + compute
            numa = cards[at].numa
            if numa is not None:
                near.add(numa)
        result.append(taken)
    return tuple(result)
