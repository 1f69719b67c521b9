"""Which device IDs a container gets: what GetPreferredAllocation is answered, and an Allocate checked by."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from allocator.cards import Card
from allocator.errors import LedgerError, PolicyError, shown
from allocator.ledger import charges
from allocator.ledger.facts import Facts
from allocator.ledger.pods import PodFacts, Units, add
from allocator.names import DEFAULT_CARD_POLICY
from allocator.place import choose_each
from allocator.request import WHOLE, ContainerRequest, Demand, PodRequest


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
        again in a pod that runs comes last. Of several such pods none: what the others run with is in use.
        """
        waiting = [
            (one, container)
            for one in self.facts.pods.values()
            for container in one.pod.request.containers
            # The size comes first: it rules most pods out, and the kubelet waits.
            if container.units == self.size and container.name not in one.has and self._may_be_of(one)
        ]
        waiting.sort(key=lambda found: (found[0].ran, not found[0].live))
        if not waiting or (waiting[0][0].ran and waiting[0][0] is not waiting[-1][0]):
            return None
        return waiting[0]

    def _may_be_of(self, one: PodFacts) -> bool:
        if one.pod.request.percent != self.percent:
            return False
        return self.taken_up is None or (one.pod.namespace, one.pod.name) in self.taken_up

    def belongs(self) -> tuple[str, ...]:
        """On which cards the container belongs, none where nobody said.

        Where its demand has devices, else where the scheduler said.
        """
        facts, found = self.facts, self.whose()
        if found is not None:
            one, demand = found[0], found[0].pod.request.demand_of(found[1].name)
            cards = facts.of_containers(one.sets(demand.containers))
            if target := tuple(cards) or facts.target(one.pod, demand):
                return target
        return tuple(facts.count(self.fixed))

    def is_expected(self) -> bool:
        """Whether a living pod is known that waits for a container of that size.

        Else the view of pods is behind the kubelet's, or the pod is not in the API. Where the container had
        devices before, or the pod was admitted, another one may be asking, perhaps under its name.
        """
        found = self.whose()
        if found is None or not found[0].live:
            return False
        one, container = found
        return not (one.admitted or one.ran or container.name in one.ids)

    def is_clear(self) -> bool:
        """Whether a list of pods can say no more of who asks, of where that belongs, and of room there."""
        return self.is_expected() and not self.facts.behind and bool(self.belongs()) and self.has_room()

    def is_crowded(self) -> bool:
        """Whether there are pods that are over: their containers may still run."""
        return any(one.over is not None for one in self.facts.pods.values())

    def has_room(self) -> bool:
        """Whether some card can take the container."""
        try:
            self.answer()
        except LedgerError:
            return False
        return True

    def answer(self) -> tuple[str, ...]:
        """Choose exactly as many of the offered IDs as are asked for.

        Where the container belongs, or else on the best cards by the card policy: first those that nothing
        else uses.

        Raises:
            LedgerError: no card (or not enough cards) can take the container.
        """
        facts, found, cards = self.facts, self.whose(), self.belongs()
        one, request, demand = None, PodRequest(()), Demand((), self.size, 1, self.percent, self.size)
        if found is not None:
            one, request = found[0], found[0].pod.request
            demand = request.demand_of(found[1].name)
        elif self.fixed:  # another container of an unknown pod
            pods = facts.pods.values()
            one = next((pod for pod in pods if self.fixed <= frozenset().union(*pod.has.values())), None)
        # What this container takes of each card; the demand may be of several containers.
        each = self.size // demand.cards
        alone = replace(demand, per_card=each, least=each)
        room = self._room(one, each, belongs=bool(cards))
        cards = cards or self._by_policy(one, room, request, demand)
        fits = len(cards) == demand.cards and facts.count(self.fixed).keys() <= {*cards}
        if fits and all(room[uuid] >= self._need(one, alone, uuid) for uuid in cards):
            return tuple(text for uuid in cards for text in self._on(uuid)[:each])
        where = "no card" if demand.cards == 1 else f"not {demand.cards} cards"
        if cards:
            where = f"not {shown(list(cards))}"
        asked = f"{each} percent of it free" if self.percent else f"{each} free units"
        raise LedgerError(
            f"{where} has {asked}, by card they have {shown([max(0, n) for n in room.values()])}"
        )

    def _need(self, one: PodFacts | None, alone: Demand, uuid: str) -> int:
        """Units that a container adds on a card to what its pod has there; see `Facts.of_pod`."""
        size = self.facts.cards[uuid].size_units
        units = alone.units_on(size)
        if one is None or not self.percent or units > size or not (one.bound and one.pod.request.shared):
            return units
        own = self.facts.count(frozenset().union(*one.has.values()) - self.offered).get(uuid, 0)
        return (own + alone.per_card) * size // WHOLE - own * size // WHOLE

    def _room(self, one: PodFacts | None, each: int, *, belongs: bool) -> Units:
        """Units by card that the container can have beside what others have or may have.

        The kubelet must offer them, of percent as many as are asked for: what units they stand for it does
        not know. What it has for the pod that asks counts, what it had does not. Only where a container
        `belongs` it may have what the kubelet offers again of pods that are over and not known to run: it
        drops them before it asks, and writes its book after that.
        """
        facts, counts = self.facts, self.facts.count(self.offered)
        taken: Units = dict.fromkeys(facts.cards, 0)
        for pod in facts.pods.values():
            gone = pod.over is not None and not pod.ran
            if pod is one or (belongs and gone):
                has = pod.has if pod is one else pod.book
                add(taken, facts.of_pod(pod, [ids - self.offered for ids in has.values()]))
            else:
                add(taken, charges.of_pod(facts, pod))
        room = {}
        for uuid, card in facts.cards.items():
            offered = counts.get(uuid, 0)
            if self.percent:
                offered = card.size_units if offered >= each else 0
            room[uuid] = min(offered, card.size_units - taken[uuid]) if card.healthy else 0
        return room

    def _by_policy(
        self, one: PodFacts | None, room: Units, request: PodRequest, demand: Demand
    ) -> tuple[str, ...]:
        """Choose cards by the scheduler's policy beside what other bound pods wait for; none if none fit.

        Of the cards that leave the pod's other containers room, as the kubelet asks for those later.
        """
        facts, expected = self.facts, Units()
        has = {} if one is None else one.has
        later = [
            other
            for other in request.demands
            if other is not demand and has.keys().isdisjoint(other.containers)
        ]
        for pod in facts.pods.values():
            if pod is not one and pod.bound and not pod.complete:
                add(expected, pod.pod.assigned_costs or {})
        for used in (facts.pressure, {}):
            cards = [
                replace(
                    card,
                    used_units=card.size_units
                    - max(0, room[uuid] - expected.get(uuid, 0) - used.get(uuid, 0)),
                )
                for uuid, card in facts.cards.items()
            ]
            for demands in ((demand, *later), (demand,)) if later else ((demand,),):
                chosen = self._chosen(cards, demands, request)
                if chosen is not None:
                    return tuple(cards[position].uuid for position in chosen[0])
        return ()

    def _chosen(
        self, cards: Sequence[Card], demands: Iterable[Demand], request: PodRequest
    ) -> list[tuple[int, ...]] | None:
        """Ask the pod's policy, or the node's; where its costs are none the default: the pod is bound."""
        asked = [(each.asked, each.cards) for each in demands]
        policy = request.card_policy or self.facts.policy
        try:
            return choose_each(cards, asked, policy, request.selector)
        except PolicyError:
            return choose_each(cards, asked, DEFAULT_CARD_POLICY, request.selector)

    def _on(self, uuid: str) -> list[str]:
        """The IDs that are offered of one card, those that must be in the answer first."""
        mine = (text for text in self.offered if self.facts.card_of.get(text) == uuid)
        return sorted(mine, key=lambda text: (text not in self.fixed, len(text), text))
