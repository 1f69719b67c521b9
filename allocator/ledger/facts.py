"""What the node knows of its cards and pods: values, no conclusions."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from allocator.cards import Card
from allocator.errors import LedgerError, RequestError, shown
from allocator.ids import PERCENT_IDS, device_id, percent_id
from allocator.records import Assignment, charge
from allocator.request import WHOLE, ContainerRequest, Demand, PodRequest

Units = dict[str, int]
"""Units by card UUID."""


@dataclass(frozen=True, slots=True)
class BookEntry:
    """One line of the kubelet's book: what one container holds of one resource.

    Attributes:
        uid: of the pod; for a static pod its configuration hash.
        container: its name; ordinary init containers and sidecars stand here like any other.
        resource: of any device plugin, not only ours.
        ids: the devices, of all NUMA nodes together.
    """

    uid: str
    container: str
    resource: str
    ids: frozenset[str]


@dataclass(frozen=True)
class Pod:
    """A pod with our resource that is bound to this node, as the API server shows it.

    Attributes:
        uid: identity; a name may come again, a UID never does.
        namespace: of the pod.
        name: of the pod.
        request: what it asks for.
        version: resourceVersion of this state; an older state than the one known is ignored.
        created: creation time in a form that sorts; within one batch the kubelet admits older pods first.
        runtime_uid: the UID under which the kubelet runs it; another one for a static pod. Empty: `uid`.
        assigned: the `assigned` annotation, None where missing or unreadable.
        admitted: status says that the kubelet has admitted exactly this UID.
        ran: a container of it has run: there was a cgroup.
        terminal: phase Succeeded or Failed.
        sizes: units of this node's cards by UUID, which the ledger fills in for a pod that asks for percent.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    version: int = 0
    created: str = ""
    runtime_uid: str = ""
    assigned: Assignment | None = None
    admitted: bool = False
    ran: bool = False
    terminal: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The UID that the kubelet's book and the cgroups use."""
        return self.runtime_uid or self.uid

    @cached_property
    def assigned_costs(self) -> Units | None:
        """Units by card of `assigned`; None when it is missing or cannot be true of the request."""
        try:
            return None if self.assigned is None else charge(self.request, self.assigned, self.sizes)
        except RequestError:
            return None


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: the number of events before it, and seconds by any monotonic clock."""

    order: int
    at_s: float


@dataclass(slots=True, eq=False)
class Grant:
    """An Allocate that was answered and that the kubelet's book does not show yet.

    Attributes:
        ids: the device IDs.
        shares: for each card its UUID and the units, in word order.
        at: when.
        writes: how often the book was written since without it.
    """

    ids: frozenset[str]
    shares: tuple[tuple[str, int], ...]
    at: Mark
    writes: int = 0


@dataclass(slots=True, eq=False)
class PodFacts:
    """What is known of one pod, from the moment the book, the API server or `holds` shows it.

    Kept until its charge has ended.

    Attributes:
        pod: its newest state; only its UID is right while it was not `bound`.
        known: when it was first known of.
        bound: the API server has shown it bound to this node.
        seen: when it first did.
        turn: sorts pods in the order in which the kubelet hears of them.
        over: since when the API server shows that it has ended: terminal, deleted, or not in a complete list.
        admitted: the kubelet has admitted it, says its status, a running container, or `holds` of before.
        ran: a container of it was seen running.
        death: when a look at the cgroups that found nothing of it began.
        book: device IDs by container as the kubelet's book has them now.
        ids: the same as the book has ever shown them, those of cards that are gone too; a container that is
            given others has only those.
        units: units by card of `ids`, each once, see `of_containers`.
        since: when the book was first read with it, None if it never was.
        unlisted: when the book was first read without it after that.
        remembered: units by card that the Node's `holds` had before this daemon started, None if it had none.
    """

    pod: Pod
    known: Mark
    bound: bool = False
    seen: Mark = Mark(0, 0.0)
    turn: tuple[int, int, str, str] = (0, 0, "", "")
    over: Mark | None = None
    admitted: bool = False
    ran: bool = False
    death: Mark | None = None
    book: dict[str, frozenset[str]] = field(default_factory=dict)
    ids: dict[str, frozenset[str]] = field(default_factory=dict)
    units: Units = field(default_factory=dict)
    since: Mark | None = None
    unlisted: Mark | None = None
    remembered: Units | None = None

    @property
    def live(self) -> bool:
        """The API server shows it bound and not finished."""
        return self.bound and self.over is None

    @property
    def may_ask(self) -> bool:
        """The kubelet may ask for it: it lives, or it is gone and the kubelet may not have heard of that."""
        unheard = not self.pod.terminal and (self.since is None or bool(self.book))
        return self.bound and (self.over is None or unheard)

    @property
    def lacks(self) -> bool:
        """Whether any container is missing; asked of every pod again and again."""
        for container in self.pod.request.containers:  # noqa: SIM110 - any() takes twice as long
            if container.name not in self.ids:
                return True
        return False

    @property
    def missing(self) -> list[ContainerRequest]:
        """Containers that the book never showed, in the kubelet's order."""
        return [c for c in self.pod.request.containers if c.name not in self.ids]

    def ids_of(self, containers: Iterable[str]) -> frozenset[str]:
        """IDs that these containers have, each once."""
        return frozenset().union(*(self.ids.get(name, ()) for name in containers))


@dataclass(slots=True)
class Facts:
    """All that is known.

    Attributes:
        cards: by UUID in word order, `used_units` 0.
        policy: the cluster's card policy.
        card_of: UUID of the card by device ID, of units.
        share_of: the same of percent.
        pressure: units by card used beyond what is promised.
        pods: by the UID that the kubelet uses.
        grants: Allocates that the book does not show yet, oldest first.
        view: when the newest complete list of pods began, None before the first.
        read: the number of events before the book was read last.
        restarted: the same of the kubelet's last start.
        asked: the same of its last question for devices.
    """

    cards: dict[str, Card]
    policy: str
    card_of: dict[str, str] = field(default_factory=dict)
    share_of: dict[str, str] = field(default_factory=dict)
    pressure: Units = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    view: Mark | None = None
    read: int = 0
    restarted: int = 0
    asked: int = 0

    @classmethod
    def of(cls, cards: Sequence[Card], policy: str) -> "Facts":
        """Begin with cards alone.

        Raises:
            LedgerError: a UUID twice.
        """
        by_uuid = {card.uuid: card for card in cards}
        if len(by_uuid) != len(cards):
            raise LedgerError(f"cards {shown([card.uuid for card in cards])}: allowed is every UUID once")
        card_of = {device_id(card.uuid, slot): card.uuid for card in cards for slot in range(card.size_units)}
        share_of = {percent_id(card.uuid, slot): card.uuid for card in cards for slot in range(PERCENT_IDS)}
        return cls(by_uuid, policy, card_of, share_of)

    def install(self, cards: Sequence[Card]) -> None:
        """Take another list of cards, as after one was partitioned anew; those that stay keep their cordon.

        IDs of cards that are gone count for nobody; those of one that comes back count again.

        Raises:
            LedgerError: a UUID twice.
        """
        fresh, old = Facts.of(cards, self.policy), self.cards
        self.cards = {
            uuid: replace(card, cordoned=uuid in old and old[uuid].cordoned)
            for uuid, card in fresh.cards.items()
        }
        self.card_of, self.share_of = fresh.card_of, fresh.share_of
        for one in self.pods.values():
            one.pod, one.units = self.sized(one.pod), self.of_containers(one.ids.values())
        for grant in self.grants:
            grant.shares = tuple(self.by_card(grant.ids).items())

    def sized(self, pod: Pod) -> Pod:
        """Tell a pod that asks for percent how large the cards are."""
        if not pod.request.percent:
            return pod
        return replace(pod, sizes={uuid: card.size_units for uuid, card in self.cards.items()})

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

    def queue(self) -> list[PodFacts]:
        """All pods that were seen bound, in the order in which the kubelet hears of them."""
        return sorted((one for one in self.pods.values() if one.bound), key=lambda one: one.turn)

    def eligible(self, request: PodRequest, demand: Demand) -> Units:
        """Cards that could ever take a demand of this request, with its units there."""
        needs = {uuid: demand.units_on(card.size_units) for uuid, card in self.cards.items()}
        return {
            uuid: needs[uuid]
            for uuid, card in self.cards.items()
            if card.size_units >= needs[uuid] and request.selector.admits(card)
        }

    def target(self, pod: Pod, demand: Demand) -> tuple[str, ...] | None:
        """Cards that the scheduler assigned to a demand; None where nobody said, or other cards than ours."""
        costs = pod.assigned_costs
        if pod.assigned is None or costs is None or not costs.keys() <= self.cards.keys():
            return None
        return tuple(sorted(uuid for uuid, _ in pod.assigned[demand.containers[0]]))


def _connected(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Unite the sets that have elements in common."""
    groups: list[frozenset[str]] = []
    for ids in sets:
        touching = [group for group in groups if not group.isdisjoint(ids)]
        groups = [group for group in groups if group.isdisjoint(ids)]
        groups.append(ids.union(*touching))
    return groups


def demand_of(request: PodRequest, container: str) -> tuple[int, Demand]:
    """Find the demand that a container which asks belongs to, with its position."""
    position = [container in demand.containers for demand in request.demands].index(True)
    return position, request.demands[position]


def add(total: Units, more: Mapping[str, int]) -> None:
    """Add units by card in place."""
    for uuid, units in more.items():
        total[uuid] = total.get(uuid, 0) + units
