"""Where pods that are bound and have no devices yet will be served: as the scheduler said, if that can be."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from allocator.ledger import charges
from allocator.ledger.facts import Facts
from allocator.ledger.pods import PodFacts, Units, add
from allocator.policy import choose
from allocator.request import Demand, PodRequest

Key = tuple[str, int]
"""A pod's UID and the position of the demand."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demand will be served.

    Attributes:
        units: still to come, by card.
        on_target: the cards are those that were assigned to it, or where it has something already.
    """

    units: Units
    on_target: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A demand with a container that the book does not show yet, or no more."""

    owner: PodFacts
    number: int
    demand: Demand

    @property
    def key(self) -> Key:
        """What names it in `places`."""
        return (self.owner.pod.key, self.number)


def waiting(facts: Facts) -> list[Waiting]:
    """List what is to be served, as the pods came into view."""
    return [
        Waiting(one, number, demand)
        for one in facts.queue()
        if one.asked_again or not charges.complete(one)
        for number, demand in enumerate(one.pod.request.demands)
        if one.asked_again or any(container.name in demand.containers for container in one.missing)
    ]


class Draft:
    """Places under way: room left on the cards, what is settled.

    Each step takes one demand and settles it, or leaves it to the next step.
    """

    def __init__(self, facts: Facts) -> None:
        promised = charges.charged(facts)
        self.facts = facts
        self.room = {
            uuid: card.size_units - promised[uuid] if card.healthy else 0
            for uuid, card in facts.cards.items()
        }
        self.settled: dict[Key, Place] = {}

    def where_it_has_something(self, one: Waiting) -> None:
        """A demand that was served in part goes on there, and one that is asked for again where it was.

        Where those are more cards than it asks for, as of a pod that was asked for again and only in part, it
        goes where the scheduler said.
        """
        got = self.has(one)
        if len(got) > one.demand.cards:
            got = {uuid: got.get(uuid, 0) for uuid in self.facts.target(one.owner.pod, one.demand) or ()}
        if got:
            most = max(got.values())
            self._settle(one, {u: max(0, n - most) for u, n in self._units(one, got).items()}, on_target=True)

    def has(self, one: Waiting) -> Units:
        """Units by card that a demand has; none where a card is unhealthy and all of it is asked for again.

        The kubelet would not give any of that card.
        """
        mine = one.owner
        sets = [mine.ids.get(name, frozenset[str]()) for name in one.demand.containers]
        again = [grant.ids for grant in charges.given_again(self.facts, mine)]
        got = self.facts.of_containers(sets + [ids for ids in again if any(map(ids.intersection, sets))])
        if not mine.asked_again:
            return got
        got = got or charges.of_pod(self.facts, mine)
        return got if all(self.facts.cards[uuid].healthy for uuid in got) else {}

    def where_the_scheduler_said(self, one: Waiting) -> None:
        """On the cards that were assigned to it, as long as they have room."""
        units = self._units(one, self.facts.target(one.owner.pod, one.demand) or ())
        if units and all(self.room[uuid] >= count for uuid, count in units.items()):
            self._settle(one, units, on_target=True)

    def by_the_card_policy(self, one: Waiting) -> None:
        """Where the scheduler's policy would put it now."""
        cards = by_policy(self.facts, self.room, one.owner.pod.request, one.demand)
        if cards is not None:
            self._settle(one, self._units(one, cards), on_target=False)

    def _settle(self, one: Waiting, units: Units, *, on_target: bool) -> None:
        self.settled[one.key] = Place(units, on_target)
        for uuid, count in units.items():
            self.room[uuid] -= count

    def _units(self, one: Waiting, cards: Iterable[str]) -> Units:
        return {uuid: one.demand.units_on(self.facts.cards[uuid].size_units) for uuid in cards}


STEPS = (Draft.where_it_has_something, Draft.where_the_scheduler_said, Draft.by_the_card_policy)


def places(facts: Facts) -> dict[Key, Place]:
    """Tell where each waiting demand will be served: the first of `STEPS` that knows, if any does."""
    queue = waiting(facts)
    if not queue:
        return {}  # as a rule; the rest takes long with many pods
    draft = Draft(facts)
    for step in STEPS:
        for one in queue:
            if one.key not in draft.settled:
                step(draft, one)
    return draft.settled


def by_policy(
    facts: Facts, room: Mapping[str, int], request: PodRequest, demand: Demand
) -> tuple[str, ...] | None:
    """Choose cards by the scheduler's policy, from free units by card; None if it does not fit.

    A cordon keeps new pods away; who was bound before it, or not by us, may have to go there.
    """
    cards = [
        replace(card, used_units=card.size_units - max(0, room.get(uuid, 0)))
        for uuid, card in facts.cards.items()
    ]
    policy = request.card_policy or facts.policy
    for offered in (cards, [replace(card, cordoned=False) for card in cards]):
        chosen = choose(offered, demand.asked, demand.cards, policy, request.selector)
        if chosen is not None:
            return tuple(cards[position].uuid for position in chosen)
    return None


def expected(found: Mapping[Key, Place], but: Key | None = None) -> Units:
    """Units by card that waiting demands will take."""
    total: Units = {}
    for key, place in found.items():
        if key != but:
            add(total, place.units)
    return total


def reserved(facts: Facts) -> Units:
    """Units by card that bound pods will take where the scheduler does not count them.

    The scheduler counts a bound pod at its `assigned` cards until the words hold it. Where it will be served
    elsewhere, the words must say so, or its place would be given away.
    """
    counted = charges.assumed(facts)
    return {
        uuid: units - counted.get(uuid, 0)
        for uuid, units in expected(places(facts)).items()
        if units > counted.get(uuid, 0)
    }
