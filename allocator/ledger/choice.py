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
        """Find which container it is for.

        Of the pods that the kubelet has taken up, where it said so: as a rule all but one of them have what
        they asked for. Of those that are left, and where it did not say, a pod whose IDs must be included.
        Else one that has begun, for the kubelet admits one pod at a time. Else the first that came into view
        and whose next container wants so much; living pods first, then those that are gone as long as the
        kubelet may not have heard of it. Then one whose turn comes later; at last a container that starts
        again in a pod that runs.
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
        """Whether the pod that seems to ask is not served where the scheduler said, or that is not known.

        Where it goes instead depends on all other pods: wait a little for a fresh list of them.
        """
        found = self.whose()
        if found is None or self.fixed:
            return False
        number, _ = demand_of(found[0].pod.request, found[1].name)
        place = places.places(self.facts).get((found[0].pod.key, number))
        return place is None or not place.on_target

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
    """Choose the cards of one answer: where the container belongs, or the best that is left.

    The best by the card policy, in rounds that respect less and less; at last the same for this container
    alone, without those that are to share its card. What may be in use is never given out a second time.
    """
    facts, who = ask.facts, ask.whose()
    found = places.places(facts)
    request, demand = PodRequest(()), Demand((), ask.size, 1, ask.percent, ask.size)
    key, target = None, tuple[str, ...]()
    if who is not None:
        one, container = who
        request = one.pod.request
        number, demand = demand_of(request, container.name)
        key = (one.pod.key, number)
        target = _belongs_on(facts, one, container, demand, found.get(key))
    # What this container takes of each card; the demand may be of several containers.
    each = ask.size // demand.cards
    alone = replace(demand, per_card=each, least=each)
    offered, others = _offered(ask, each), charges.charged(facts, but=who[0] if who is not None else None)
    left = {uuid: card.size_units - others[uuid] for uuid, card in facts.cards.items()}
    unheld = {uuid: min(units, left[uuid]) for uuid, units in offered.items()}
    if target and all(unheld[uuid] >= alone.units_on(facts.cards[uuid].size_units) for uuid in target):
        return target
    add(left, _given_back(facts))
    spare = {uuid: min(units, left[uuid]) for uuid, units in offered.items()}
    rounds = _rounds(facts, unheld, spare, places.expected(found, key))
    for wanted, room in product((demand, alone), rounds):
        chosen = places.by_policy(facts, room, request, wanted)
        if chosen is not None:
            return chosen
    none = "no card has" if demand.cards == 1 else f"no {demand.cards} cards each have"
    asked = f"{each} percent of it free" if ask.percent else f"{each} free units"
    raise LedgerError(f"{none} {asked}, by card they have {shown([max(0, n) for n in room.values()])}")


def _rounds(facts: Facts, unheld: Units, spare: Units, expected: Units) -> tuple[Units, ...]:
    """First what nobody has, no other pod is expected on and nothing else uses.

    Then also what others use, and what is charged and yet free; at last also where bound pods are expected.
    """
    return _less(_less(unheld, expected), facts.pressure), _less(spare, expected), spare


def _belongs_on(
    facts: Facts, one: PodFacts, container: ContainerRequest, demand: Demand, place: places.Place | None
) -> tuple[str, ...]:
    """Tell on which cards a container belongs.

    Where the book is behind, those that were granted last, for the kubelet admits one pod at a time; else
    its place, which the words have reserved; of an admitted pod what it is charged with.
    """
    before = one.pod.request.containers[: one.pod.request.containers.index(container)]
    behind = one.pod.request.shared and any(earlier.name not in one.book for earlier in before)
    for cards in (
        dict(facts.grants[-1].shares if facts.grants and behind else ()),
        place.units if place is not None else {},
        charges.of_pod(facts, one) if one.admitted is not None else {},
    ):
        if len(cards) == demand.cards:
            return tuple(cards)
    return ()


def _given_back(facts: Facts) -> Units:
    """Units by card that are charged and yet free if the kubelet offers them.

    What it has forgotten, and what it dropped from its book before it asks: of pods that are over, unless
    their containers were seen to run and may run on.
    """
    total, lingering = charges.forgotten(facts), release.lingering(facts)
    for one in facts.open.values():
        if one.over is not None and one not in lingering:
            add(total, charges.of_pod(facts, one))
    return total


def _less(room: Mapping[str, int], taken: Mapping[str, int]) -> Units:
    return {uuid: units - taken.get(uuid, 0) for uuid, units in room.items()}


def _offered(ask: Ask, each: int) -> Units:
    """Units by card that a container can have as far as the kubelet goes.

    Of percent it must offer as many as are asked for; what units they stand for it does not know.
    """
    counts, cards = ask.facts.count(ask.offered), ask.facts.cards
    if ask.percent:
        return {uuid: card.size_units if counts[uuid] >= each else 0 for uuid, card in cards.items()}
    return {uuid: counts[uuid] for uuid in cards}


def _pick(ask: Ask, cards: Collection[str]) -> tuple[str, ...]:
    """Take as many IDs on each card, those that must be in first."""
    each = ask.size // len(cards)
    answer: list[str] = []
    for uuid in cards:
        mine = [text for text in ask.facts.ids_on(uuid, percent=ask.percent) if text in ask.offered]
        mine.sort(key=lambda text: text not in ask.fixed)
        answer.extend(mine[:each])
    return tuple(answer)
