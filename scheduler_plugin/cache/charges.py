"""The accounting rules: which pods count on a node beyond its published words, and on which cards.

Each rule is one small method of `ChargeRules`, so that a test can disable any of them and show that it is
needed. All rules are pure; time is an argument.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from allocator.errors import QuantityError
from allocator.podcards import ByPosition, charged_units
from allocator.quantity import parse_bytes
from allocator.records import Assignment
from allocator.request import PodRequest
from scheduler_plugin.cache.claim_charges import AllocatedClaim, ClaimTombstone, HeldClaims
from scheduler_plugin.cache.pods import PodRecord

TOMBSTONE_S = 30.0
"""How long a vanished pod counts at most when its node says nothing."""


@dataclass(slots=True)
class AssumedPod:
    """A pod whose Binding is under way, or was accepted but has not appeared in the watch yet.

    Attributes:
        pod: The version of the pod that the Binding names.
        node: Target of the Binding.
        assigned: Cards of the Binding, None if the node publishes no UUIDs.
        awaits_claim: True while the pod's claim is being written, which changes the pod before its Binding.
    """

    pod: PodRecord
    node: str
    assigned: Assignment | None
    awaits_claim: bool = False

    def counts_as(self, bound: PodRecord) -> bool:
        """Tell whether the pod, seen bound, counts on the node exactly as it did while it was assumed."""
        pod = self.pod
        return (bound.node, bound.charged, bound.assigned) == (self.node, pod.charged, self.assigned) and (
            bound.cpu_milli,
            bound.memory_bytes,
            bound.other_resources,
        ) == (pod.cpu_milli, pod.memory_bytes, pod.other_resources)


class Charge(NamedTuple):
    """Units that a pod has on a node and that the node's words may not show yet."""

    uid: str
    request: PodRequest
    assigned: Assignment | None


@dataclass(slots=True)
class Tombstone:
    """A charge of a bound pod that vanished before its node accounted it.

    Attributes:
        charge: What the pod asked for, and where.
        version: resourceVersion at which it vanished.
        until_s: When the charge ends in any case, in seconds.
    """

    charge: Charge
    version: int
    until_s: float


class ChargedCards(NamedTuple):
    """Cards that a charge counts on, and the inputs that this was computed from.

    Attributes:
        uuids: The node's cards at that time, see `NodeRecord`.
        sizes: Their sizes at that time.
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
    """NodeRecord is the state of one node name. A record outlives the Node while pods are bound to the name.

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
        assumed: Assumed pods, by UID.
        tombstones: Charges of vanished pods, by UID.
        claims: What claims are allocated of its cards, by the claim's UID.
        held_claims: Units by card position of the claims that the words certainly contain, by UID.
        claim_tombstones: What claims had that vanished before the words contained them, by UID and version.
        charged_cards: Cards computed for the current charges, by UID of the pod.
        kubelet_sums: Units and percent that its kubelet offers over all cards, None if the Node does not say.
        cpu_milli: Thousandths of a core that its bound pods of any kind request.
        memory_bytes: Bytes of host memory that they request.
        other_resources: Amounts of further resources that they request, by name.
        allocatable: Amounts of further resources that the Node has, as written there.
        pod_count: How many bound pods of any kind it has.
        pod_capacity: How many it takes in all, 0 if the Node does not say.
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
    held_claims: Mapping[str, ByPosition] = field(default_factory=dict)
    claim_tombstones: dict[tuple[str, int], ClaimTombstone] = field(default_factory=dict)
    charged_cards: dict[str, ChargedCards] = field(default_factory=dict)
    kubelet_sums: tuple[int | None, int | None] = (None, None)
    cpu_milli: int = 0
    memory_bytes: int = 0
    other_resources: dict[str, int] = field(default_factory=dict)
    allocatable: tuple[tuple[str, str | int], ...] = ()
    pod_count: int = 0
    pod_capacity: int = 0

    def count_requests(self, pod: PodRecord, times: int) -> None:
        """Add `times` times what a bound pod requests; -1 subtracts it."""
        self.pod_count += times
        self.cpu_milli += times * pod.cpu_milli
        self.memory_bytes += times * pod.memory_bytes
        for name, amount in pod.other_resources:
            self.other_resources[name] = self.other_resources.get(name, 0) + times * amount
            if not self.other_resources[name]:
                del self.other_resources[name]

    def get_other_amounts(self, resource: str) -> tuple[int, int]:
        """Return what bound pods request of a further resource, and how much the Node has of it."""
        return self.other_resources.get(resource, 0), read_amount(dict(self.allocatable).get(resource, 0))

    def read_held_claims(self) -> HeldClaims:
        return HeldClaims(self.held_claims, self.uuids, self.sizes, self.seen_version)

    def clear_published(self) -> None:
        self.seen_version, self.holds = -1, {}
        self.held_claims = {}
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
            or self.pod_count
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

    def charges_of_claims(self, record: NodeRecord) -> Iterator[tuple[int, int]]:
        """Charge a claim from its allocation until the node's words contain it, whoever allocated it.

        Returns:
            Card positions with units.
        """
        if not (record.claims or record.claim_tombstones):
            return
        held = record.read_held_claims()
        for claim in record.claims.values():
            yield from held.find_missing(claim).items()
        for tombstone in record.claim_tombstones.values():
            yield from held.find_missing(tombstone.claim).items()

    def needs_tombstone(self, record: NodeRecord, uid: str, version: int) -> bool:
        """Return True if the kubelet may have admitted a pod that vanished unaccounted at `version`."""
        return not self.is_confirmed(record, uid) and record.seen_version < version

    def is_tombstone_over(self, record: NodeRecord, tombstone: Tombstone, now: float) -> bool:
        """Tell whether the words take the pod's end into account, or the tombstone's time is over."""
        return record.seen_version >= tombstone.version or now >= tombstone.until_s

    def keeps_charges_without_node(self) -> bool:
        """Whether charges outlive the Node object, which may be created again while the kubelet runs on."""
        return True

    def is_binding_stale(self, assumed: AssumedPod, pod: PodRecord) -> bool:
        """Return True if an unbound pod has changed: its Binding's resourceVersion will be refused."""
        return not pod.node and pod.version > assumed.pod.version and not assumed.awaits_claim

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

    def list_charges(self, record: NodeRecord) -> list[Charge]:
        """List everything that counts on the node beyond its words."""
        return [
            *self.charges_of_bound(record),
            *self.charges_of_assumed(record),
            *self.charges_of_vanished(record),
        ]

    def sum_by_card(self, record: NodeRecord, charges: list[Charge]) -> list[int]:
        """Add up charges, units by card. The node serves a pod on its assigned cards and on no others."""
        totals = [0] * len(record.sizes)
        for charge in charges:
            assigned = self.charge_assigned_cards(record, charge)
            by_card = self.charge_every_card(record, charge) if assigned is None else assigned
            for card, units in by_card.items():
                totals[card] += units
        for card, units in self.charges_of_claims(record):
            totals[card] += units
        if len(record.charged_cards) > len(charges):
            counted = {charge.uid for charge in charges}
            record.charged_cards = {
                uid: known for uid, known in record.charged_cards.items() if uid in counted
            }
        return totals


@lru_cache(maxsize=1024)
def read_amount(value: str | int) -> int:
    """Read how much a node has; an amount that cannot be read counts as 0."""
    try:
        return max(0, parse_bytes(value))
    except QuantityError:
        return 0
