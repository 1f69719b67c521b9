"""What the node knows of its cards and pods: values, no conclusions."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ids import PERCENT_IDS, device_id, percent_id
from allocator.ledger.pods import Mark, Pod, PodFacts, Units, add
from allocator.records import Assignment
from allocator.request import WHOLE, Demand, PodRequest


@dataclass(slots=True)
class Facts:
    """All that is known.

    Attributes:
        cards: by UUID in word order, `used_units` 0.
        policy: the cluster's card policy.
        card_of: UUID of the card by device ID, of units.
        share_of: the same of percent.
        pressure: units by card used beyond what is promised.
        position: of each card in the words.
        pods: by the UID that the kubelet uses; to change one is to `put` another in its place.
        version: changes whenever what others than the ledger work with does, see `PodFacts.shows`.
        view: when the newest complete list of pods began, None before the first.
        read: the number of events before the book was read last.
    """

    cards: dict[str, Card]
    policy: str
    card_of: dict[str, str] = field(default_factory=dict)
    share_of: dict[str, str] = field(default_factory=dict)
    pressure: Units = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    version: int = 0
    view: Mark | None = None
    read: int = 0

    @classmethod
    def of(cls, cards: Sequence[Card], policy: str) -> "Facts":
        """Begin with cards alone.

        Raises:
            LedgerError: a UUID twice.
        """
        by_uuid = {card.uuid: card for card in cards}
        if len(by_uuid) != len(cards):
            raise LedgerError(f"cards {shown([card.uuid for card in cards])}: allowed is every UUID once")
        facts = cls(by_uuid, policy)
        facts.position = {uuid: number for number, uuid in enumerate(by_uuid)}
        facts.card_of = {text: uuid for uuid in by_uuid for text in facts.ids_on(uuid, percent=False)}
        facts.share_of = {text: uuid for uuid in by_uuid for text in facts.ids_on(uuid, percent=True)}
        return facts

    def install(self, cards: Sequence[Card]) -> None:
        """Take another list of cards, as after one was partitioned anew.

        IDs of cards that are gone count for nobody; those of one that comes back count again.

        Raises:
            LedgerError: a UUID twice.
        """
        fresh = Facts.of(cards, self.policy)
        self.cards, self.position = fresh.cards, fresh.position
        self.card_of, self.share_of = fresh.card_of, fresh.share_of
        for one in list(self.pods.values()):
            self.put(replace(one, pod=self.sized(one.pod)))

    def put(self, one: PodFacts) -> None:
        """Know this of a pod from now on, in place of what was known of it."""
        key, before = one.pod.key, self.pods.get(one.pod.key)
        if before is None or before.shows != one.shows:
            self.version += 1
        self.pods[key] = replace(one, units=self.of_containers((*one.ids.values(), *one.given.values())))

    def sized(self, pod: Pod) -> Pod:
        """Tell a pod that asks for percent how large the cards are."""
        if not pod.request.percent:
            return pod
        return replace(pod, sizes={uuid: card.size_units for uuid, card in self.cards.items()})

    def ids_on(self, uuid: str, *, percent: bool) -> list[str]:
        """All device IDs of one card, of units or of percent."""
        if percent:
            return [percent_id(uuid, slot) for slot in range(PERCENT_IDS)]
        return [device_id(uuid, slot) for slot in range(self.cards[uuid].size_units)]

    def known(self, ids: Collection[str]) -> frozenset[str]:
        """Those of the IDs that are of this node's cards."""
        found = frozenset(ids)
        return (found & self.card_of.keys()) | (found & self.share_of.keys())

    def is_share(self, ids: Collection[str]) -> bool:
        """Whether percent are among the IDs."""
        return not self.share_of.keys().isdisjoint(ids)

    def by_card(self, ids: Collection[str]) -> Units:
        """Units by card that IDs stand for together, in word order; a share is rounded down.

        IDs of cards that this node has no more stand for nothing.
        """
        counts = Counter(map(self.card_of.get, ids))
        if counts.pop(None, 0):
            percent = Counter(self.share_of[text] for text in ids if text in self.share_of)
            counts.update({uuid: n * self.cards[uuid].size_units // WHOLE for uuid, n in percent.items()})
        if len(counts) <= 1:
            return {uuid: units for uuid, units in counts.items() if uuid is not None}
        return {uuid: counts[uuid] for uuid in self.cards if uuid in counts}

    def count(self, ids: Iterable[str]) -> Counter[str]:
        """Count IDs by card, of units or of percent, in word order; unknown ones are not counted."""
        found = (self.card_of.get(text) or self.share_of.get(text) for text in ids)
        counts = Counter(uuid for uuid in found if uuid is not None)
        return Counter({uuid: counts[uuid] for uuid in self.cards if uuid in counts})

    def of_containers(self, sets: Iterable[frozenset[str]]) -> Units:
        """Units by card that the IDs of containers stand for, each ID once.

        The share of each container is rounded down by itself, as the scheduler counts it, but containers that
        have IDs in common, init's and main's, have one share.
        """
        found = [ids for ids in sets if ids]
        union = frozenset().union(*found)
        if not self.is_share(union):
            return self.by_card(union)
        total: Units = {}
        for ids in _connected(found):
            add(total, self.by_card(ids))
        return total

    def eligible(self, request: PodRequest, demand: Demand) -> Units:
        """Cards that could ever take a demand of this request, with its units there."""
        needs = {uuid: demand.units_on(card.size_units) for uuid, card in self.cards.items()}
        return {
            uuid: needs[uuid]
            for uuid, card in self.cards.items()
            if card.size_units >= needs[uuid] and request.selector.admits(card)
        }

    def target(self, pod: Pod, demand: Demand) -> tuple[str, ...]:
        """Cards that the scheduler assigned to a demand; none where nobody said, or other cards than ours."""
        costs = pod.assigned_costs
        if pod.assigned is None or costs is None or not costs.keys() <= self.cards.keys():
            return ()
        return tuple(sorted(uuid for uuid, _ in pod.assigned[demand.containers[0]]))

    def assignment(self, one: PodFacts) -> Assignment | None:
        """What each container of a pod got; None where a card is not known."""
        request = one.pod.request
        shares: dict[str, tuple[tuple[str, int], ...]] = {}
        for demand in request.demands:
            cards = self.of_containers(one.sets(demand.containers))
            if len(cards) != demand.cards:
                return None
            for container in request.containers:
                if container.name in demand.containers:
                    shares[container.name] = tuple(
                        (uuid, request.units_of(container, self.cards[uuid].size_units)) for uuid in cards
                    )
        return shares


def _connected(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Unite the sets that have elements in common."""
    groups: list[frozenset[str]] = []
    for ids in sets:
        touching = [group for group in groups if not group.isdisjoint(ids)]
        groups = [group for group in groups if group.isdisjoint(ids)]
        groups.append(ids.union(*touching))
    return groups
