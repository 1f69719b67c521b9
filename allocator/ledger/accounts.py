"""Accounts of a node: its cards and the account of every pod. Values, no conclusions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ids import PERCENT_IDS, SEPARATOR, device_id, percent_id
from allocator.ledger.pods import Pod, PodAccount, Units, add
from allocator.request import WHOLE, Demand, PodRequest


@dataclass(slots=True)
class NodeAccounts:
    """The state of the ledger: pods, cards and checkpoint of one node.

    Attributes:
        compute_limit: percent of its compute that each card gives away in all.
        cards: by UUID in word order, `used_units` 0.
        card_of: UUID of the card by device ID, of units and of percent.
        percent_ids: device IDs that stand for percent of a card.
        unaccounted_use: units by card in use beyond what is allocated, see `Ledger.set_unaccounted_use`.
        pods: accounts by the UID that the kubelet uses; changed by `replace_pod` and `remove_pod`.
        version: changes whenever what others than the ledger work with does, see `PodAccount.change_key`.
        listed_at_s: start of the newest complete list of pods, in seconds; None before the first.
        list_count: complete lists of pods so far; two may have begun at the same time.
        checkpoint_read_at_s: when the checkpoint was read last, in seconds; None before.
    """

    policy: str
    compute_limit: int = WHOLE
    cards: dict[str, Card] = field(default_factory=dict)
    card_of: dict[str, str] = field(default_factory=dict)
    percent_ids: frozenset[str] = frozenset()
    unaccounted_use: Units = field(default_factory=dict)
    pods: dict[str, PodAccount] = field(default_factory=dict)
    version: int = 0
    listed_at_s: float | None = None
    list_count: int = 0
    checkpoint_read_at_s: float | None = None

    @property
    def has_unlisted_pods(self) -> bool:
        """True while a pod is known, that no list has shown and that has not ended."""
        return any(not account.bound and account.ended_at_s is None for account in self.pods.values())

    def set_cards(self, cards: Sequence[Card]) -> None:
        """Replace the list of cards, as after a card was partitioned anew.

        IDs of cards that are gone are not counted; if a card comes back, its IDs count again.

        Raises:
            LedgerError: a UUID twice.
        """
        by_uuid = {card.uuid: replace(card, compute_limit=self.compute_limit) for card in cards}
        if len(by_uuid) != len(cards):
            raise LedgerError(f"cards {shown([card.uuid for card in cards])}; allowed: every UUID once")
        units = {device_id(card.uuid, slot): card.uuid for card in cards for slot in range(card.size_units)}
        shares = {percent_id(uuid, slot): uuid for uuid in by_uuid for slot in range(PERCENT_IDS)}
        self.cards, self.card_of, self.percent_ids = by_uuid, units | shares, frozenset(shares)
        for account in list(self.pods.values()):
            self.replace_pod(replace(account, pod=self.with_sizes(account.pod)))

    def replace_pod(self, account: PodAccount) -> None:
        """Store the account of a pod in place of the one before."""
        key, before = account.pod.key, self.pods.get(account.pod.key)
        if before is None or before.change_key != account.change_key:
            self.version += 1
        units = self.units_of_pod(account, account.charged_ids)
        self.pods[key] = account if units == account.units else replace(account, units=units)

    def remove_pod(self, uid: str) -> PodAccount | None:
        if uid in self.pods:
            self.version += 1
        return self.pods.pop(uid, None)

    def with_sizes(self, pod: Pod) -> Pod:
        """Add the sizes of this node's cards to a pod that asks for percent; return other pods unchanged."""
        if not pod.request.percent:
            return pod
        return replace(pod, sizes={uuid: card.size_units for uuid, card in self.cards.items()})

    def count_ids(self, ids: Iterable[str]) -> Units:
        """Count IDs by card, in word order; those of cards that this node has no more are not counted."""
        counts = Counter(map(self.card_of.get, ids))
        return {uuid: counts[uuid] for uuid in self.cards if uuid in counts}

    def units_by_card(self, ids: Iterable[str]) -> Units:
        """Add up the units by card that IDs stand for; percent of a card are rounded down."""
        ids = frozenset(ids)
        shares = self.percent_ids & ids
        counts = self.count_ids(ids - shares)
        # Not `ids - self.card_of.keys()`, which goes through all of the node's IDs.
        for text in ids.difference(self.card_of):  # a card may have had more units
            uuid, _, slot = text.partition(SEPARATOR)
            if slot.isdecimal() and uuid in self.cards and self.cards[uuid].size_units:
                add(counts, {uuid: 1})
        for uuid, percent in self.count_ids(shares).items() if shares else ():
            add(counts, {uuid: percent * self.cards[uuid].size_units // WHOLE})
        return counts

    def units_of_containers(self, sets: Iterable[frozenset[str]]) -> Units:
        """Add up units by card of the IDs of containers, each ID once, in word order.

        The share of each container is rounded down by itself, as the scheduler counts it. An init and a main
        container that have IDs in common have one share.
        """
        groups: list[frozenset[str]] = []
        for ids in sets:
            apart = [group for group in groups if group.isdisjoint(ids)]
            groups = [*apart, ids.union(*(group for group in groups if not group.isdisjoint(ids)))]
        total: Units = {}
        for group in groups:
            add(total, self.units_by_card(group))
        return {uuid: total[uuid] for uuid in self.cards if total.get(uuid)}

    def units_of_pod(self, account: PodAccount, sets: Iterable[frozenset[str]]) -> Units:
        """Add up units by card of the IDs of a pod's containers, as the scheduler counts them.

        Where an ordinary init container asks all of them have one share, whichever of its IDs the kubelet
        hands on to whom.
        """
        sets = tuple(sets)
        if len(sets) == 1 or (account.bound and account.pod.request.shared):
            units = self.units_by_card(frozenset().union(*sets))
            return {uuid: units[uuid] for uuid in self.cards if units.get(uuid)}
        return self.units_of_containers(sets)

    def cards_of(self, sets: Iterable[frozenset[str]]) -> frozenset[str]:
        """Find the cards of this node that have IDs among these."""
        return frozenset(text.partition(SEPARATOR)[0] for ids in sets for text in ids) & self.cards.keys()

    def eligible_cards(self, request: PodRequest, demand: Demand) -> Units:
        """Find the cards that could ever take a demand, with the units that it takes there."""
        fitting = [card for card in self.cards.values() if request.selector.admits(card)]
        needs = {card.uuid: demand.units_on(card.size_units) for card in fitting}
        return {uuid: units for uuid, units in needs.items() if units <= self.cards[uuid].size_units}

    def assigned_cards(self, pod: Pod, demand: Demand) -> tuple[str, ...]:
        """Return the cards that the scheduler assigned to a demand; none if it did not."""
        costs = pod.assigned_costs
        if pod.assigned is None or costs is None or not costs.keys() <= self.cards.keys():
            return ()
        return tuple(sorted(uuid for uuid, _ in pod.assigned[demand.containers[0]]))

    def assigned_compute(self, pod: Pod) -> Units:
        """Return the percent of compute by card that the scheduler assigned to a pod; empty if it did not."""
        return pod.request.charge_compute(self.assigned_cards(pod, demand) for demand in pod.request.demands)
