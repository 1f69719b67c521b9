"""Where pods that are bound and have no devices yet will be served.

The kubelet never says which pod it asks for. Pods whose demands are alike (`shape`) share a pool of targets:
the cards assigned to all of them, less those that the ones already served really got. It does not matter
which of them is asking; the book says a moment later who it was.
"""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from allocator.ledger import charges
from allocator.ledger.facts import Facts, Units, add
from allocator.policy import choose
from allocator.request import Demand, PodRequest

Key = tuple[str, int]
"""A pod's UID and the position of the demand."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demand will be served.

    Attributes:
        units: still to come, by card; every card that could take it where nobody can say.
        on_target: the cards are those of its pool, or where it has something already.
    """

    units: Units
    on_target: bool

    @property
    def cards(self) -> tuple[str, ...]:
        """Their UUIDs."""
        return tuple(self.units)


def shape(request: PodRequest, demand: Demand) -> Hashable:
    """What makes demands interchangeable; the scheduler keeps others of the same size off the node."""
    if request.shared:
        return (tuple((c.kind, c.units) for c in request.containers), request.selector, request.percent)
    return (demand.per_card, demand.cards, request.selector, request.percent)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A demand with a container that the book does not show yet."""

    uid: str
    number: int
    request: PodRequest
    demand: Demand
    target: tuple[str, ...] | None

    @property
    def key(self) -> Key:
        """What names it in `places`."""
        return (self.uid, self.number)


def waiting(facts: Facts) -> list[Waiting]:
    """List what is to be served, in the order in which the kubelet hears of the pods.

    Of a pod that is gone the kubelet may not have heard: it keeps its place as long as its turn.
    """
    found = []
    in_book = {slot.uid for slot in facts.book}
    for bound in facts.queue():
        unheard = not bound.pod.terminal and (bound.pod.key not in facts.held or bound.pod.key in in_book)
        if (bound.live or unheard) and not charges.complete(facts, bound):
            names = {container.name for container in facts.missing(bound)}
            for number, demand in enumerate(bound.pod.request.demands):
                if not names.isdisjoint(demand.containers):
                    target = facts.target(bound.pod, demand)
                    found.append(Waiting(bound.pod.key, number, bound.pod.request, demand, target))
    return found


class Draft:
    """Places under way: targets left in the pools, room left on the cards, what is settled."""

    def __init__(self, facts: Facts, queue: Iterable["Waiting"]) -> None:
        promised = charges.charged(facts)
        self.facts = facts
        self.pools = pools(facts, {shape(one.request, one.demand) for one in queue})
        self.room = {
            uuid: card.size_units - promised[uuid] if card.healthy else 0
            for uuid, card in facts.cards.items()
        }
        self.settled: dict[Key, Place] = {}

    def settle(self, one: Waiting, units: Units, *, on_target: bool) -> None:
        """Serve a demand with so many units on these cards."""
        self.settled[one.key] = Place(units, on_target)
        for uuid, count in units.items():
            self.room[uuid] -= count

    def units(self, one: Waiting, cards: Iterable[str]) -> Units:
        """What a demand takes of these cards."""
        return {uuid: one.demand.units_on(self.facts.cards[uuid].size_units) for uuid in cards}

    def take(self, one: Waiting, target: tuple[str, ...]) -> bool:
        """Serve a demand on a target that its pool has left, if it has room; tells whether."""
        left, units = self.pools[shape(one.request, one.demand)], self.units(one, target)
        if left[target] <= 0 or any(self.room[uuid] < count for uuid, count in units.items()):
            return False
        left[target] -= 1
        self.settle(one, units, on_target=True)
        return True


def _where_it_has_something(draft: Draft, one: Waiting) -> None:
    got = draft.facts.got(one.uid, one.demand.containers)
    if got:
        most = max(got.values())
        units = {uuid: max(0, count - most) for uuid, count in draft.units(one, got).items()}
        draft.settle(one, units, on_target=True)


def _its_own_target(draft: Draft, one: Waiting) -> None:
    if one.target is not None:
        draft.take(one, one.target)


def _a_target_of_its_pool(draft: Draft, one: Waiting) -> None:
    any(draft.take(one, target) for target in sorted(draft.pools[shape(one.request, one.demand)]))


def _by_the_card_policy(draft: Draft, one: Waiting) -> None:
    """A cordon keeps new pods away; who was bound before it may have to go there."""
    for cordoned in (False, True):
        cards = by_policy(draft.facts, draft.room, one.request, one.demand, cordoned=cordoned)
        if cards is not None:
            draft.settle(one, draft.units(one, cards), on_target=False)
            return


def _on_every_card(draft: Draft, one: Waiting) -> None:
    draft.settle(one, draft.facts.eligible(one.request, one.demand), on_target=False)


STEPS = (
    _where_it_has_something,
    _its_own_target,
    _a_target_of_its_pool,
    _by_the_card_policy,
    _on_every_card,
)


def places(facts: Facts) -> dict[Key, Place]:
    """Tell where each waiting demand will be served: the first of `STEPS` that knows."""
    queue = waiting(facts)
    if not queue:
        return {}
    draft = Draft(facts, queue)
    for step in STEPS:
        for one in queue:
            if one.key not in draft.settled:
                step(draft, one)
    return draft.settled


class _Pool:
    """Targets of one shape, each with the pods that it was assigned to, the first bound one first."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        self._of: dict[str, list[tuple[str, ...]]] = {}

    def add(self, uid: str, seen: int, target: tuple[str, ...]) -> None:
        """A pod seen bound as event number `seen` was assigned to a target."""
        insort(self._left.setdefault(target, []), (seen, uid))
        insort(self._of.setdefault(uid, []), target)

    def take(self, uid: str, seen: int, got: tuple[str, ...], since: int) -> None:
        """A pod was served on `got` at event `since`: the target that it took is used up."""
        same = self._left.get(got, ())
        if (seen, uid) in same:
            self._remove(uid, seen, got)
        elif same and same[0][0] <= since:
            first_seen, first = same[0]
            self._remove(first, first_seen, got)
        elif self._of.get(uid):
            self._remove(uid, seen, self._of[uid][0])

    def left(self) -> Counter[tuple[str, ...]]:
        """Count the targets that are left."""
        return Counter({target: len(pods) for target, pods in self._left.items() if pods})

    def _remove(self, uid: str, seen: int, target: tuple[str, ...]) -> None:
        self._left[target].remove((seen, uid))
        self._of[uid].remove(target)


def pools(facts: Facts, kinds: Collection[Hashable]) -> defaultdict[Hashable, Counter[tuple[str, ...]]]:
    """Count the targets that are left by shape: those of all pods less what those served took of them.

    Who got another's target leaves it his own, if the other was bound by then: the scheduler knew nothing of
    it. Who got cards that nobody waited for has used up his own. A pod leaves the pool when its charge ends,
    not before: until then the cards that it got are not free.

    Args:
        facts: what is known.
        kinds: the shapes to count.
    """
    found: defaultdict[Hashable, _Pool] = defaultdict(_Pool)
    mine: dict[str, list[tuple[Hashable, Demand]]] = {}
    for uid, bound in facts.pods.items():
        for demand in bound.pod.request.demands:
            kind = shape(bound.pod.request, demand)
            if kind not in kinds:
                continue
            mine.setdefault(uid, []).append((kind, demand))
            target = facts.target(bound.pod, demand)
            if target is not None:
                found[kind].add(uid, bound.seen.order, target)
    for uid, held in facts.held.items():
        for kind, demand in mine.get(uid, ()):
            alone = held.ids.keys() <= set(demand.containers)
            got = tuple(sorted(held.units if alone else facts.by_card(facts.ids_of(uid, demand.containers))))
            if got:
                found[kind].take(uid, facts.pods[uid].seen.order, got, held.since.order)
    return defaultdict(Counter, {kind: pool.left() for kind, pool in found.items()})


def by_policy(
    facts: Facts, room: Mapping[str, int], request: PodRequest, demand: Demand, *, cordoned: bool = False
) -> tuple[str, ...] | None:
    """Choose cards by the policy that the scheduler uses; None if it does not fit.

    Args:
        facts: the cards.
        room: free units by card.
        request: the pod's.
        demand: one of its demands.
        cordoned: take cordoned cards too.
    """
    cards = [
        replace(
            card,
            used_units=card.size_units - max(0, room.get(uuid, 0)),
            cordoned=card.cordoned and not cordoned,
        )
        for uuid, card in facts.cards.items()
    ]
    policy = request.card_policy or facts.policy
    chosen = choose(cards, demand.asked, demand.cards, policy, request.selector)
    return None if chosen is None else tuple(cards[position].uuid for position in chosen)


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
