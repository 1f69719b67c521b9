"""Values of the ledger: a pod, its account on this node, and an entry of the kubelet's checkpoint."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from allocator.errors import RequestError
from allocator.records import Assignment, charge
from allocator.request import ContainerRequest, PodRequest

Units = dict[str, int]
"""Units by card UUID."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """An entry of the kubelet's checkpoint: the devices that one container has of one resource.

    Attributes:
        container: its name, also of an init container or a sidecar.
        resource: resource of any device plugin, not only ours.
        compute: percent of compute by card of a claim; None where the checkpoint does not say it.
    """

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    compute: Units | None = None


@dataclass(frozen=True)
class Pod:
    """A pod with our resource that is bound to this node, as the API server shows it.

    Attributes:
        uid: identity; a name may come again, a UID never does.
        runtime_uid: the UID under which the kubelet runs it; another one for a static pod. Empty: `uid`.
        assigned: the `assigned` annotation, None if missing or unreadable.
        admitted: status says that the kubelet has admitted exactly this UID.
        has_run: a container of it has run: there was a cgroup.
        terminal: phase Succeeded or Failed.
        awaits_claim: the claim of its limits is not prepared, and others of its claims are.
        sizes: units of this node's cards by UUID, which the ledger fills in for a pod that asks for percent.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    runtime_uid: str = ""
    assigned: Assignment | None = None
    admitted: bool = False
    has_run: bool = False
    terminal: bool = False
    awaits_claim: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """UID that the kubelet's checkpoint and the cgroups use."""
        return self.runtime_uid or self.uid

    @cached_property
    def assigned_costs(self) -> Units | None:
        """Units by card of `assigned`; None when it is missing or cannot be true of the request."""
        try:
            return None if self.assigned is None else charge(self.request, self.assigned, self.sizes)
        except RequestError:
            return None


@dataclass(frozen=True, eq=False)
class PodAccount:
    """Account of one pod on this node: what the API, the checkpoint and the cgroups have shown of it.

    ```
                 checkpoint or holds          API
      (unknown) --------------------------> not bound ---------> bound, alive
          |  unknown Allocate           |                   |
          +-----------------------------------> |                   | API: terminal, deleted, or not listed
                                                | not listed        v
                                                +--------------> ended (ended_at_s)
                                                                    |  checkpoint lacks it, and after that a
                                                                    v  probe finds no cgroup (can_release)
                                                                 removed: its units are free
    ```

    The pod is charged in every state. The account never changes in place: `NodeAccounts.replace_pod` puts
    another one there. An Allocate of an unknown pod has an account of its own until the checkpoint shows its
    IDs.

    Attributes:
        pod: its newest state; only its UID is right while it was not `bound`.
        bound: the API server has shown the pod bound to this node.
        ended_at_s: time of the newest evidence that the pod has ended, in seconds; None while it lives. The
            first is the API server's: terminal, deleted, or missing from a complete list. A later checkpoint
            that lacks the pod moves the time forward.
        admitted: the pod's status, or `holds` of a daemon before, says that the kubelet has admitted the pod.
        has_run: a container of the pod was seen running.
        cgroups_gone_at_s: start of the last probe of the cgroups, in seconds, where it found none of the pod.
        checkpoint_ids: device IDs by container in the kubelet's checkpoint now.
        pending_ids: device IDs by container of Allocates since the kubelet's start, which the checkpoint may
            not show yet.
        known_ids: device IDs by container that the checkpoint has ever shown, also of cards that are gone. A
            container that is allocated others has only those.
        units: units by card of `known_ids` and `pending_ids`, each ID once, see `NodeAccounts.units_of_pod`.
        claimed_compute: percent of compute by card of its claims, which the checkpoint has or had last.
        claimed_ids: device IDs of claims that say their compute, which the checkpoint has ever shown.
        previously_published: units by card of the pod in the Node's `holds` before this daemon started; None
            where it was not there.
    """

    pod: Pod
    bound: bool = False
    ended_at_s: float | None = None
    admitted: bool = False
    has_run: bool = False
    cgroups_gone_at_s: float | None = None
    checkpoint_ids: dict[str, frozenset[str]] = field(default_factory=dict)
    pending_ids: dict[str, frozenset[str]] = field(default_factory=dict)
    known_ids: dict[str, frozenset[str]] = field(default_factory=dict)
    units: Units = field(default_factory=dict)
    claimed_compute: Units = field(default_factory=dict)
    claimed_ids: frozenset[str] = frozenset()
    previously_published: Units | None = None

    @property
    def is_live(self) -> bool:
        """True while the API server shows the pod bound and not terminal."""
        return self.bound and self.ended_at_s is None

    @cached_property
    def unserved_containers(self) -> tuple[ContainerRequest, ...]:
        """Containers that were never allocated anything, in the kubelet's order."""
        return tuple(c for c in self.pod.request.containers if c.name not in self.given_ids)

    @property
    def is_complete(self) -> bool:
        """True once the charge contains all that the pod will ever ask for."""
        known = self.admitted or not self.unserved_containers
        return self.ended_at_s is not None or (self.bound and known and not self.pod.awaits_claim)

    @property
    def current_ids(self) -> dict[str, frozenset[str]]:
        """Device IDs by container that the kubelet has for the pod now."""
        return self.checkpoint_ids | self.pending_ids

    @cached_property
    def given_ids(self) -> dict[str, frozenset[str]]:
        """Device IDs by container that each was given last, also where the kubelet has forgotten them."""
        return self.known_ids | self.pending_ids

    @property
    def charged_ids(self) -> tuple[frozenset[str], ...]:
        """Every set of device IDs that is charged to the pod; one container may have two."""
        return *self.known_ids.values(), *self.pending_ids.values()

    @property
    def change_key(self) -> Hashable:
        """Key that changes whenever parts beside the ledger must be notified; see `NodeAccounts.version`."""
        ids = tuple(self.known_ids.items()), tuple(self.pending_ids.items())
        return (*ids, self.admitted, self.has_run, self.cgroups_gone_at_s is None)

    def id_sets(self, containers: Iterable[str]) -> list[frozenset[str]]:
        """List those of `charged_ids` that were allocated to these containers."""
        return [ids[name] for name in containers for ids in (self.known_ids, self.pending_ids) if name in ids]


def add(total: Units, more: Mapping[str, int]) -> None:
    for uuid, units in more.items():
        total[uuid] = total.get(uuid, 0) + units
