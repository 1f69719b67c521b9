"""Which device IDs a container gets: what GetPreferredAllocation is answered."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from allocator.errors import LedgerError, shown
from allocator.ledger import charges, places, release
from allocator.ledger.facts import BoundPod, Facts, Slot, Units, add, demand_of
from allocator.request import ContainerRequest, Demand, PodRequest


def asking(
    facts: Facts, size: int, fixed: frozenset[str], now_s: float, *, percent: bool = False
) -> Slot | None:
    """Find whose container the kubelet may be asking for; of equal ones it does not matter which.

    `size` is units, or percent, which the kubelet asks for as another resource.

    A pod whose IDs must be included. Else one that has begun, for the kubelet admits one pod at a time. Else
    the first in the kubelet's order whose next container wants so much, also one that was served before the
    kubelet restarted without its book; living pods first, then those that are gone as long as the kubelet may
    not have heard of it, which it has if it dropped or refused them. Then one whose turn comes later, or that
    was served since; at last a container that starts again in a pod that runs.
    """
    in_book = {slot.uid for slot in facts.book}
    queue = [
        bound
        for bound in facts.queue()
        if bound.pod.request.percent == percent
        and (
            bound.live
            or (bound.pod.key in in_book and not bound.pod.terminal)
            or release.waits_its_turn(facts, bound.pod.key, now_s)
        )
    ]
    if fixed:
        reused = [b for b in queue if b.pod.key in facts.held and fixed <= facts.held[b.pod.key].union]
        queue = reused or queue
    waiting = [bound for bound in queue if bound.pod.key not in facts.lived]
    begun = [bound for bound in waiting if bound.pod.key in in_book]
    begun.sort(key=lambda bound: -facts.held[bound.pod.key].since.order)
    fresh = [b for b in waiting if b.pod.key not in in_book and not facts.was_served(b.pod.key)]
    # The words keep the place of one that is gone besides: if it was asking, the living one goes there.
    fresh.sort(key=lambda bound: not bound.live)
    for group, turns in ((begun, 1), (fresh, 1), (waiting, None), (queue, None)):
        for bound in group:
            for container in _unserved(facts, bound)[:turns]:
                if container.units == size:
                    return Slot(bound.pod.key, container.name)
    return None


def _unserved(facts: Facts, bound: BoundPod) -> list[ContainerRequest]:
    """Containers that the book does not show now, in the kubelet's order."""
    return [c for c in bound.pod.request.containers if Slot(bound.pod.key, c.name) not in facts.book]


def is_expected(
    facts: Facts, size: int, fixed: frozenset[str], now_s: float, *, percent: bool = False
) -> bool:
    """Whether a living pod is known that waits for a container of that size.

    One that had something and has nothing in the book now may be over: the view of pods is behind.
    """
    slot = asking(facts, size, fixed, now_s, percent=percent)
    if slot is None or slot.uid in facts.lived or not facts.pods[slot.uid].live:
        return False
    had = facts.pods[slot.uid].admitted or slot.uid in facts.held
    return not had or any(entry.uid == slot.uid for entry in facts.book)


def is_behind(facts: Facts) -> bool:
    """Whether the book shows a pod that the view of pods does not: whose target it took is not known."""
    return any(
        uid not in facts.pods and uid not in facts.gone for uid in facts.held.keys() | facts.remembered.keys()
    )


def is_displaced(
    facts: Facts, size: int, fixed: frozenset[str], now_s: float, *, percent: bool = False
) -> bool:
    """Whether the pod that seems to ask gets no card that was assigned to its like, or nobody knows."""
    if is_behind(facts):
        return True
    slot = asking(facts, size, fixed, now_s, percent=percent)
    if slot is None or fixed:
        return False
    number, _ = demand_of(facts.pods[slot.uid].pod.request, slot.container)
    place = places.places(facts).get((slot.uid, number))
    return place is not None and not place.on_target


def prefer(
    facts: Facts, offered: frozenset[str], fixed: frozenset[str], size: int, now_s: float
) -> tuple[str, ...]:
    """Choose exactly `size` of the offered IDs, all of units or all of percent, `fixed` among them.

    Raises:
        LedgerError: no card (or not enough cards) can take the container.
    """
    if fixed:
        cards, free = tuple(sorted(facts.count(fixed))), facts.count(offered)
        if len(cards) > 1 or free[cards[0]] < size:
            raise LedgerError(
                f"container of {size} units that must stay on {shown(list(cards))}: "
                f"allowed is what one card has free, {shown(dict(free))}"
            )
    else:
        slot = asking(facts, size, fixed, now_s, percent=facts.is_share(offered))
        cards = _cards(facts, slot, offered, size)
    return _pick(facts, cards, offered, fixed, size)


def _cards(facts: Facts, slot: Slot | None, offered: frozenset[str], size: int) -> tuple[str, ...]:
    """Choose the cards of one answer: the place of the pod that asks, or the best that is left."""
    found = places.places(facts)
    if slot is None:
        one = Demand((), size, 1, facts.is_share(offered), size)
        return _fallback(facts, PodRequest(()), one, one, offered, places.expected(found), None)
    bound = facts.pods[slot.uid]
    request = bound.pod.request
    number, demand = demand_of(request, slot.container)
    # What this container takes of each card; the demand may be of several containers.
    alone = replace(demand, per_card=size // demand.cards, least=size // demand.cards)
    place = found.get((slot.uid, number))
    got = _served_on(facts, bound, slot, demand)
    # Also where the policy sends it: the words have reserved that place and no other.
    own = got or facts.target(bound.pod, demand)
    planned = place.cards if place is not None and len(place.cards) == demand.cards else None
    target = got or planned or own
    if target is not None and _has_room(facts, _unheld(facts, offered, alone, slot.uid), target, alone):
        return target
    others = places.expected(found, (slot.uid, number))
    return _fallback(facts, request, demand, alone, offered, others, own)


def _served_on(facts: Facts, bound: BoundPod, slot: Slot, demand: Demand) -> tuple[str, ...]:
    """Tell on which cards a demand has been served in part, or was before the kubelet lost its book.

    Newest knowledge first: the book; what it showed once; where the book is behind, what was granted last,
    for the kubelet admits one pod at a time; what an admitted pod is charged with.
    """
    in_book = [facts.book.get(Slot(slot.uid, name), frozenset()) for name in demand.containers]
    behind = bound.pod.request.shared and _unserved(facts, bound)[0].name != slot.container
    granted = facts.grants[-1].shares if facts.grants and behind else ()
    for cards in (
        facts.count(frozenset().union(*in_book)),
        facts.count(facts.ids_of(slot.uid, demand.containers)),
        dict(granted),
        charges.of_pod(facts, slot.uid) if bound.admitted else {},
    ):
        if len(cards) == demand.cards:
            return tuple(cards)
    return ()


def _offered(facts: Facts, offered: frozenset[str], alone: Demand) -> Units:
    """Units by card that a container can have as far as the kubelet goes.

    It knows of no card, and of each resource by itself: what it has given out of the other one is not free.
    Of percent it must offer as many as are asked for.
    """
    counts, taken = facts.count(offered), charges.booked(facts, percent=not alone.percent)
    if not alone.percent:
        return {
            uuid: min(counts[uuid], card.size_units - taken.get(uuid, 0))
            for uuid, card in facts.cards.items()
            if uuid in counts
        }
    add(taken, charges.booked(facts, percent=True))
    return {
        uuid: card.size_units - taken.get(uuid, 0)
        for uuid, card in facts.cards.items()
        if counts[uuid] >= alone.per_card
    }


def _unheld(facts: Facts, offered: frozenset[str], alone: Demand, uid: str) -> Units:
    """Units by card that the kubelet offers and that nobody else is charged with."""
    free = _offered(facts, offered, alone)
    mine, promised = charges.of_pod(facts, uid), charges.charged(facts)
    return {
        uuid: min(free.get(uuid, 0), card.size_units - promised[uuid] + mine.get(uuid, 0))
        for uuid, card in facts.cards.items()
    }


def _fallback(
    facts: Facts,
    request: PodRequest,
    demand: Demand,
    alone: Demand,
    offered: frozenset[str],
    others: Mapping[str, int],
    target: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Choose by the card policy, in rounds that respect less and less.

    First cards where nothing is charged, nobody else is expected and others use nothing; then without the
    others' use. Then the target, though a pod that has ended may linger there: nobody knows better than the
    scheduler. Then where only bound pods are expected, and whatever the kubelet offers. At last the same for
    this container alone, without those that are to share its card.
    """
    free = _offered(facts, offered, alone)
    promised = charges.charged(facts)
    left = {
        uuid: min(free.get(uuid, 0), card.size_units - promised[uuid]) - others.get(uuid, 0)
        for uuid, card in facts.cards.items()
    }
    careful = ({uuid: left[uuid] - facts.pressure.get(uuid, 0) for uuid in facts.cards}, left)
    bold = ({uuid: free.get(uuid, 0) - others.get(uuid, 0) for uuid in facts.cards}, free)
    if target is not None and not _has_room(facts, free, target, alone):
        target = None
    chosen = (
        _first_fit(facts, careful, request, demand)
        or target
        or _first_fit(facts, bold, request, demand)
        or _first_fit(facts, careful + bold, request, alone)
    )
    if chosen is None:
        room = [free.get(uuid, 0) for uuid in facts.cards]
        none = "no card has" if demand.cards == 1 else f"no {demand.cards} cards each have"
        asked = f"{alone.per_card} percent of it free" if demand.percent else f"{alone.per_card} free units"
        raise LedgerError(f"{none} {asked}, by card they have {shown(room)}")
    return chosen


def _first_fit(
    facts: Facts, rounds: Iterable[Mapping[str, int]], request: PodRequest, demand: Demand
) -> tuple[str, ...] | None:
    for room in rounds:
        chosen = places.by_policy(facts, room, request, demand)
        if chosen is not None:
            return chosen
    return None


def _pick(
    facts: Facts, cards: Collection[str], offered: frozenset[str], fixed: frozenset[str], size: int
) -> tuple[str, ...]:
    """Take as many IDs on each card: those that must be in, then those that nobody is charged with."""
    taken = frozenset().union(*(h.union for h in facts.held.values()), *(g.ids for g in facts.grants))
    card_of = facts.share_of if facts.is_share(offered) else facts.card_of
    each = size // len(cards)
    answer: list[str] = []
    for uuid in cards:
        mine = [text for text, card in card_of.items() if card == uuid and text in offered]
        mine.sort(key=lambda text: (text not in fixed, text in taken))
        answer.extend(mine[:each])
    return tuple(answer)


def _has_room(facts: Facts, room: Mapping[str, int], cards: Iterable[str], alone: Demand) -> bool:
    return all(room.get(uuid, 0) >= alone.units_on(facts.cards[uuid].size_units) for uuid in cards)
