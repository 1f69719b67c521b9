"""Where pods that are bound and have no devices yet will be served.

The kubelet never says which pod it asks for. Pods whose demands are alike (`shape`) share a pool of targets:
the cards assigned to all of them, less those that the ones already served really got. It does not matter
which of them is asking; the book says a moment later who it was.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from allocator.cards import Card
from allocator.ledger.charges import assumed, charged, complete
from allocator.ledger.facts import BoundPod, Facts, Units, add, demands
from allocator.policy import choose
from allocator.request import Demand, PodRequest

Key = tuple[str, int]
"""A pod's UID and the position of the demand."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demand will be served.

    Attributes:
        cards: UUIDs; every card that could take it where nobody can say.
        units: still to come on each.
        on_target: the cards are those of its pool, or where it has something already.
    """

    cards: tuple[str, ...]
    units: int
    on_target: bool


def shape(request: PodRequest, demand: Demand) -> Hashable:
    """What makes demands interchangeable; the scheduler keeps others of the same size off the node."""
    if request.shared:
        return (tuple((c.kind, c.units) for c in request.containers), request.selector)
    return (demand.units_per_card, demand.cards, request.selector)


def waiting(facts: Facts, bound: BoundPod) -> list[tuple[int, Demand]]:
    """Demands with a container that the book does not show yet."""
    if complete(facts, bound):
        return []
    names = {container.name for container in facts.missing(bound)}
    return [
        (number, demand) for number, demand in demands(bound.pod) if not names.isdisjoint(demand.containers)
    ]


def places(facts: Facts) -> dict[Key, Place]:
    """Tell where each waiting demand of a living pod will be served.

    In this order: where it has something already; its own target while the pool has it; any target of the
    pool; its own target if it has room; what the card policy makes of the room that is left; every card.
    """
    pool = pools(facts)
    promised = charged(facts)
    room = {
        uuid: card.size_units - promised[uuid] if card.healthy else 0 for uuid, card in facts.cards.items()
    }
    out: dict[Key, Place] = {}
    queue = [
        (bound, number, demand)
        for bound in facts.queue()
        if bound.live
        for number, demand in waiting(facts, bound)
    ]

    def settle(bound: BoundPod, number: int, cards: Iterable[str], units: int, *, on_target: bool) -> None:
        place = Place(tuple(cards), units, on_target)
        out[bound.pod.key, number] = place
        for uuid in place.cards:
            room[uuid] -= units

    def fits(cards: Iterable[str], units: int) -> bool:
        return all(room[uuid] >= units for uuid in cards)

    for bound, number, demand in queue:
        got = facts.by_card(facts.ids_of(bound.pod.key, demand.containers))
        if got:
            left = max(0, demand.units_per_card - max(got.values()))
            settle(bound, number, got, left, on_target=True)
    for bound, number, demand in queue:
        target, units = facts.target(bound.pod, demand), demand.units_per_card
        left_here = pool[shape(bound.pod.request, demand)]
        if (bound.pod.key, number) not in out and target and left_here[target] > 0 and fits(target, units):
            left_here[target] -= 1
            settle(bound, number, target, units, on_target=True)
    for bound, number, demand in queue:
        if (bound.pod.key, number) in out:
            continue
        units, left_here = demand.units_per_card, pool[shape(bound.pod.request, demand)]
        for target in sorted(target for target, count in left_here.items() if count > 0):
            if fits(target, units):
                left_here[target] -= 1
                settle(bound, number, target, units, on_target=True)
                break
    for bound, number, demand in queue:
        if (bound.pod.key, number) not in out:
            units, target = demand.units_per_card, facts.target(bound.pod, demand)
            cards = (
                target
                if target and fits(target, units)
                else by_policy(facts, room, bound.pod.request, demand)
            )
            everywhere = tuple(facts.eligible(bound.pod.request, units))
            settle(bound, number, cards or everywhere, units, on_target=False)
    return out


def pools(facts: Facts) -> defaultdict[Hashable, Counter[tuple[str, ...]]]:
    """Count the targets that are left by shape: those of all pods less what those served really got.

    A pod leaves the pool when its charge ends, not before: until then the cards that it got are not free.
    """
    pool: defaultdict[Hashable, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for bound in facts.pods.values():
        for _, demand in demands(bound.pod):
            mine = pool[shape(bound.pod.request, demand)]
            target = facts.target(bound.pod, demand)
            got = tuple(sorted(facts.by_card(facts.ids_of(bound.pod.key, demand.containers))))
            if target is not None:
                mine[target] += 1
            if got:
                mine[got] -= 1
    return pool


def by_policy(
    facts: Facts, room: Mapping[str, int], request: PodRequest, demand: Demand
) -> tuple[str, ...] | None:
    """Choose cards by the policy that the scheduler uses, given the room on each; None if it does not fit."""
    cards: list[Card] = [
        replace(card, used_units=card.size_units - max(0, room.get(uuid, 0)))
        for uuid, card in facts.cards.items()
    ]
    chosen = choose(
        cards, demand.units_per_card, demand.cards, request.card_policy or facts.policy, request.selector
    )
    return None if chosen is None else tuple(cards[position].uuid for position in chosen)


def expected(found: Mapping[Key, Place], but: Key | None = None) -> Units:
    """Units by card that waiting demands will take."""
    total: Units = {}
    for key, place in found.items():
        if key != but:
            add(total, dict.fromkeys(place.cards, place.units))
    return total


def reserved(facts: Facts) -> Units:
    """Units by card that bound pods will take where the scheduler does not count them.

    The scheduler counts a bound pod at its `assigned` cards until the words hold it. Where it will be served
    elsewhere, the words must say so, or its place would be given away.
    """
    counted = assumed(facts)
    return {
        uuid: units - counted.get(uuid, 0)
        for uuid, units in expected(places(facts)).items()
        if units > counted.get(uuid, 0)
    }
