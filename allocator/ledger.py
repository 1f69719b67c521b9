"""The node's accounting: which units of which card are promised, to whom, and when that ends.

A pure, synchronous state machine. Everything that happens is a call with its time in seconds (any monotonic
clock); what is asked back is computed from what is known. Nothing is ever taken on the word of one source
alone: the kubelet's list forgets, the API server lags, annotations get copied.

Invariant: the units that the words show plus those that the scheduler assumes are never less than the units
the kubelet holds or will hold for pods that are bound.
"""

from collections.abc import Collection, Iterable, Mapping

from allocator.ledger_book import Book, Grant, Listed, Mark, Pod
from allocator.records import Assignment

__all__ = ["Grant", "Ledger", "Listed", "Mark", "Pod"]


class Ledger(Book):
    """One node's accounts; see `Book` for the arguments."""

    # What happens to cards.

    def set_healthy(self, uuid: str, healthy: bool, now_s: float) -> None:
        """Take a card in or out; an unhealthy card counts as full.

        Raises:
            LedgerError: no such card.
        """
        raise NotImplementedError

    def set_cordoned(self, uuids: Collection[str]) -> None:
        """Keep exactly these cards free of new pods; they count as full. Unknown UUIDs are ignored."""
        raise NotImplementedError

    def set_pressure(self, units: Mapping[str, int]) -> None:
        """Set the units by card that are used beyond what is promised (foreign and over-use)."""
        raise NotImplementedError

    # What the kubelet does.

    def expects(self, size: int, available: Collection[str]) -> bool:
        """Tell whether some bound pod still waits for a container of `size` units.

        False means that the view of pods is behind the kubelet's (or the pod is not in the API): wait a
        little for the view before answering `preferred`.
        """
        raise NotImplementedError

    def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int, now_s: float
    ) -> tuple[str, ...]:
        """Answer GetPreferredAllocation: exactly `size` of the available IDs, `must_include` among them.

        Raises:
            LedgerError: no card (or not enough cards) can take the container.
        """
        raise NotImplementedError

    def allocate(self, ids: Collection[str], now_s: float) -> Grant:
        """Record an Allocate.

        Raises:
            LedgerError: no ID, an unknown one, one of an unhealthy card, or more cards than were offered.
        """
        raise NotImplementedError

    def mark(self, now_s: float) -> Mark:
        """Note that a request for a list begins now; its answer comes back with the mark."""
        raise NotImplementedError

    def listed(self, entries: Iterable[Listed], mark: Mark) -> None:
        """Take a complete PodResources list; one older than the newest, or than the kubelet, is ignored."""
        raise NotImplementedError

    def kubelet_restarted(self, now_s: float) -> None:
        """From now on only lists of pods and of devices that begin later prove that something is missing."""
        raise NotImplementedError

    # What the API server shows.

    def pods_synced(self, pods: Iterable[Pod], mark: Mark) -> None:
        """Take all pods with our resource bound to this node, as of a list that began at `mark`.

        Known pods that it lacks are gone, except those first seen after the mark.
        """
        raise NotImplementedError

    def pod_changed(self, pod: Pod) -> None:
        """Take a pod that was bound, or changed."""
        raise NotImplementedError

    def pod_gone(self, uid: str) -> None:
        """Take the deletion of a pod; an unknown UID is ignored."""
        raise NotImplementedError

    def remember(self, used: Mapping[str, int], uids: Collection[str]) -> None:
        """Take what the own Node says at start: used units by card UUID and the UIDs of `holds`.

        Must come before the first list of pods.
        """
        raise NotImplementedError

    # What the node's cgroups show.

    def doubtful(self) -> frozenset[str]:
        """UIDs of finished pods that stay charged until somebody finds their cgroups gone."""
        raise NotImplementedError

    def containers_ended(self, uid: str) -> None:
        """No process of this pod is left; only for UIDs that `doubtful` named."""
        raise NotImplementedError

    # What can be asked.

    @property
    def complete(self) -> bool:
        """Pods and devices have both been listed since start: the words may be published."""
        raise NotImplementedError

    def wants_list(self) -> bool:
        """Something waits for a newer PodResources list."""
        raise NotImplementedError

    def wants_view(self) -> bool:
        """Something waits for a list of pods that begins now (after a kubelet restart, an odd Allocate)."""
        raise NotImplementedError

    def promised(self) -> dict[str, int]:
        """Units by card that containers hold: a union of IDs, and what must be held although no ID is known."""
        raise NotImplementedError

    def reserved(self) -> dict[str, int]:
        """Units by card that bound pods will take where the scheduler does not expect them."""
        raise NotImplementedError

    def used(self) -> tuple[int, ...]:
        """Units of each card in word order as published: never more than its size."""
        raise NotImplementedError

    def holds(self) -> frozenset[str]:
        """UIDs of the pods whose units `used` contains."""
        raise NotImplementedError

    def allocations(self) -> dict[str, Assignment]:
        """What each held pod's containers got, by UID."""
        raise NotImplementedError

    def explain(self) -> dict[str, object]:
        """Everything of interest to a person, as JSON values."""
        raise NotImplementedError
