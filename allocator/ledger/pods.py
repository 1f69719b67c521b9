"""What the node knows of one pod, of one entry of the kubelet's book and of one Allocate: plain values."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from allocator.errors import RequestError
from allocator.records import Assignment, charge
from allocator.request import ContainerRequest, Demand, PodRequest

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
        owner: UID and container that asked, None where that was guessed.
        writes: how often the book was written since without it.
    """

    ids: frozenset[str]
    shares: tuple[tuple[str, int], ...]
    at: Mark
    owner: tuple[str, str] | None = None
    writes: int = 0


@dataclass(frozen=True, eq=False)
class PodFacts:
    """What is known of one pod, from the moment the book, the API server or `holds` shows it.

    Kept until its charge has ended. Never changed: another value takes its place, see `Facts.put`.

    Attributes:
        pod: its newest state; only its UID is right while it was not `bound`.
        known: when it was first known of.
        bound: the API server has shown it bound to this node.
        seen: when it first did.
        over: since when the API server shows that it has ended: terminal, deleted, or not in a complete list.
        admitted: since when its status, a running container or `holds` of before say that the kubelet has
            admitted it.
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
    over: Mark | None = None
    admitted: Mark | None = None
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
        """The kubelet may ask for it: it lives, or it is gone and the kubelet may not have heard of that.

        It has heard once it has dropped the pod from its book; not where it had lost the book before.
        """
        if self.over is None or not self.bound:
            return self.bound
        lost = self.unlisted is not None and self.unlisted.order < self.over.order
        return not self.pod.terminal and (self.since is None or bool(self.book) or lost)

    @property
    def asked_again(self) -> bool:
        """The kubelet has lost what it gave this pod, which does not run: it asks for all of it once more."""
        had = self.since is not None or self.admitted is not None
        return had and self.live and not self.ran and not self.book

    @cached_property
    def missing(self) -> tuple[ContainerRequest, ...]:
        """Containers that the book never showed, in the kubelet's order."""
        return tuple(c for c in self.pod.request.containers if c.name not in self.ids)

    @cached_property
    def settled(self) -> bool:
        """Nothing of it is under way: it lives and runs, and the book shows all of it as it always has."""
        return self.live and self.ran and not self.missing and self.book == self.ids

    @property
    def shows(self) -> Hashable:
        """What others than the ledger work with; see `Facts.version`."""
        return (tuple(self.ids.items()), self.admitted is not None, self.ran, self.death is None)

    def ids_of(self, containers: Iterable[str]) -> frozenset[str]:
        """IDs that these containers have, each once."""
        return frozenset().union(*(self.ids.get(name, ()) for name in containers))


def demand_of(request: PodRequest, container: str) -> tuple[int, Demand]:
    """Find the demand that a container which asks belongs to, with its position."""
    position = [container in demand.containers for demand in request.demands].index(True)
    return position, request.demands[position]


def add(total: Units, more: Mapping[str, int]) -> None:
    """Add units by card in place."""
    for uuid, units in more.items():
        total[uuid] = total.get(uuid, 0) + units
