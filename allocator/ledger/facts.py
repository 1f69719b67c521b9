"""What the node knows of its cards and pods: values, no conclusions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ids import PERCENT_IDS, SEPARATOR, device_id, percent_id
from allocator.ledger.pods import Pod, PodFacts, Units, add
from allocator.request import WHOLE, Demand, PodRequest


@dataclass(slots=True)
class Facts:
    """All that is known.

    Attributes:
        policy: the cluster's card policy.
        cards: by UUID in word order, `used_units` 0.
        card_of: UUID of the card by device ID, of units and of percent.
        shares: the device IDs of percent.
        pressure: units by card used beyond what is promised.
        pods: by the UID that the kubelet uses; changed by `put`, which puts another in its place, and `drop`.
        version: changes whenever what others than the ledger work with does, see `PodFacts.shows`.
        view: when the newest complete list of pods began, in seconds; None before the first.
        lists: how many complete lists of pods were taken; two may have begun at the same time.
        read: when the book was read last, likewise.
    """

    policy: str
    cards: dict[str, Card] = field(default_factory=dict)
    card_of: dict[str, str] = field(default_factory=dict)
    shares: frozenset[str] = frozenset()
    pressure: Units = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    version: int = 0
    view: float | None = None
    lists: int = 0
    read: float | None = None

    @property
    def behind(self) -> bool:
        """Whether a pod is known, as by the kubelet's book, that no list has shown, and not to be over."""
        return any(not one.bound and one.over is None for one in self.pods.values())

    def install(self, cards: Sequence[Card]) -> None:
        """Take another list of cards, as after one was partitioned anew.

        IDs of cards that are gone count for nobody; those of one that comes back count again.

        Raises:
            LedgerError: a UUID twice.
        """
        by_uuid = {card.uuid: card for card in cards}
        if len(by_uuid) != len(cards):
            raise LedgerError(f"cards {shown([card.uuid for card in cards])}: allowed is every UUID once")
        units = {device_id(card.uuid, slot): card.uuid for card in cards for slot in range(card.size_units)}
        shares = {percent_id(uuid, slot): uuid for uuid in by_uuid for slot in range(PERCENT_IDS)}
        self.cards, self.card_of, self.shares = by_uuid, units | shares, frozenset(shares)
        for one in list(self.pods.values()):
            self.put(replace(one, pod=self.sized(one.pod)))

    def put(self, one: PodFacts) -> None:
        """Know this of a pod from now on, in place of what was known of it."""
        key, before = one.pod.key, self.pods.get(one.pod.key)
        if before is None or before.shows != one.shows:
            self.version += 1
        self.pods[key] = replace(one, units=self.of_pod(one, (*one.ids.values(), *one.given.values())))

    def drop(self, uid: str) -> PodFacts | None:
        """Know nothing of a pod from now on.

        Returns:
            What was known of it, None where nothing was.
        """
        if uid in self.pods:
            self.version += 1
        return self.pods.pop(uid, None)

    def sized(self, pod: Pod) -> Pod:
        """Tell a pod that asks for percent how large the cards are."""
        if not pod.request.percent:
            return pod
        return replace(pod, sizes={uuid: card.size_units for uuid, card in self.cards.items()})

    def count(self, ids: Iterable[str]) -> Units:
        """Count IDs by card, in word order; those of cards that this node has no more are not counted."""
        counts = Counter(map(self.card_of.get, ids))
        return {uuid: counts[uuid] for uuid in self.cards if uuid in counts}

    def by_card(self, ids: Iterable[str]) -> Units:
        """Units by card that IDs stand for together; a share is rounded down."""
        ids = frozenset(ids)
        shares = self.shares & ids
        counts = self.count(ids - shares)
        # Not `ids - self.card_of.keys()`, which goes through all of the node's IDs.
        for text in ids.difference(self.card_of):  # a card may have had more units
            uuid, _, slot = text.partition(SEPARATOR)
            if slot.isdecimal() and uuid in self.cards and self.cards[uuid].size_units:
                add(counts, {uuid: 1})
        for uuid, percent in self.count(shares).items() if shares else ():
            add(counts, {uuid: percent * self.cards[uuid].size_units // WHOLE})
        return counts

    def of_containers(self, sets: Iterable[frozenset[str]]) -> Units:
        """Units by card that the IDs of containers stand for, each ID once, in word order.

        The share of each container is rounded down by itself, as the scheduler counts it, but containers that
        have IDs in common, init's and main's, have one share.
        """
        groups: list[frozenset[str]] = []
        for ids in sets:
            apart = [group for group in groups if group.isdisjoint(ids)]
            groups = [*apart, ids.union(*(group for group in groups if not group.isdisjoint(ids)))]
        total: Units = {}
        for group in groups:
            add(total, self.by_card(group))
        return {uuid: total[uuid] for uuid in self.cards if total.get(uuid)}

    def of_pod(self, one: PodFacts, sets: Iterable[frozenset[str]]) -> Units:
        """Units by card that the IDs of a pod's containers stand for, as the scheduler counts them.

        Where an ordinary init container asks all of them have one share, whichever of its IDs the kubelet
        hands on to whom.
        """
        if one.bound and one.pod.request.shared:
            units = self.by_card(frozenset().union(*sets))
            return {uuid: units[uuid] for uuid in self.cards if units.get(uuid)}
        return self.of_containers(sets)

    def eligible(self, request: PodRequest, demand: Demand) -> Units:
        """Cards that could ever take a demand of this request, with its units there."""
        fitting = [card for card in self.cards.values() if request.selector.admits(card)]
        needs = {card.uuid: demand.units_on(card.size_units) for card in fitting}
        return {uuid: units for uuid, units in needs.items() if units <= self.cards[uuid].size_units}

    def target(self, pod: Pod, demand: Demand) -> tuple[str, ...]:
        """Cards that the scheduler assigned to a demand; none where nobody said, or other cards than ours."""
        costs = pod.assigned_costs
        if pod.assigned is None or costs is None or not costs.keys() <= self.cards.keys():
            return ()
        return tuple(sorted(uuid for uuid, _ in pod.assigned[demand.containers[0]]))
