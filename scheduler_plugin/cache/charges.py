"""The accounting rules: which pods count on a node beyond its published words, and on which cards.

Each rule is one small method of `ChargeRules`, so that a test can disable any of them and show that it is
needed. All rules are pure; time is an argument.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from allocator.cards import CardAmounts
from allocator.podcards import ByPosition, charged_compute, charged_units
from allocator.records import Assignment
from allocator.request import PodRequest
from scheduler_plugin.cache.amounts import NOTHING, Amounts, sum_amounts
from scheduler_plugin.cache.claim_charges import AllocatedClaim, ClaimTombstone, sum_shares
from scheduler_plugin.cache.pods import PodRecord

TOMBSTONE_S = 30.0
"""How long a vanished pod counts at most when its node says nothing."""


@dataclass(slots=True)
class AssumedPod:
    """A pod whose Binding is under way, or was accepted but has not appeared in the watch yet.

    Attributes:
        pod: The version of the pod that the Binding names.
        assigned: Cards of the Binding, None if the node publishes no UUIDs.
        awaits_claim: True while the pod's claim is being written, which changes the pod before its Binding.
    """

    pod: PodRecord
    node: str
    assigned: Assignment | None
    awaits_claim: bool = False

    def is_same_request(self, pod: PodRecord) -> bool:
        """Tell whether a later version of the unbound pod differs only in what a scheduler writes of it.

        kube-scheduler patches the status of a pod that it is about to bind, as with the nominated node.
        """
        known = self.pod
        version, nominated = known.resource_version, known.nominated
        return msgspec.structs.replace(pod, resource_version=version, nominated=nominated) == known

    def record_claim(self, version: str) -> None:
        """Note that the pod's status names its claim, from this resourceVersion on."""
        request = self.pod.request and replace(self.pod.request, claimed=True)
        self.pod = msgspec.structs.replace(self.pod, resource_version=version, request=request)
        self.awaits_claim = False

    def counts_as(self, bound: PodRecord) -> bool:
        """Tell whether the pod, seen bound, counts on the node exactly as it did while it was assumed."""
        pod = self.pod
        counted = (self.node, pod.charged, self.assigned, pod.amounts)
        return (bound.node, bound.charged, bound.assigned, bound.amounts) == counted


class Charge(NamedTuple):
    """Units that a pod has on a node and that the node's words may not show yet."""

    uid: str
    request: PodRequest
    assigned: Assignment | None


@dataclass(slots=True)
class Tombstone:
    """A charge of a pod that vanished at `version`, before its node accounted it; it ends at `until_s`."""

    charge: Charge
    version: int
    until_s: float


class ChargedCards(NamedTuple):
    """Cards that a charge counts on, and the inputs that this was computed from.

    Attributes:
        uuids: The node's cards at that time, see `NodeRecord`.
        units: By card position; None if the cards do not agree with the charge.
    """

    charge: Charge
    uuids: tuple[str, ...]
    sizes: tuple[int, ...]
    units: Mapping[int, int] | None

    def follows_from(self, charge: Charge, record: "NodeRecord") -> bool:
        """Return True if the inputs are still the same; they are immutable, so identity suffices."""
        same_charge = self.charge.request is charge.request and self.charge.assigned is charge.assigned
        return same_charge and self.uuids is record.uuids and self.sizes is record.sizes


@dataclass(slots=True)
class NodeRecord:
    """The state of one node name. A record outlives the Node while pods are bound to the name.

    Attributes:
        row: Its row in the arrays, -1 while there is no Node object.
        version: resourceVersion of the Node object, 0 while there is none.
        revision: Revision of its words, 0 if there are none.
        seen_version: resourceVersion of the newest pod event that its words take into account, -1 where it is
            not known.
        holds: Units by card position of each pod that the words certainly contain, by UID. The value is None
            where the node does not say how much.
        sizes: Units by card; empty if the words cannot be used.
        used: Units by card as published, see `published_nodes.PublishedNode`.
        uuids: UUIDs by card; empty if the node publishes no inventory.
        indexes: The driver's indexes by card; for people only.
        serves_claims: True if pods get their cards by claims there.
        pods: Bound pods that ask for cards and have not ended, by UID.
        tombstones: Charges of vanished pods, by UID.
        claims: What claims are allocated of its cards, by the claim's UID.
        held_claims: What the claims that the words certainly contain have by card position, by UID.
        claim_tombstones: What claims had that vanished before the words contained them, by UID and version.
        charged_cards: Cards computed for the current charges, by UID of the pod.
        capacity: What the Node offers to pods.
        requested: What its bound pods of any kind request.
    """

    name: str
    row: int = -1
    version: int = 0
    revision: int = 0
    seen_version: int = -1
    holds: Mapping[str, ByPosition | None] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    serves_claims: bool = False
    pods: dict[str, PodRecord] = field(default_factory=dict)
    assumed: dict[str, AssumedPod] = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    claims: dict[str, AllocatedClaim] = field(default_factory=dict)
    held_claims: Mapping[str, Mapping[int, CardAmounts]] = field(default_factory=dict)
    claim_tombstones: dict[tuple[str, int], ClaimTombstone] = field(default_factory=dict)
    charged_cards: dict[str, ChargedCards] = field(default_factory=dict)
    capacity: Amounts = NOTHING
    requested: Amounts = NOTHING

    def get_card_number(self, card: int) -> int:
        """Return the driver's number of a card, else its position."""
        return self.indexes[card] if self.indexes else card

    def name_card(self, number: int, uuid: str) -> str:
        """Name a card by its number, or by its UUID where others have the same number."""
        return uuid if self.indexes.count(number) > 1 else str(number)

    def count_requests(self, pod: PodRecord, times: int) -> None:
        """Add `times` times what a bound pod requests; -1 subtracts it."""
        self.requested = self.requested.add(pod.amounts, times)

    def list_assumed_pods(self) -> list[PodRecord]:
        """List the assumed pods that are not seen bound yet."""
        if not self.assumed:
            return []
        return [assumed.pod for uid, assumed in self.assumed.items() if uid not in self.pods]

    @property
    def in_use(self) -> Amounts:
        return sum_amounts((pod.amounts for pod in self.list_assumed_pods()), self.requested)

    @property
    def left(self) -> Amounts:
        """What kube-scheduler has left of the node; less than 0 where more is requested than offered.

        GPU memory is one sum for all cards. A pod on an unhealthy card, whose units the kubelet does not
        offer any more, still counts against the units of the other cards.
        """
        return self.capacity.subtract(self.in_use)

    def find_missing(self, claim: AllocatedClaim) -> dict[int, CardAmounts]:
        """Find what the words do not contain of a claim, by card position.

        A claim may have been allocated anew while the words still contain its previous allocation.
        """
        held = self.held_claims.get(claim.uid, {})
        missing = {}
        for card, (units, compute) in sum_shares(claim.shares, self.uuids, self.sizes).items():
            held_units, held_compute = held.get(card, (0, 0))
            if units > held_units or compute > held_compute:
                missing[card] = max(0, units - held_units), max(0, compute - held_compute)
        return missing

    def clear_published(self) -> None:
        self.seen_version, self.holds, self.held_claims = -1, {}, {}
        self.sizes = self.used = ()
        self.uuids = ()
        self.indexes = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost by forgetting the name."""
        return self.row < 0 and not (
            self.pods
            or self.assumed
            or self.tombstones
            or self.claims
            or self.claim_tombstones
            or self.requested.pods
        )


class ChargeRules:
    """The rules of "never under-count", one method each.

    Invariant: on every card, words plus charges are at least what the kubelet has given out, plus what it
    will still give to pods that are bound by now.
    """

    def is_confirmed(self, record: NodeRecord, uid: str) -> bool:
        """A pod is confirmed by its UID in the node's own `holds`, and by nothing else."""
        return uid in record.holds

    def charges_of_bound(self, record: NodeRecord) -> Iterator[Charge]:
        """Charge a bound pod until its node accounts it."""
        for uid, pod in record.pods.items():
            if pod.charged is not None and not self.is_confirmed(record, uid):
                yield Charge(uid, pod.charged, pod.assigned)

    def charges_of_assumed(self, record: NodeRecord) -> Iterator[Charge]:
        """Charge an assumed pod, from before its Binding is sent until it is seen bound."""
        for uid, assumed in record.assumed.items():
            confirmed = self.is_confirmed(record, uid)
            if assumed.pod.charged is not None and uid not in record.pods and not confirmed:
                yield Charge(uid, assumed.pod.charged, assumed.assigned)

    def charges_of_vanished(self, record: NodeRecord) -> Iterator[Charge]:
        """Charge a pod that vanished before its node accounted for it, until its tombstone ends."""
        for tombstone in record.tombstones.values():
            yield tombstone.charge

    def charges_of_claims(self, record: NodeRecord) -> Iterator[AllocatedClaim]:
        """Give claims, which count from allocation until the node's words contain them."""
        yield from record.claims.values()
        for tombstone in record.claim_tombstones.values():
            yield tombstone.claim

    def needs_tombstone(self, record: NodeRecord, uid: str, version: int) -> bool:
        """Return True if the kubelet may have admitted a pod that vanished unaccounted at `version`."""
        return not self.is_confirmed(record, uid) and record.seen_version < version

    def is_tombstone_over(self, record: NodeRecord, tombstone: Tombstone, now: float) -> bool:
        """Tell whether the words take the pod's end into account, or the tombstone's time is over."""
        return record.seen_version >= tombstone.version or now >= tombstone.until_s

    def is_claim_over(self, record: NodeRecord, tombstone: ClaimTombstone, now: float) -> bool:
        """Tell whether the words contain all of a claim or have seen its pods end, or its time is over."""
        claim = tombstone.claim
        if now >= tombstone.until_s or (claim.uid in record.held_claims and not record.find_missing(claim)):
            return True
        return all(record.seen_version >= end for end in tombstone.ends.values())

    def keeps_charges_without_node(self) -> bool:
        """Whether charges outlive the Node object, which may be created again while the kubelet runs on."""
        return True

    def is_binding_stale(self, assumed: AssumedPod, pod: PodRecord) -> bool:
        """Return True if an unbound pod has changed: its Binding will be refused.

        A change of its status alone is none: a Binding that is refused for it is sent once more.
        """
        is_newer = not pod.node and pod.version > assumed.pod.version and not assumed.awaits_claim
        return is_newer and not assumed.is_same_request(pod)

    def charge_assigned_cards(self, record: NodeRecord, charge: Charge) -> Mapping[int, int] | None:
        """Find the cards that the Binding names, if it agrees with the node's cards and the request.

        Returns:
            Units by card position, or None when the pod may land on any card that has room.
        """
        if charge.assigned is None:
            return None
        known = record.charged_cards.get(charge.uid)
        if known is None or not known.follows_from(charge, record):
            units = charged_units(charge.request, charge.assigned, record.uuids, record.sizes)
            known = ChargedCards(charge, record.uuids, record.sizes, units)
            record.charged_cards[charge.uid] = known
        return known.units

    def charge_every_card(self, record: NodeRecord, charge: Charge) -> dict[int, int]:
        """Charge every card that is large enough; return units by card position."""
        units_by_card: dict[int, int] = {}
        for demand in charge.request.demands:
            for card, size in enumerate(record.sizes):
                units = demand.units_on(size)
                if size >= units:
                    units_by_card[card] = units_by_card.get(card, 0) + units
        return units_by_card

    def charge_compute(self, record: NodeRecord, charge: Charge) -> dict[int, int]:
        """Find the percent of compute that a pod has by card position, on the cards where it has units."""
        request, assigned = charge.request, charge.assigned
        if assigned is not None and self.charge_assigned_cards(record, charge) is not None:
            return charged_compute(request, assigned, record.uuids)
        return request.charge_compute(
            [card for card, size in enumerate(record.sizes) if size >= demand.units_on(size)]
            for demand in request.demands
        )

    def list_charges(self, record: NodeRecord) -> list[Charge]:
        """List everything that counts on the node beyond its words."""
        return [
            *self.charges_of_bound(record),
            *self.charges_of_assumed(record),
            *self.charges_of_vanished(record),
        ]

    def sum_by_card(self, record: NodeRecord, charges: list[Charge]) -> tuple[list[int], list[int]]:
        """Add up charges. The node serves a pod on its assigned cards and on no others.

        Returns:
            Units, and percent of compute, by card.
        """
        totals, compute = [0] * len(record.sizes), [0] * len(record.sizes)
        for charge in charges:
            assigned = self.charge_assigned_cards(record, charge)
            by_card = self.charge_every_card(record, charge) if assigned is None else assigned
            for card, units in by_card.items():
                totals[card] += units
            if charge.request.asks_compute:
                for card, percent in self.charge_compute(record, charge).items():
                    compute[card] += percent
        for claim in self.charges_of_claims(record):
            for card, (units, percent) in record.find_missing(claim).items():
                totals[card] += units
                compute[card] += percent
        if len(record.charged_cards) > len(charges):
            counted = {charge.uid for charge in charges}
            record.charged_cards = {
                uid: known for uid, known in record.charged_cards.items() if uid in counted
            }
        return totals, compute
