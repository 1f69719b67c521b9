"""Which device IDs a container gets: what GetPreferredAllocation is answered."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from allocator.errors import LedgerError, shown
from allocator.ledger import charges, release
from allocator.ledger.facts import Facts
from allocator.ledger.pods import PodFacts, Units, add, demand_of
from allocator.policy import choose
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
        """Find which container it is for, among the pods that the kubelet has taken up.

        As a rule all but one of them have what they asked for. Else one that lives; a container that starts
        again in a pod that runs comes last.
        """
        asking = [one for one in self.facts.pods.values() if self._may_be_of(one)]
        for one in sorted(asking, key=lambda one: (one.ran, not one.live, one.seen.order)):
            for container in one.pod.request.containers:
                if container.name not in one.has and container.units == self.size:
                    return one, container
        return None

    def _may_be_of(self, one: PodFacts) -> bool:
        if not one.bound or one.pod.request.percent != self.percent:
            return False
        return self.taken_up is None or (one.pod.namespace, one.pod.name) in self.taken_up

    def asker(self) -> tuple[PodFacts, str] | None:
        """Pod and container that ask, None where the kubelet did not say which pods it has taken up."""
        found = self.whose() if self.taken_up is not None else None
        return None if found is None else (found[0], found[1].name)

    def is_expected(self) -> bool:
        """Whether a living pod is known that waits for a container of that size.

        False means that the view of pods is behind the kubelet's, or the pod is not in the API: wait a little
        for the view before the answer. A pod that had something and has nothing in the book now may be over.
        """
        found = self.whose()
        if found is None or found[0].ran or not found[0].live:
            return False
        had = found[0].admitted is not None or bool(found[0].units)
        return not had or bool(found[0].has)

    def wants_list(self) -> bool:
        """Whether a fresh list of pods may say more: nobody said on which cards, or those have no room."""
        found = self.whose()
        chosen = found is not None and _belongs_on(self.facts, *found)
        return not chosen or not self.has_room()

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

    def sick(self) -> list[str]:
        """Unhealthy cards among those where the pod that seems to ask belongs."""
        found = self.whose()
        cards = () if found is None else _belongs_on(self.facts, *found)
        return [uuid for uuid in cards if not self.facts.cards[uuid].healthy]


def prefer(ask: Ask) -> tuple[str, ...]:
    """Choose exactly as many of the offered IDs as are asked for.

    Where the container belongs, or else on the best cards by the card policy: first those that nothing else
    uses. What may be in use is not given out a second time, nor what other bound pods wait for. Only where a
    container belongs it may have what the kubelet offers again of pods that are over and were never seen to
    run: the kubelet drops them before it asks, and writes its book after that.

    Raises:
        LedgerError: no card (or not enough cards) can take the container.
    """
    facts, found = ask.facts, ask.whose()
    one, request, demand = None, PodRequest(()), Demand((), ask.size, 1, ask.percent, ask.size)
    cards, fixed = tuple[str, ...](), tuple(facts.count(ask.fixed))
    if found is not None:
        one, request, demand = found[0], found[0].pod.request, demand_of(found[0].pod.request, found[1].name)
        cards = _belongs_on(facts, *found)
    elif fixed:  # another container of an unknown pod
        one = next((pod for pod in facts.pods.values() if ask.fixed <= pod.all_of(pod.has)), None)
    cards = cards or fixed
    # What this container takes of each card; the demand may be of several containers.
    each = ask.size // demand.cards
    alone = replace(demand, per_card=each, least=each)
    others = [pod for pod in facts.pods.values() if pod is not one]
    gone = [pod for pod in others if cards and pod.over is not None and not pod.ran]
    taken = charges.charged(facts, (pod for pod in others if pod not in gone))
    for pod in gone:
        add(taken, facts.of_containers(ids - ask.offered for ids in pod.book.values()))
    room = _room(ask, one, each, taken)
    needs = {uuid: alone.units_on(card.size_units) for uuid, card in facts.cards.items()}
    if not cards:
        expected = _expected(facts, one)
        for used in (facts.pressure, {}):
            left = {uuid: units - expected[uuid] - used.get(uuid, 0) for uuid, units in room.items()}
            cards = cards or _by_policy(facts, left, request, demand)
    fits = len(cards) == demand.cards and {*fixed} <= {*cards}
    if fits and all(room[uuid] >= needs[uuid] for uuid in cards):
        return _pick(ask, cards, each)
    where = "no card" if demand.cards == 1 else f"not {demand.cards} cards"
    if cards:
        where = f"not {shown(list(cards))}"
    asked = f"{each} percent of it free" if ask.percent else f"{each} free units"
    raise LedgerError(f"{where} has {asked}, by card they have {shown([max(0, n) for n in room.values()])}")


def _belongs_on(facts: Facts, one: PodFacts, container: ContainerRequest) -> tuple[str, ...]:
    """On which cards a container belongs, empty where nobody said.

    Where its demand has devices, else where the node wrote that the pod is, else where the scheduler said.
    """
    demand = demand_of(one.pod.request, container.name)
    for cards in (facts.of_containers(one.sets(demand.containers)), one.remembered or {}):
        if len(cards) == demand.cards and cards.keys() <= facts.cards.keys():
            return tuple(cards)
    return facts.target(one.pod, demand)


def _room(ask: Ask, one: PodFacts | None, each: int, taken: Units) -> Units:
    """Units by card that a container can have beside what others have `taken`.

    The kubelet must offer them, of percent as many as are asked for: what units they stand for it does not
    know. What the kubelet has for the pod that asks counts, what it had does not.
    """
    facts, counts = ask.facts, ask.facts.count(ask.offered)
    if one is not None:
        add(taken, facts.of_containers(ids - ask.offered for ids in one.has.values()))
    room = {}
    for uuid, card in facts.cards.items():
        enough = card.size_units if counts[uuid] >= each else 0
        offered = enough if ask.percent else counts[uuid]
        room[uuid] = min(offered, card.size_units - taken[uuid]) if card.healthy else 0
    return room


def _expected(facts: Facts, but: PodFacts | None) -> Units:
    """Units by card that other bound pods wait for."""
    total: Units = dict.fromkeys(facts.cards, 0)
    for one in facts.pods.values():
        if one is but or one.complete or not one.bound:
            continue
        for uuid, units in (one.pod.assigned_costs or {}).items():
            if uuid in total:
                total[uuid] += max(0, units - one.units.get(uuid, 0))
    return total


def _by_policy(facts: Facts, room: Mapping[str, int], request: PodRequest, demand: Demand) -> tuple[str, ...]:
    """Choose cards by the scheduler's policy, from free units by card; none if it does not fit."""
    cards = [
        replace(card, used_units=card.size_units - max(0, room[uuid])) for uuid, card in facts.cards.items()
    ]
    policy = request.card_policy or facts.policy
    chosen = choose(cards, demand.asked, demand.cards, policy, request.selector)
    return tuple(cards[position].uuid for position in chosen or ())


def _pick(ask: Ask, cards: Collection[str], each: int) -> tuple[str, ...]:
    """Take as many IDs on each card, those that must be in first."""
    answer: list[str] = []
    for uuid in cards:
        mine = [text for text in ask.facts.ids_on(uuid, percent=ask.percent) if text in ask.offered]
        mine.sort(key=lambda text: text not in ask.fixed)
        answer.extend(mine[:each])
    return tuple(answer)
