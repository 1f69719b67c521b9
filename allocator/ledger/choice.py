"""Which device IDs a container gets: what GetPreferredAllocation is answered."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product

from allocator.errors import LedgerError, shown
from allocator.ledger import charges, places, release
from allocator.ledger.facts import Facts
from allocator.ledger.pods import PodFacts, Units, add, demand_of
from allocator.request import ContainerRequest, Demand, PodRequest


@dataclass(frozen=True, slots=True)
class Ask:
    """What the kubelet asks for one container; the question itself never says whose.

    Attributes:
        facts: all that is known.
        offered: device IDs of this node's cards, all of units or all of percent.
        fixed: those of them that must be in the answer.
        size: how many IDs are wanted.
        percent: they are of percent.
        taken_up: namespace and name of the pods that the kubelet has taken up, None where it did not say. The
            one that is asking is among them; none is that it takes up later.
    """

    facts: Facts
    offered: frozenset[str]
    fixed: frozenset[str]
    size: int
    percent: bool
    taken_up: Collection[tuple[str, str]] | None = None

    def whose(self) -> tuple[PodFacts, ContainerRequest] | None:
        """Find which container it may be for; of equal ones it does not matter which.

        Of the pods that the kubelet has taken up, where it said so: as a rule all but one of them have what
        they asked for. A pod whose IDs must be included. Else one that has begun, for the kubelet admits one
        pod at a time. Else the first in the kubelet's order whose next container wants so much; living pods
        first, then those that are gone as long as the kubelet may not have heard of it. Then one whose turn
        comes later; at last a container that starts again in a pod that runs.
        """
        queue = [one for one in self.facts.queue() if self._may_be_of(one)]
        if self.fixed:
            queue = [one for one in queue if self.fixed <= one.ids_of(one.ids)] or queue
        begun = [one for one in queue if one.book and not one.ran]
        begun.sort(key=lambda one: -one.since.order if one.since is not None else 0)
        fresh = [one for one in queue if not one.book and not one.ran]
        # The words keep the place of one that is gone besides: if it was asking, the living one goes there.
        fresh.sort(key=lambda one: not one.live)
        running = [one for one in queue if one.ran]
        for group, turns in ((begun + fresh, 1), (begun + fresh + running, None)):
            for one in group:
                served = {*one.book, *self._granted(one)}
                unserved = [c for c in one.pod.request.containers if c.name not in served]
                for container in unserved[:turns]:
                    if container.units == self.size:
                        return one, container
        return None

    def asker(self) -> tuple[str, str] | None:
        """UID and container that ask, None where the kubelet did not say which pods it has taken up."""
        found = self.whose() if self.taken_up is not None else None
        return None if found is None else (found[0].pod.key, found[1].name)

    def _granted(self, one: PodFacts) -> set[str]:
        """Containers of a pod that have devices by now though the book, an older copy of it, lacks them."""
        grants = [grant for grant in self.facts.grants if grant.at.order > self.facts.restarted]
        return {grant.owner[1] for grant in grants if grant.owner and grant.owner[0] == one.pod.key}

    def _may_be_of(self, one: PodFacts) -> bool:
        """Whether a pod may be asking, whatever it has by now."""
        if one.pod.request.percent != self.percent:
            return False
        return self.taken_up is None or (one.pod.namespace, one.pod.name) in self.taken_up

    def is_expected(self) -> bool:
        """Whether a living pod is known that waits for a container of that size.

        False means that the view of pods is behind the kubelet's, or the pod is not in the API: wait a little
        for the view before the answer. A pod that had something and has nothing in the book now may be over.
        """
        found = self.whose()
        if found is None or found[0].ran or not found[0].live:
            return False
        had = found[0].admitted is not None or found[0].since is not None
        return not had or bool(found[0].book)

    def is_displaced(self) -> bool:
        """Whether the pod that seems to ask gets no card that was assigned to its like, or that is not known.

        Where it goes instead depends on all other pods: wait a little for a fresh list of them.
        """
        if is_behind(self.facts):
            return True
        found = self.whose()
        if found is None or self.fixed:
            return False
        number, _ = demand_of(found[0].pod.request, found[1].name)
        place = places.places(self.facts).get((found[0].pod.key, number))
        return place is not None and not place.on_target

    def is_crowded(self) -> bool:
        """Whether containers of pods that are over may still run."""
        return bool(release.lingering(self.facts))

    def has_room(self) -> bool:
        """Whether some card can take the container."""
        try:
            prefer(self)
        except LedgerError:
            return False
        return True

    def is_assigned(self) -> bool:
        """Whether the pod that seems to ask was bound with cards chosen for it."""
        found = self.whose()
        return found is not None and found[0].pod.assigned is not None


def is_behind(facts: Facts) -> bool:
    """Whether the book shows a pod that the view of pods does not: whose target it took is not known."""
    return any(not one.bound and one.over is None for one in facts.open.values())


def prefer(ask: Ask) -> tuple[str, ...]:
    """Choose exactly as many of the offered IDs as are asked for.

    Raises:
        LedgerError: no card (or not enough cards) can take the container.
    """
    facts = ask.facts
    if not ask.fixed:
        return _pick(ask, _cards(ask))
    cards, free = tuple(sorted(facts.count(ask.fixed))), facts.count(ask.offered)
    if len(cards) > 1 or free[cards[0]] < ask.size:
        raise LedgerError(
            f"container of {ask.size} units that must stay on {shown(list(cards))}: "
            f"allowed is what one card has free, {shown(dict(free))}"
        )
    return _pick(ask, cards)


def _cards(ask: Ask) -> tuple[str, ...]:
    """Choose the cards of one answer: the place of the pod that asks, or the best that is left.

    The best by the card policy, in rounds that respect less and less: first cards where nothing is charged,
    nobody else is expected and others use nothing; then without the others' use. Then the target, whatever
    may be charged there: the scheduler knows best; but sooner where the kubelet has forgotten
    an Allocate. Then where only bound pods are expected, and whatever can be had. At last the same for this
    container alone, without those that are to share its card. What containers of a pod that is over still run
    with is never given out a second time.
    """
    facts, who = ask.facts, ask.whose()
    found = places.places(facts)
    request, demand = PodRequest(()), Demand((), ask.size, 1, ask.percent, ask.size)
    key, mine, target = None, Units(), tuple[str, ...]()
    if who is not None:
        one, container = who
        request = one.pod.request
        number, demand = demand_of(request, container.name)
        key, mine = (one.pod.key, number), charges.of_pod(facts, one)
        target = _served_on(facts, one, container, demand) or _planned(found, key, demand)
        target = target or facts.target(one.pod, demand) or ()
    # What this container takes of each card; the demand may be of several containers.
    each = ask.size // demand.cards
    alone = replace(demand, per_card=each, least=each)
    offered, charged, expected = (
        _offered(ask, each),
        charges.charged(facts),
        places.expected(found, key),
    )
    unheld = {
        uuid: min(units, facts.cards[uuid].size_units - charged[uuid] + mine.get(uuid, 0))
        for uuid, units in offered.items()
    }
    if target and all(unheld[uuid] >= alone.units_on(facts.cards[uuid].size_units) for uuid in target):
        return target
    free = _less(unheld, expected)
    again = dict(free)
    add(again, charges.forgotten(facts))
    rounds = (
        _less(free, facts.pressure),
        free,
        {uuid: min(again[uuid], units) for uuid, units in offered.items()},
        _only(offered, target),
        _less(offered, expected),
        offered,
    )
    for wanted, room in product((demand, alone), rounds):
        chosen = places.by_policy(facts, room, request, wanted)
        if chosen is not None:
            return chosen
    none = "no card has" if demand.cards == 1 else f"no {demand.cards} cards each have"
    asked = f"{each} percent of it free" if ask.percent else f"{each} free units"
    raise LedgerError(f"{none} {asked}, by card they have {shown(list(offered.values()))}")


def _planned(found: Mapping[places.Key, places.Place], key: places.Key, demand: Demand) -> tuple[str, ...]:
    """Cards where a demand has its place, also by the policy: the words have reserved that and no other."""
    place = found.get(key)
    return place.cards if place is not None and len(place.cards) == demand.cards else ()


def _only(room: Mapping[str, int], cards: Collection[str]) -> Units:
    return {uuid: room[uuid] for uuid in cards}


def _less(room: Mapping[str, int], taken: Mapping[str, int]) -> Units:
    return {uuid: units - taken.get(uuid, 0) for uuid, units in room.items()}


def _served_on(facts: Facts, one: PodFacts, container: ContainerRequest, demand: Demand) -> tuple[str, ...]:
    """Tell on which cards a demand has been served in part, or was before the kubelet lost its book.

    Newest knowledge first: the book; what it showed once; where the book is behind, what was granted last,
    for the kubelet admits one pod at a time; what an admitted pod is charged with.
    """
    in_book = (one.book.get(name, frozenset()) for name in demand.containers)
    before = one.pod.request.containers[: one.pod.request.containers.index(container)]
    behind = one.pod.request.shared and any(earlier.name not in one.book for earlier in before)
    for cards in (
        facts.count(frozenset().union(*in_book)),
        facts.count(one.ids_of(demand.containers)),
        dict(facts.grants[-1].shares if facts.grants and behind else ()),
        charges.of_pod(facts, one) if one.admitted is not None else {},
    ):
        if len(cards) == demand.cards:
            return tuple(cards)
    return ()


def _offered(ask: Ask, each: int) -> Units:
    """Units by card that a container can have as far as the kubelet goes.

    It knows of no card, and of each resource by itself: what it has given out of the other one is not free.
    Nor is what it offers again while containers of a pod that is over still run with it. Of percent it must
    offer as many as are asked for.
    """
    facts = ask.facts
    counts, taken = facts.count(ask.offered), charges.booked(facts, percent=not ask.percent)
    lingering = release.lingering(facts)
    if ask.percent or lingering:
        add(taken, charges.booked(facts, percent=ask.percent))
    for one in lingering:
        if not one.book:
            add(taken, charges.of_pod(facts, one))
    left = {uuid: card.size_units - taken.get(uuid, 0) for uuid, card in facts.cards.items()}
    if ask.percent:
        return {uuid: units if counts[uuid] >= each else 0 for uuid, units in left.items()}
    return {uuid: min(counts[uuid], units) for uuid, units in left.items()}


def _pick(ask: Ask, cards: Collection[str]) -> tuple[str, ...]:
    """Take as many IDs on each card: those that must be in, then those that nobody is charged with."""
    facts = ask.facts
    taken = frozenset().union(
        *(ids for one in facts.open.values() for ids in one.ids.values()), *(g.ids for g in facts.grants)
    )
    each = ask.size // len(cards)
    answer: list[str] = []
    for uuid in cards:
        mine = [text for text in facts.ids_on(uuid, percent=ask.percent) if text in ask.offered]
        mine.sort(key=lambda text: (text not in ask.fixed, text in taken or text in facts.settled.ids))
        answer.extend(mine[:each])
    return tuple(answer)
