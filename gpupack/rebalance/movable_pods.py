"""Which pods may be moved: ended, for their controller to start them elsewhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpupack.whatif.affinity import near
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import query_for
from gpupack.whatif.kube_checks import Wish, unchecked
from gpupack.whatif.objects import AskPod, Owner
from gpupack.whatif.trials import Held, Trial
from scheduler_plugin.cache.budgets import within
from scheduler_plugin.cache.pods import PodRecord

CRITICAL: Final = 2_000_000_000
"""From this priority on pods are part of the system (system-cluster-critical)."""

_STAYS: Final = frozenset({"DaemonSet", "Node"})
_KEEP: Final = (
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
)
"""Annotations by which people say that a pod must not be disturbed."""


@dataclass(frozen=True, eq=False)
class Mover:
    """A pod that may be moved.

    Attributes:
        pod: As the API server has it.
        record: As the state has it.
        units: On its cards, by position.
        owner: Its controller.
    """

    pod: AskPod
    record: PodRecord
    units: Mapping[int, int]
    owner: Owner

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.record.uid

    @property
    def node(self) -> str:
        """Where it runs."""
        return self.record.node

    @property
    def total(self) -> int:
        """Units over its cards."""
        return sum(self.units.values())

    def trial(self, cluster: Cluster) -> Trial:
        """The pod, to ask filter about."""
        wish = Wish.of(self.pod)
        request = self.record.request
        assert request is not None  # noqa: S101 - `Movers` takes no others
        return Trial(cluster, query_for(cluster, request, wish), wish)


class Movers:
    """The pods of a cluster, and whether they may be moved.

    Args:
        cluster: The cluster.
        held: What pods have.
        max_priority: Pods of a higher one stay.
    """

    def __init__(self, cluster: Cluster, held: Held, max_priority: int = CRITICAL - 1) -> None:
        self._cluster = cluster
        self._held = held
        self._max_priority = max_priority
        self.refused: set[str] = set()
        """UIDs of pods that turned out not to be movable after all."""

    def on(self, node: str) -> list[Mover]:
        """The pods of a node that may be moved, by namespace and name."""
        return [mover for record in self._held.on(node) for mover in self._mover(record)]

    def _mover(self, record: PodRecord) -> Iterator[Mover]:
        pod = self._cluster.pods.get(record.uid)
        if pod is None or record.uid in self.refused or self.why_not(pod, record):
            return
        owner = _controller(pod)
        if owner is not None:
            yield Mover(pod, record, self._held.of(record), owner)

    def why_not(self, pod: AskPod, record: PodRecord) -> str:
        """Say why a pod may not be moved, empty: it may."""
        return self._bound_to_place(pod, record) or self._kept(pod, record)

    def _bound_to_place(self, pod: AskPod, record: PodRecord) -> str:
        """What would not start again, or not elsewhere."""
        owner, units = _controller(pod), self._held.of(record)
        if record.mirrored or owner is None:
            return "no controller starts it again"
        if owner.kind in _STAYS:
            return f"it belongs to a {owner.kind}, which wants it there"
        if record.request is None:
            return "what it asks for cannot be read"
        if not units or self._held.freed(record) != units:
            return "its cards are not known, take no pods, or are filled by others"
        unseen = unchecked(pod)
        return f"{unseen[0]} could keep it where it is" if unseen else ""

    def _kept(self, pod: AskPod, record: PodRecord) -> str:
        """What people said of it, and budgets."""
        annotations = pod.metadata.annotations or {}
        kept = [f"annotation {name}: {value}" for name, value in _KEEP if annotations.get(name) == value]
        if kept:
            return kept[0]
        if record.leaves_at is not None:
            return "it is being deleted"
        if record.priority > self._max_priority:
            return f"its priority is {record.priority}"
        if near(pod) or self._cluster.hosts.neighbours.wanted_near(pod):
            return "it and others want to be near each other"
        if self._cluster.budgets is not None and not within(self._cluster.budgets, [record]):
            return "its PodDisruptionBudget allows no eviction now"
        return ""


def _controller(pod: AskPod) -> Owner | None:
    """The controller of a pod, None: nobody starts it again."""
    return next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)
