"""What the node knows of one pod and of one entry of the kubelet's book: plain values."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from allocator.errors import RequestError
from allocator.records import Assignment, charge
from allocator.request import ContainerRequest, PodRequest

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


@dataclass(frozen=True, eq=False)
class PodFacts:
    """What is known of one pod, from the moment the book, the API server or `holds` shows it.

    Kept until its charge has ended. Never changed: another value takes its place, see `Facts.put`. An
    Allocate of an unknown pod is a pod of its own, until the book shows its IDs.

    Attributes:
        pod: its newest state; only its UID is right while it was not `bound`.
        bound: the API server has shown it bound to this node.
        over: when the last was heard of its end, in seconds: the API server shows it (terminal, deleted, or
            not in a complete list), and after that the book read without it.
        admitted: its status, or `holds` of before, say that the kubelet has admitted it.
        ran: a container of it was seen running.
        death: when a look at the cgroups that found nothing of it began, in seconds.
        book: device IDs by container as the kubelet's book has them now.
        given: the same by the Allocates since the kubelet's start, which the book may not show yet.
        ids: the same as the book has ever shown them, those of cards that are gone too; a container that is
            given others has only those.
        units: units by card of `ids` and `given`, each ID once, see `Facts.of_pod`.
        remembered: units by card that the Node's `holds` had before this daemon started, None if it had none.
    """

    pod: Pod
    bound: bool = False
    over: float | None = None
    admitted: bool = False
    ran: bool = False
    death: float | None = None
    book: dict[str, frozenset[str]] = field(default_factory=dict)
    given: dict[str, frozenset[str]] = field(default_factory=dict)
    ids: dict[str, frozenset[str]] = field(default_factory=dict)
    units: Units = field(default_factory=dict)
    remembered: Units | None = None

    @property
    def live(self) -> bool:
        """The API server shows it bound and not finished."""
        return self.bound and self.over is None

    @cached_property
    def missing(self) -> tuple[ContainerRequest, ...]:
        """Containers that nothing was ever given to, in the kubelet's order."""
        return tuple(c for c in self.pod.request.containers if c.name not in self.ids | self.given)

    @property
    def complete(self) -> bool:
        """Its charge contains all that it will ever ask for."""
        known = self.admitted or not self.missing
        return self.over is not None or (self.bound and known)

    @property
    def has(self) -> dict[str, frozenset[str]]:
        """Device IDs by container that the kubelet has for it."""
        return self.book | self.given

    @property
    def shows(self) -> Hashable:
        """What others than the ledger work with; see `Facts.version`."""
        ids = tuple(self.ids.items()), tuple(self.given.items())
        return (*ids, self.admitted, self.ran, self.death is None)

    def sets(self, containers: Iterable[str]) -> list[frozenset[str]]:
        """IDs that were given to each of these containers."""
        return [ids[name] for name in containers for ids in (self.ids, self.given) if name in ids]


def add(total: Units, more: Mapping[str, int]) -> None:
    """Add units by card in place."""
    for uuid, units in more.items():
        total[uuid] = total.get(uuid, 0) + units
