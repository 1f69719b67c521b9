"""What the ledger knows: its input values, its records and plain look-ups; no rule is decided here."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from allocator.cards import Card
from allocator.errors import LedgerError, RequestError, shown
from allocator.ids import device_id
from allocator.records import Assignment, charge
from allocator.request import Demand, PodRequest

GRACE_S: Final = 10.0
"""Seconds after which an Allocate that the kubelet really carried out must stand in a complete list."""

REMEMBERED_DEAD: Final = 4096
REMEMBERED_ANSWERS: Final = 8


@dataclass(frozen=True)
class Pod:
    """A pod with our resource that is bound to this node, as the API server shows it.

    Attributes:
        uid: identity; a name may come again, a UID never does.
        namespace: of the pod.
        name: of the pod.
        request: what it asks for.
        version: resourceVersion of this state; an older state than the one known is ignored.
        created: creation time in a form that sorts; the kubelet admits older pods first.
        assigned: the `assigned` annotation, None where missing or unreadable.
        allocation: the `allocation` annotation, None unless it carries this pod's UID.
        started: status.startTime is set and the kubelet's conditions too: it has admitted exactly this UID.
        terminal: phase Succeeded or Failed.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    version: int = 0
    created: str = ""
    assigned: Assignment | None = None
    allocation: Assignment | None = None
    started: bool = False
    terminal: bool = False

    @cached_property
    def assigned_costs(self) -> Mapping[str, int] | None:
        """Units by card of `assigned`; None when it is missing or cannot be true of the request."""
        return _costs(self.request, self.assigned)

    @cached_property
    def allocation_costs(self) -> Mapping[str, int] | None:
        """Units by card of `allocation`, likewise."""
        return _costs(self.request, self.allocation)


@dataclass(frozen=True, slots=True)
class Listed:
    """One container in the PodResources list and all IDs of our resource that it holds."""

    namespace: str
    name: str
    container: str
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Mark:
    """The moment a request for a list began: the number of events before it, and the time in seconds."""

    order: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Grant:
    """What one Allocate call gave: for each card its UUID and the units, in word order."""

    shares: tuple[tuple[str, int], ...]


class Slot(NamedTuple):
    """One container of one pod; compared so often that a tuple is worth it."""

    uid: str
    container: str


@dataclass(slots=True, eq=False)
class Holding:
    """A set of device IDs that one container holds, or held.

    Attributes:
        ids: the device IDs.
        order: number of the Allocate event; 0 when it happened before this ledger began.
        at_s: time of the Allocate, or of the list that showed the IDs first.
        slot: the container it seems to belong to.
        certain: `slot` is proven; it never changes again.
        mistaken: the container it was taken for until the list said otherwise.
        maybe: the container of the pod that has the listed name now, where that may be a later one.
        key: namespace, pod name and container under which the list showed it.
        listed: the newest list shows it.
        listed_order: the mark of the newest list that showed it.
    """

    ids: frozenset[str]
    order: int
    at_s: float
    slot: Slot | None = None
    certain: bool = False
    mistaken: Slot | None = None
    maybe: Slot | None = None
    key: tuple[str, str, str] | None = None
    listed: bool = False
    listed_order: int = 0


@dataclass(slots=True, eq=False)
class Tracked:
    """A pod from the moment it was seen bound until nothing of it can be left on the node.

    Attributes:
        pod: its newest state.
        bound_order: event number when it was first seen.
        started_order: event number when its startTime was first seen, None before.
        admitted: it was seen started while alive, so it holds what it asked for until its containers end.
        gone_order: event number when it was seen terminal or gone, None while it lives.
        ended: its containers' cgroups were found gone after that, so nothing of it is left.
        held: the words contain its units; published as `holds`.
        targets: where each demand is expected to go: card UUIDs, or None where nobody said.
    """

    pod: Pod
    bound_order: int
    targets: list[tuple[str, ...] | None]
    started_order: int | None = None
    admitted: bool = False
    gone_order: int | None = None
    ended: bool = False
    held: bool = False

    @property
    def live(self) -> bool:
        """The API server shows it bound and not finished."""
        return self.gone_order is None

    @property
    def age(self) -> tuple[str, int, str]:
        """Sort key: the kubelet admits the oldest pod first."""
        return (self.pod.created, self.bound_order, self.pod.uid)


class Book:
    """State and look-ups of the ledger.

    Args:
        cards: every card in word order, `used_units` 0.
        policy: the cluster's card policy.
        grace_s: see `GRACE_S`.
    """

    def __init__(
        self, cards: Sequence[Card], *, policy: str = "least-used", grace_s: float = GRACE_S
    ) -> None:
        self._cards: dict[str, Card] = {card.uuid: card for card in cards}
        if len(self._cards) != len(cards):
            raise LedgerError(f"cards {shown([card.uuid for card in cards])}: allowed is every UUID once")
        self._policy = policy
        self._grace_s = grace_s
        self._card_of: dict[str, str] = {
            device_id(card.uuid, slot): card.uuid for card in cards for slot in range(card.size_units)
        }
        self._order = 0
        self._holdings: list[Holding] = []
        self._pods: dict[str, Tracked] = {}
        self._dead: deque[str] = deque(maxlen=REMEMBERED_DEAD)
        self._answers: deque[tuple[frozenset[str], Slot | None]] = deque(maxlen=REMEMBERED_ANSWERS)
        self._doubted: set[Slot] = set()
        self._withheld: dict[str, Mark] = {}
        self._pressure: dict[str, int] = {}
        self._published_at_s: dict[str, float] = dict.fromkeys(self._cards, float("-inf"))
        self._words_before: dict[str, int] = {}
        self._remembered: set[str] = set()
        self._explained: dict[str, dict[str, int]] = {}
        self._strangers: set[str] = set()
        self._kubelet_order = 0
        self._list_mark: Mark | None = None
        self._view_mark: Mark | None = None

    def _tick(self) -> int:
        """Number the next event."""
        self._order += 1
        return self._order

    def _live(self) -> Iterator[Tracked]:
        """Pods that the API server shows bound and not finished, oldest first."""
        return iter(sorted((t for t in self._pods.values() if t.live), key=lambda t: t.age))

    def _named(self, key: tuple[str, str, str]) -> list[Tracked]:
        """Pods, alive or not, of that name that have that container."""
        return [
            tracked
            for tracked in self._pods.values()
            if (tracked.pod.namespace, tracked.pod.name) == key[:2]
            and any(container.name == key[2] for container in tracked.pod.request.containers)
        ]

    def _owned(self, uid: str) -> list[Holding]:
        """Holdings of the pod, certain or not."""
        return [h for h in self._holdings if h.slot is not None and h.slot.uid == uid]

    def _of_slot(self, slot: Slot) -> list[Holding]:
        """Holdings of one container, certain or not."""
        return [h for h in self._holdings if h.slot == slot]

    def _certain(self, slot: Slot) -> bool:
        """Whether it is proven what this container of this UID holds."""
        return any(h.certain and h.slot == slot for h in self._holdings)

    def _known(self) -> set[str]:
        """The union of all IDs that some container holds."""
        return set().union(*(h.ids for h in self._holdings))

    def _by_card(self, ids: Iterable[str]) -> dict[str, int]:
        """Count IDs per card."""
        return dict(Counter(map(self._card_of.__getitem__, ids)))

    def _eligible(self, request: PodRequest, units: int) -> list[str]:
        """Cards that could ever take `units` of this request."""
        return [
            uuid
            for uuid, card in self._cards.items()
            if card.size_units >= units and request.selector.admits(card)
        ]

    def _here(self, costs: Mapping[str, int] | None) -> Mapping[str, int] | None:
        """What an annotation charges by card; None also when it names a card that this node does not have."""
        return costs if costs is not None and costs.keys() <= self._cards.keys() else None

    def _initial_targets(self, pod: Pod) -> list[tuple[str, ...] | None]:
        """Expect every demand where `assigned` says."""
        if pod.assigned is None or self._here(pod.assigned_costs) is None:
            return [None for _ in pod.request.demands]
        return [
            tuple(uuid for uuid, _ in pod.assigned[demand.containers[0]]) for demand in pod.request.demands
        ]


def _costs(request: PodRequest, assignment: Assignment | None) -> dict[str, int] | None:
    try:
        return None if assignment is None else charge(request, assignment)
    except RequestError:
        return None


def demand_of(request: PodRequest, container: str) -> tuple[int, Demand]:
    """Find the demand that a container which asks belongs to, with its position."""
    demands = request.demands
    position = [container in demand.containers for demand in demands].index(True)
    return position, demands[position]


def shape(demand: Demand) -> tuple[int, int, int]:
    """What makes two demands interchangeable."""
    return (demand.units_per_card, demand.cards, len(demand.containers))


def add(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add units by card in place."""
    for uuid, units in more.items():
        total[uuid] = total.get(uuid, 0) + units
