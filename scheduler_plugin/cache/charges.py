"""The accounting rules: which pods count on a node beyond its published words, and on which cards.

Each rule is one small method of `Rules`, so that a test can take out any one of them and show that it is
needed. All are pure; a `NodeRecord` is what is known of one node name, and time is an argument.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from allocator.podcards import ByPosition, charged_units
from allocator.records import Assignment
from allocator.request import PodRequest
from scheduler_plugin.cache.pods import PodRecord

TOMBSTONE_S = 30.0
"""How long a vanished pod counts at most when its node says nothing."""


@dataclass(slots=True)
class Take:
    """Cards committed for a pod whose Binding is under way, or done and not seen in the watch yet.

    Attributes:
        pod: The version of the pod that the Binding names.
        node: Target of the Binding.
        assigned: Cards of the Binding, None where the node publishes no UUIDs.
    """

    pod: PodRecord
    node: str
    assigned: Assignment | None


@dataclass(slots=True)
class Tombstone:
    """A bound pod that vanished before its node held it.

    Attributes:
        claim: What it asked for and where.
        version: resourceVersion at which it vanished.
        until: When it stops counting in any case, seconds.
    """

    claim: "Claim"
    version: int
    until: float


class Claim(NamedTuple):
    """Units that a pod takes on a node and that the node's words do not show for certain."""

    uid: str
    request: PodRequest
    assigned: Assignment | None


@dataclass(slots=True)
class NodeRecord:
    """All that is known of one node name; it outlives the Node object while pods are bound to the name.

    Attributes:
        name: The node's name.
        row: Its row in the arrays, -1 while there is no Node object.
        version: resourceVersion of the Node object, 0 while there is none.
        revision: Of its words, 0 where there are none.
        seen: resourceVersion of the newest pod event that its words take into account, -1 where unknown.
        holds: Of the pods that the words certainly contain, by UID: their units by card position; None where
            the node does not say, as the release before did not.
        sizes: Units by card; empty where the words cannot be used.
        used: Units by card as published, see `published.Published`.
        uuids: By card; empty where the node publishes no inventory.
        indexes: By card, the driver's; for people only.
        pods: Bound pods that ask for cards and have not ended, by UID.
        takes: Commitments, by UID.
        tombstones: Vanished pods, by UID.
        offered: Units and percent that its kubelet offers over all cards, None where the Node does not say.
        cpu_milli: Requested by the bound pods of any kind.
        memory_bytes: Likewise.
        other_resources: What those request of further resources, by name.
        allocatable: What the Node says that it has of further resources, as written there.
    """

    name: str
    row: int = -1
    version: int = 0
    revision: int = 0
    seen: int = -1
    holds: Mapping[str, ByPosition | None] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    pods: dict[str, PodRecord] = field(default_factory=dict)
    takes: dict[str, Take] = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    offered: tuple[int | None, int | None] = (None, None)
    cpu_milli: int = 0
    memory_bytes: int = 0
    other_resources: dict[str, int] = field(default_factory=dict)
    allocatable: tuple[tuple[str, str | int], ...] = ()

    def count_requests(self, pod: PodRecord, times: int) -> None:
        """Count what a bound pod requests, or with -1 count it no more."""
        self.cpu_milli += times * pod.cpu_milli
        self.memory_bytes += times * pod.memory_bytes
        for name, amount in pod.other_resources:
            self.other_resources[name] = self.other_resources.get(name, 0) + times * amount
            if not self.other_resources[name]:
                del self.other_resources[name]

    def forget_words(self) -> None:
        """Drop what the node published of its cards."""
        self.seen, self.holds = -1, {}
        self.sizes = self.used = ()
        self.uuids = ()
        self.indexes = ()

    @property
    def empty(self) -> bool:
        """Nothing would be lost by forgetting the name."""
        return self.row < 0 and not (
            self.pods
            or self.takes
            or self.tombstones
            or self.cpu_milli
            or self.memory_bytes
            or self.other_resources
        )


class Rules:
    """The rules of "never under-count", one method each.

    Invariant: for every card, what the words show plus what the claims charge is at least what the kubelet
    holds plus what it will hold for pods bound by now.
    """

    def holds(self, book: NodeRecord, uid: str) -> bool:
        """A pod is confirmed by its UID in the node's own `holds`, and by nothing else."""
        return uid in book.holds

    def bound(self, book: NodeRecord) -> Iterator[Claim]:
        """A bound pod counts until its node holds it."""
        for uid, pod in book.pods.items():
            if pod.charged is not None and not self.holds(book, uid):
                yield Claim(uid, pod.charged, pod.assigned)

    def taken(self, book: NodeRecord) -> Iterator[Claim]:
        """A commitment counts from before its Binding is sent until the pod is seen bound."""
        for uid, take in book.takes.items():
            if take.pod.charged is not None and uid not in book.pods and not self.holds(book, uid):
                yield Claim(uid, take.pod.charged, take.assigned)

    def vanished(self, book: NodeRecord) -> Iterator[Claim]:
        """A pod that vanished unheld counts until its tombstone ends."""
        for tombstone in book.tombstones.values():
            yield tombstone.claim

    def needs_tombstone(self, book: NodeRecord, uid: str, version: int) -> bool:
        """The kubelet may have admitted a pod that vanished before words made later than `version`."""
        return not self.holds(book, uid) and book.seen < version

    def tombstone_ends(self, book: NodeRecord, tombstone: Tombstone, now: float) -> bool:
        """Words that take the pod's end into account, or time, end a tombstone."""
        return book.seen >= tombstone.version or now >= tombstone.until

    def keeps_without_node(self) -> bool:
        """Claims outlive the Node object: it may be created again while the kubelet runs on."""
        return True

    def binding_is_stale(self, take: Take, pod: PodRecord) -> bool:
        """A newer version of the pod without a node: the Binding's resourceVersion will be refused."""
        return not pod.node and pod.version > take.pod.version

    def assigned_cards(self, book: NodeRecord, claim: Claim) -> dict[int, int] | None:
        """Charge a claim where its Binding says, if the node's cards and the request agree with that.

        Returns:
            Units by card position, or None when the pod may land on any card that can take it.
        """
        if claim.assigned is None:
            return None
        return charged_units(claim.request, claim.assigned, book.uuids, book.sizes)

    def anywhere(self, book: NodeRecord, claim: Claim) -> dict[int, int]:
        """Charge a claim on every card that is large enough."""
        charges: dict[int, int] = {}
        for demand in claim.request.demands:
            for card, size in enumerate(book.sizes):
                units = demand.units_on(size)
                if size >= units:
                    charges[card] = charges.get(card, 0) + units
        return charges

    def claims(self, book: NodeRecord) -> list[Claim]:
        """Everything that counts on the node beyond its words."""
        return [*self.bound(book), *self.taken(book), *self.vanished(book)]

    def assumed(self, book: NodeRecord, claims: list[Claim]) -> list[int]:
        """Add the claims up, by card: where the node will serve them, for it serves nobody elsewhere."""
        totals = [0] * len(book.sizes)
        for claim in claims:
            charges = self.assigned_cards(book, claim)
            for card, units in (self.anywhere(book, claim) if charges is None else charges).items():
                totals[card] += units
        return totals
