"""Find cards for all containers of a pod if placing them one by one, as the policy prefers, fails.

Whether demands fit together is a packing problem: cards are bins. A demand of several cards takes so much of
each of several different ones. The search is depth first, the largest demand first. Cards of one size with as
much free are one choice. A state of the free amounts that was tried before is not tried again. A state where
a bound says that the rest cannot fit is left. With few containers and cards the search is complete.

Invariant: the result depends on the multiset of (size, model, what is free), the demands and the pod's card
rules. The result does not depend on policy, order of cards or caller. So filter, bind and all other callers
agree, even if the search was cut off.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final, NamedTuple

from allocator.card_rules import NO_RULES, CardRules
from allocator.cards import Card
from allocator.policy import Need, choose, costs_of_fitting, units_asked
from allocator.selector import Selector

MOST_STEPS: Final = 5_000
"""Cards looked at in one search, from the first choice that fails on: up to 20 milliseconds. A pod made to be
hard counts as one that does not fit when they are used up."""

_REMEMBERED: Final = 2048
"""Searches whose outcome is remembered: a pod that waits asks about the same nodes again and again."""

_BOUNDS: Final = 3
"""Amounts for which a state is checked, besides the smallest one."""

_Card = tuple[int, int, int]
"""A card: the number of its kind, free units, and free compute, 0 where nobody asks for any. Cards of one
kind are of one size and one model, as far as these matter."""

_Need = tuple[tuple[int, ...], int, int]
"""A demand: units by the number of a card's kind, percent of compute, and how many cards."""

_Picks = tuple[tuple[int, ...], ...]
"""Positions of cards for each demand."""


class Found(NamedTuple):
    """Outcome of a search.

    Attributes:
        picks: Positions of the cards of each demand; None: they do not fit together.
        complete: The search was exhaustive; otherwise None only means that nothing was found.
    """

    picks: _Picks | None
    complete: bool


class _Limits(NamedTuple):
    """Limits of a search besides room.

    Attributes:
        models: The number of the model, by the number of a kind.
        apart: No card serves two demands.
    """

    models: tuple[int, ...]
    apart: bool

    @property
    def has_models(self) -> bool:
        """Tell whether cards of one demand may not be of any kinds together."""
        return len(set(self.models)) > 1

    def left_of(self, card: _Card, need: _Need) -> _Card:
        """Return what later demands find of a card that a demand has."""
        kind, free, compute_free = card
        units, compute, _ = need
        return kind, 0 if self.apart else free - units[kind], compute_free - compute


class _Outcome(NamedTuple):
    """A remembered `Found`, with the steps that its search took."""

    picks: _Picks | None
    steps: int


def fit_together(
    cards: Sequence[tuple[int, int, int]],
    demands: Sequence[Need],
    models: Sequence[str] = (),
    rules: CardRules = NO_RULES,
) -> Found:
    """Find cards for demands together, whatever a policy prefers; picks are positions in `cards`.

    Args:
        cards: Size, free units and free compute of each card that may be used.
        models: Models of the cards; empty if all are of one.
    """
    kinds, needs, limits = _normal([size for size, *_ in cards], models or [""] * len(cards), demands, rules)
    order = sorted(range(len(needs)), key=lambda number: _hardness(needs[number]))
    least = tuple(min(units) for units in zip(*(units for units, *_ in needs), strict=True))
    asks_compute = any(compute for _, compute, _ in needs)
    there = sorted(
        (kinds[at], free, compute_free if asks_compute else 0, at)
        for at, (_, free, compute_free) in enumerate(cards)
        if free >= least[kinds[at]]
    )
    # Positions are not part of the question: nodes that are alike share an answer.
    outcome = _remembered(tuple(card[:3] for card in there), tuple(needs[number] for number in order), limits)
    if outcome.picks is None:
        return Found(None, outcome.steps <= MOST_STEPS)
    by_number = dict(zip(order, outcome.picks, strict=True))
    return Found(
        tuple(tuple(there[at][3] for at in by_number[number]) for number in range(len(needs))), complete=True
    )


def place_exactly(
    cards: Sequence[Card],
    demands: Sequence[Need],
    policy: str,
    selector: Selector,
    rules: CardRules = NO_RULES,
) -> list[tuple[int, ...]] | None:
    """Choose cards for all demands, for each what the policy prefers of what leaves the others room.

    Raises:
        CardPolicyError: there is no such policy, or its costs are none.
    """
    admitted = [at for at, card in enumerate(cards) if card.free_units > 0 and selector.admits(card)]
    there = [(cards[at].size_units, cards[at].free_units, cards[at].compute_free) for at in admitted]
    found = fit_together(there, demands, [cards[at].model for at in admitted], rules)
    if found.picks is None:
        return None
    picks = [tuple(admitted[at] for at in positions) for positions in found.picks]
    return _Preferring(cards, demands, policy, selector, rules, picks).chosen()


class _Preferring:
    """Turns one placement into the one that a policy prefers.

    Invariant: `_picks` is a placement of all demands on what the cards had free at first, and has what was
    taken so far.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        demands: Sequence[Need],
        policy: str,
        selector: Selector,
        rules: CardRules,
        picks: list[tuple[int, ...]],
    ) -> None:
        self._left = list(cards)
        self._demands = demands
        self._policy = policy
        self._selector = selector
        self._rules = rules
        self._picks = picks
        self._admitted = [selector.admits(card) for card in cards]
        self._kinds, self._needs, self._limits = _normal(
            [card.size_units for card in cards], [card.model for card in cards], demands, rules
        )
        self._asks_compute = any(compute for _, compute, _ in self._needs)
        self._steps = MOST_STEPS

    def chosen(self) -> list[tuple[int, ...]]:
        near: set[int] = set()
        result = []
        for number, (asked, count, compute) in enumerate(self._demands):
            costs = costs_of_fitting(self._left, asked, self._policy, self._selector, compute=compute)
            order = {at: (cost, self._left[at].numa not in near, at) for at, cost in costs.items()}
            chosen = choose(
                self._left,
                asked,
                count,
                self._policy,
                self._selector,
                near,
                same_model=self._rules.same_model,
                compute=compute,
            )
            usual = chosen or ()
            preferred = [*usual, *(at for at in sorted(order, key=order.__getitem__) if at not in usual)]
            taken = tuple(sorted(self._take_cards(number, preferred), key=order.__getitem__))
            near.update(numa for at in taken if (numa := self._left[at].numa) is not None)
            result.append(taken)
        return result

    def _take_cards(self, number: int, preferred: Sequence[int]) -> list[int]:
        """Take cards for one demand, each time the most preferred one that leaves the rest room."""
        asked, count, compute = self._demands[number]
        taken: list[int] = []
        while len(taken) < count:
            failed: set[_Card] = set()
            for at in preferred:
                card = self._left[at]
                kind = self._state_of(at)
                if at in taken or kind in failed:
                    continue
                if self._can_take(number, taken, at):
                    self._left[at] = self._rules.take(card, units_asked(asked, card.size_units), compute)
                    taken.append(at)
                    break
                failed.add(kind)
        return taken

    def _can_take(self, number: int, taken: Sequence[int], at: int) -> bool:
        """Tell whether a demand can have one more card; then `_picks` has it."""
        if at in self._picks[number]:
            return True
        alike = next((other for other in self._picks[number] if self._is_alike(other, at, taken)), None)
        if alike is not None:
            self._exchange(number, alike, at)
            return True
        if any(self._is_other_model(at, other) for other in taken):
            return False
        return self._steps > 0 and self._search(number, taken, at)

    def _is_other_model(self, one: int, other: int) -> bool:
        return self._limits.models[self._kinds[one]] != self._limits.models[self._kinds[other]]

    def _is_alike(self, one: int, other: int, taken: Sequence[int]) -> bool:
        return one not in taken and self._state_of(one) == self._state_of(other)

    def _state_of(self, at: int) -> _Card:
        card = self._left[at]
        return self._kinds[at], card.free_units, card.compute_free if self._asks_compute else 0

    def _exchange(self, first: int, one: int, other: int) -> None:
        """Exchange two equal cards in all demands that are not placed yet."""
        swapped = {one: other, other: one}
        for number in range(first, len(self._picks)):
            self._picks[number] = tuple(swapped.get(at, at) for at in self._picks[number])

    def _search(self, number: int, taken: Sequence[int], at: int) -> bool:
        """Look for a placement of the rest once a demand has one more card."""
        mine, compute, count = self._needs[number]
        more = count - len(taken) - 1
        barred = {*taken, at}
        rest = sorted(range(number + 1, len(self._needs)), key=lambda other: _hardness(self._needs[other]))
        needs = [*([(mine, compute, more)] if more else []), *(self._needs[other] for other in rest)]
        there = []
        for position in range(len(self._left)):
            card = self._state_of(position)
            if position == at:
                card = self._limits.left_of(card, self._needs[number])
            if card[1] > 0 and self._admitted[position]:
                there.append((*card, position))
        there.sort()
        outcome = _Outcome((), 0)
        if needs:
            closed = frozenset(
                n
                for n, (*_, position) in enumerate(there)
                if more and (position in barred or self._is_other_model(position, at))
            )
            rest_cards = [card[:3] for card in there]
            outcome = _search(rest_cards, needs, self._limits, self._steps, closed, counting=True)
        self._steps -= outcome.steps
        if outcome.picks is None:
            return False
        picks = [tuple(there[n][3] for n in positions) for positions in outcome.picks]
        self._picks[number] = (*taken, at, *(picks.pop(0) if more else ()))
        for other, positions in zip(rest, picks, strict=True):
            self._picks[other] = positions
        return True


def _normal(
    sizes: Sequence[int], models: Sequence[str], demands: Sequence[Need], rules: CardRules
) -> tuple[list[int], list[_Need], _Limits]:
    """Number the kinds of cards, as far as size and model matter, and write demands by these numbers."""
    in_units = all(isinstance(asked, int) for asked, *_ in demands)
    if in_units and not rules.same_model:
        needs: list[_Need] = [((units_asked(asked, 0),), compute, count) for asked, count, compute in demands]
        return [0] * len(sizes), needs, _Limits((0,), rules.apart)
    kinds = [
        (0 if in_units else size, model if rules.same_model else "")
        for size, model in zip(sizes, models, strict=True)
    ]
    known = sorted(set(kinds)) or [(0, "")]
    number_of = {kind: number for number, kind in enumerate(known)}
    needs = [
        (tuple(units_asked(asked, size) for size, _ in known), compute, count)
        for asked, count, compute in demands
    ]
    names = sorted({model for _, model in known})
    limits = _Limits(tuple(names.index(model) for _, model in known), rules.apart)
    return [number_of[kind] for kind in kinds], needs, limits


def _hardness(need: _Need) -> tuple[object, ...]:
    """Order demands, the hardest first."""
    units, compute, count = need
    return [-each for each in units], -compute, -count


@lru_cache(maxsize=_REMEMBERED)
def _remembered(cards: tuple[_Card, ...], needs: tuple[_Need, ...], limits: _Limits) -> _Outcome:
    return _search(cards, needs, limits, MOST_STEPS)


class _Bounds:
    """Lower bounds on what the rest of the demands needs, by the number of the first one left."""

    def __init__(self, needs: Sequence[_Need], *, apart: bool) -> None:
        self._needs = needs
        self._apart = apart
        each = (compute * count for _, compute, count in reversed(needs))
        self._compute = [*accumulate(each)][::-1]
        self._known: dict[int, tuple[int, list[tuple[tuple[int, ...], int, int]]]] = {}

    def least(self, first: int) -> tuple[int, ...]:
        """The fewest units that any demand of the rest takes of a card, by the number of its kind."""
        return self._get_bounds(first)[1][-1][0]

    def checks(self, first: int) -> int:
        """The number of amounts that `can_fit` compares."""
        return len(self._get_bounds(first)[1])

    def can_fit(self, first: int, cards: Sequence[_Card]) -> bool:
        """Tell whether the rest may fit, judged by sums.

        All units and all compute together; and for each amount of units how many demands of so much or more
        each card can hold, of each demand once.
        """
        total, counts = self._get_bounds(first)
        if sum(free for _, free, _ in cards) < total:
            return False
        compute = self._compute[first]
        if compute and sum(max(0, free) for *_, free in cards) < compute:
            return False
        return all(
            sum(min(free // least[kind], 1 if self._apart else demands) for kind, free, _ in cards) >= slots
            for least, demands, slots in counts
        )

    def _get_bounds(self, first: int) -> tuple[int, list[tuple[tuple[int, ...], int, int]]]:
        known = self._known.get(first)
        if known is None:
            known = self._known[first] = self._computed(first)
        return known

    def _computed(self, first: int) -> tuple[int, list[tuple[tuple[int, ...], int, int]]]:
        rest = self._needs[first:]
        total = slots = 0
        least = rest[0][0]
        counts = []
        following = [*(units for units, *_ in rest[1:]), None]
        for number, ((units, _, count), after) in enumerate(zip(rest, following, strict=True), 1):
            total += min(units) * count
            slots += count
            least = tuple(map(min, least, units))
            if after != units:
                counts.append((least, number, slots))
        if first and len(counts) > _BOUNDS:
            counts = [*counts[:_BOUNDS], counts[-1]]
        return total, counts


def _search(
    cards: Sequence[_Card],
    needs: Sequence[_Need],
    limits: _Limits,
    most_steps: int,
    closed: frozenset[int] = frozenset(),
    *,
    counting: bool = False,
) -> _Outcome:
    """Place demands, the first one first.

    Args:
        needs: Demands, hardest first.
        most_steps: Cards that are looked at.
        closed: Positions of cards that the first demand cannot have.
        counting: Count from the beginning, else from the first choice that fails on: a first try always ends.
    """
    bounds = _Bounds(needs, apart=limits.apart)
    if not bounds.can_fit(0, cards):
        return _Outcome(None, 0)
    steps = 0
    # Where all ask for one card, one that is filled to the last unit is as good as any.
    filling = not closed and all(
        len(units) == 1 and count == 1 and not compute for units, compute, count in needs
    )
    seen: set[tuple[int, tuple[_Card, ...]]] = set()
    chosen: list[tuple[int, ...]] = []
    states = [list(cards)]
    branches = [_branches(states[0], needs[0], limits, closed, filling=filling)]
    while branches:
        picked = next(branches[-1], None)
        if picked is None:
            counting = True
            branches.pop()
            states.pop()
            if chosen:
                chosen.pop()
            continue
        depth = len(branches)
        if depth == len(needs):
            return _Outcome((*chosen, picked), steps)
        left = states[-1].copy()
        for at in picked:
            left[at] = limits.left_of(left[at], needs[depth - 1])
        least = bounds.least(depth)
        there = tuple(sorted(card for card in left if card[1] >= least[card[0]]))
        steps += counting * (len(left) + len(there) * bounds.checks(depth))
        if steps > most_steps:
            return _Outcome(None, steps)
        known = (depth, there) in seen
        seen.add((depth, there))
        if known or not bounds.can_fit(depth, there):
            counting = True
            continue
        chosen.append(picked)
        states.append(left)
        branches.append(_branches(left, needs[depth], limits, frozenset(), filling=filling))
    return _Outcome(None, steps)


def _branches(
    cards: Sequence[_Card], need: _Need, limits: _Limits, closed: frozenset[int], *, filling: bool
) -> Iterator[tuple[int, ...]]:
    """Give the choices of cards for a demand; of cards that are alike the first ones only.

    For one card: the fullest that has room first. For several: those with most left first, because no two
    demands may end up with the same few cards. `filtering` begins in the same way, for many nodes at once.
    """
    units, compute, count = need
    groups: dict[_Card, list[int]] = {}
    for at, card in enumerate(cards):
        if card[1] >= units[card[0]] and (not compute or card[2] >= compute) and at not in closed:
            groups.setdefault(card, []).append(at)
    by_rest = sorted(groups, key=lambda card: (card[1] - units[card[0]], card), reverse=count > 1)
    if count == 1:
        if filling and by_rest and by_rest[0][1] == units[by_rest[0][0]]:
            by_rest = by_rest[:1]
        return iter([(groups[card][0],) for card in by_rest])
    if not limits.has_models:
        return _picks([groups[card] for card in by_rest], count)
    by_model: dict[int, list[list[int]]] = {}
    for card in by_rest:
        by_model.setdefault(limits.models[card[0]], []).append(groups[card])
    return chain.from_iterable(_picks(each, count) for each in by_model.values())


def _picks(groups: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Give ways to take members of groups: of each one its first so many, as many as there are first."""
    if not count:
        yield ()
        return
    if sum(map(len, groups)) < count:
        return
    first, *others = groups
    for number in range(min(count, len(first)), -1, -1):
        for rest in _picks(others, count - number):
            yield (*first[:number], *rest)
