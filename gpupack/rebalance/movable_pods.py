"""Lists pods that may be moved: ended, for their controller to start them elsewhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from allocator.errors import shown
from allocator.names import POD_PLANNED
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import find_gang_key
from gpupack.whatif.kube_checks import HostRequirements, list_unchecked_rules
from gpupack.whatif.what_if import PodCardUsage, WhatIf
from kubeapi.objects import OwnerReference, Pod
from scheduler_plugin.cache.disruption_budgets import keeps_budgets
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.node_pins import remove_pins
from scheduler_plugin.scheduling.pod_affinity import read_affinity

CRITICAL: Final = 2_000_000_000
"""From this priority on pods are part of the system (system-cluster-critical)."""

_REPLACING: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Controllers that make one pod again, wherever there is room, and leave the others as they are. A Job counts
an evicted pod as failed, and may end for it; operators of distributed jobs start all workers again."""
_KEEP: Final = (
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
)
"""Annotations by which people say that a pod must not be disturbed."""


@dataclass(frozen=True, eq=False)
class MovablePod:
    """A pod that may be moved.

    Attributes:
        pod: As the API server has it, but for the nodes that its queue named: its successor is bound to none.
        units: On its cards, by position.
        compute: Percent that it has of their compute, by position.
    """

    pod: Pod
    record: PodRecord
    units: Mapping[int, int]
    compute: Mapping[int, int]
    owner: OwnerReference

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def node(self) -> str:
        return self.record.node

    @property
    def total_units(self) -> int:
        return sum(self.units.values())

    def make_what_if(self, cluster: Cluster) -> WhatIf:
        requirements = HostRequirements.from_pod(self.pod)
        request = self.record.request
        assert request is not None  # noqa: S101 - `MovablePods` takes no others
        return WhatIf(cluster, cluster.make_query(request, requirements), requirements)


class MovablePods:
    """The pods of a cluster, and whether they may be moved."""

    def __init__(self, cluster: Cluster, usage: PodCardUsage, max_priority: int = CRITICAL - 1) -> None:
        self._cluster = cluster
        self.usage = usage
        self._max_priority = max_priority
        self.refused: dict[str, str] = {}
        """Why pods turned out not to be movable after all, by UID."""
        self.refused_queues: dict[str, str] = {}
        """Why the pods of queues are not movable, by queue."""

    def list_on_node(self, node: str) -> list[MovablePod]:
        """List the pods of a node that may be moved, by namespace and name."""
        return [movable for record in self.usage.list_pods(node) for movable in self._list_movable(record)]

    def find(self, uid: str) -> MovablePod | None:
        """Return a pod by UID, wherever it may go; None if it does not exist, or has no controller."""
        pod, record = self._cluster.pods.get(uid), self._cluster.state.pods.get(uid)
        owner = None if pod is None else pod.metadata.controller
        if pod is None or record is None or record.request is None or owner is None:
            return None
        return self._make(pod, record, owner)

    def _list_movable(self, record: PodRecord) -> Iterator[MovablePod]:
        pod = self._cluster.pods.get(record.uid)
        if pod is None or self.explain_why_fixed(pod, record):
            return
        owner = pod.metadata.controller
        if owner is not None:
            yield self._make(pod, record, owner)

    def _make(self, pod: Pod, record: PodRecord, owner: OwnerReference) -> MovablePod:
        cards, uid = self.usage.get_pod_cards(record.node), record.uid
        return MovablePod(_unpin(pod), record, cards.units.get(uid, {}), cards.compute.get(uid, {}), owner)

    def explain_why_fixed(self, pod: Pod, record: PodRecord) -> str:
        """Say why a pod may not be moved, empty: it may."""
        fixed = self.explain_protection(pod, record) or self._explain_fixed_place(pod, record)
        return (
            fixed
            or self.refused.get(record.uid, "")
            or self.refused_queues.get(self._cluster.find_queue(pod), "")
        )

    def refuse(self, uid: str, reason: str, queue: str = "") -> None:
        """Let a pod stay after all, and all pods of a queue where one is named."""
        self.refused[uid] = reason
        if queue:
            self.refused_queues[queue] = reason

    @property
    def notes(self) -> list[str]:
        """Say which queues' pods stay, and why, where there are any."""
        rules = self._cluster.queue
        if not isinstance(rules, str):
            return [f"pods of queue {shown(name)} stay: {why}" for name, why in self.refused_queues.items()]
        of_queues = any(
            pod.spec.node_name and self._cluster.find_queue(pod) for pod in self._cluster.pods.values()
        )
        return [f"pods of queues stay: the queue {rules}"] if of_queues else []

    def _explain_fixed_place(self, pod: Pod, record: PodRecord) -> str:
        """Say why a pod could not start elsewhere; empty: it could."""
        units = self.usage.get_units(record)
        if record.request is None:
            return "what it asks for cannot be read"
        if not units or self.usage.get_freed_units(record) != units:
            return "its cards are not known, take no pods, or are filled by others"
        unseen = list_unchecked_rules(pod)
        return f"{unseen[0]} could keep it where it is" if unseen else ""

    def explain_protection(self, pod: Pod, record: PodRecord) -> str:
        """Say why a pod must not be disturbed; empty: it may be.

        That is for what it belongs to, for what people said of it, and for budgets.
        """
        if reason := _explain_not_replaced(pod):
            return reason
        if gang := find_gang_key(self._cluster, pod):
            return f"it runs together with the other pods of gang {shown(gang[1])}"
        queue, rules = self._cluster.find_queue(pod), self._cluster.queue
        if queue and isinstance(rules, str):
            return f"queue {shown(queue)} would have to admit its successor, and the queue {rules}"
        return self._explain_wish(pod, record)

    def _explain_wish(self, pod: Pod, record: PodRecord) -> str:
        """Say which annotation or rule protects a pod from being moved now; empty: none."""
        annotations = pod.metadata.annotations or {}
        kept = [f"annotation {name}: {value}" for name, value in _KEEP if annotations.get(name) == value]
        if kept:
            return kept[0]
        if record.grace_ends_at is not None:
            return "it is being deleted"
        if record.priority > self._max_priority:
            return f"its priority is {record.priority}"
        if read_affinity(pod) or self._cluster.kube_checks.is_wanted_near(pod):
            return "it and others want to be near each other"
        if self._cluster.budgets is not None and not keeps_budgets(self._cluster.budgets, [record]):
            return "its PodDisruptionBudget allows no eviction now"
        return ""


def _explain_not_replaced(pod: Pod) -> str:
    """Say why a pod would not be created again; empty: it would."""
    owner = pod.metadata.controller
    if pod.is_mirror or owner is None:
        return "no controller replaces it"
    if owner.kind == "DaemonSet":
        return "it belongs to a DaemonSet, which wants it there"
    if owner.kind not in _REPLACING:
        return f"it is not known that {owner.kind} {owner.name} only makes it again when it is evicted"
    return ""


def _unpin(pod: Pod) -> Pod:
    """Make a pod that may run on any node that its owner allows."""
    affinity = pod.spec.affinity
    nodes = None if affinity is None else affinity.node_affinity
    required = None if nodes is None else nodes.required_during_scheduling_ignored_during_execution
    if affinity is None or nodes is None or required is None:
        return pod
    if POD_PLANNED not in (pod.metadata.annotations or {}):
        return pod
    terms = remove_pins(required.node_selector_terms or ())
    rest = msgspec.structs.replace(required, node_selector_terms=terms) if terms else None
    nodes = msgspec.structs.replace(nodes, required_during_scheduling_ignored_during_execution=rest)
    affinity = msgspec.structs.replace(affinity, node_affinity=nodes)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity))
