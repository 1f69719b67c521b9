"""Checks a node before a pod is bound there: an index of the cluster beside the rules of `node_fit`. Pure.

- What is left of a resource is allocatable, less all pods that have not ended, less what is being bound, less
  nominated pods of at least the same priority.
- No pod of larger priority that its scheduler has not tried yet would take the room.

Pods with anything that is not checked here (volumes, claims, spread, ports) are excluded by
`batch_eligibility`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from allocator.names import BATCH_SCHEDULER
from allocator.request import PodRequest
from kubeapi.objects import Node, ObjectMeta, Pod
from kubeapi.selectors import NodeRules, NodeTraits
from scheduler_plugin.cache.amounts import Amounts, sum_amounts
from scheduler_plugin.cache.card_inventory import SelectorMasks
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.node_fit import (
    CORDONED,
    CPU,
    MEMORY,
    NOT_READY,
    PODS,
    SELECTOR,
    SUM,
    find_node_rejection,
    list_shortages,
)
from scheduler_plugin.scheduling.pod_affinity import OTHERS_ANTI_AFFINITY, ExistingAntiAffinity
from scheduler_plugin.scheduling.request import SchedulingRequest, make_policy_request

UNTRIED_S: Final = 60.0
"""A pod that its scheduler has not tried for so long blocks no room: the scheduler may not be running."""

MOST_UNTRIED: Final = 64
"""Kinds of waiting pods of larger priority that are checked for one node, the largest priorities first.

Kinds beyond that block no room: whoever makes many pods that fit nowhere must not stop batch mode.
"""

_NOT_CACHED: Final = "the pod is not in the scheduler's cache yet"

_WORDS: Final = {
    NOT_READY: "the node is not ready",
    CORDONED: "the node is cordoned",
    SELECTOR: "node selector or node affinity does not select the node",
    PODS: "too many pods",
    CPU: "insufficient cpu",
    MEMORY: "insufficient memory",
    SUM: "insufficient GPU memory",
}


class _PodKind(NamedTuple):
    """Everything that decides which room an untried pod blocks; of equal kinds only one pod is checked."""

    priority: int
    scheduler: str
    rules: NodeRules
    charged: PodRequest | None
    amounts: Amounts


@dataclass(slots=True)
class _Pod:
    """The facts about a pod besides its `PodRecord`.

    Attributes:
        node: Where it is bound, empty before.
        nominated: Its nominated node, while it has no node.
        rules: Nodes that it may run on.
        untried_since: When a pod that waits for another scheduler was first seen, in seconds; None: it does
            not wait, or was tried.
        kind: Its kind, if `untried_since` is set.
        metadata: To match the pod with terms of others; the pod itself is not kept, there may be thousands.
        scheduler: `spec.schedulerName`.
        gated: The pod has scheduling gates.
    """

    node: str
    nominated: str
    rules: NodeRules
    untried_since: float | None
    kind: _PodKind | None
    metadata: ObjectMeta
    scheduler: str
    gated: bool


class KubernetesChecks:
    """Answers whether kube-scheduler's filters would let a pod run on a node now."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._nodes: dict[str, NodeTraits] = {}
        self._pods: dict[str, _Pod] = {}
        self._nominated: dict[str, set[str]] = {}
        self._existing = ExistingAntiAffinity()
        self._untried: dict[_PodKind, set[str]] = {}
        self._untried_order: list[_PodKind] | None = []
        self._schedulers: set[str] = set()
        self._selectors = SelectorMasks()

    # What comes in.

    def apply_node(self, node: Node) -> None:
        self._nodes[node.name] = node.traits

    def delete_node(self, name: str) -> None:
        self._nodes.pop(name, None)

    def apply_pod(self, pod: Pod, now: float) -> None:
        uid = pod.metadata.uid
        before = self._pods.get(uid)
        self.delete_pod(uid)
        if pod.has_ended:
            return
        scheduler = pod.spec.scheduler_name
        at_work = pod.status.was_refused or (pod.spec.node_name and before is not None and not before.node)
        if at_work and scheduler not in self._schedulers:
            self._schedulers.add(scheduler)
            self._untried_order = None
        rules, record = pod.spec.node_rules, self._state.pods.get(uid)
        kind = None
        if record is not None and record.can_be_scheduled and _is_untried(pod):
            kind = _PodKind(record.priority, scheduler, rules, record.charged, record.amounts)
        since = before.untried_since if before is not None else None
        known = self._pods[uid] = _Pod(
            node=pod.spec.node_name,
            nominated="" if pod.spec.node_name else pod.status.nominated_node_name,
            rules=rules,
            untried_since=None if kind is None else now if since is None else since,
            kind=kind,
            metadata=pod.metadata,
            scheduler=scheduler,
            gated=pod.is_gated,
        )
        if known.nominated:
            self._nominated.setdefault(known.nominated, set()).add(uid)
        self._existing.apply_pod(pod)
        if kind is not None:
            if kind not in self._untried:
                self._untried_order = None
            self._untried.setdefault(kind, set()).add(uid)

    def delete_pod(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is None:
            return
        self._existing.remove_pod(uid)
        self._forget_untried(uid, known)
        if known.nominated:
            nominated = self._nominated[known.nominated]
            nominated.discard(uid)
            if not nominated:
                del self._nominated[known.nominated]

    def replace_nodes(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.name: node.traits for node in nodes}

    def replace_pods(self, pods: Sequence[Pod], now: float) -> None:
        for uid in self._pods.keys() - {pod.metadata.uid for pod in pods}:
            self.delete_pod(uid)
        for pod in pods:
            self.apply_pod(pod, now)

    # What is asked.

    def explain_batch_refusal(self, uid: str) -> str:
        """Say why batch mode must not bind a pod, on whichever node; empty if it may."""
        pod = self._pods.get(uid)
        if pod is None:
            return _NOT_CACHED
        if pod.scheduler != BATCH_SCHEDULER:
            return f"its schedulerName is not {BATCH_SCHEDULER}"
        return "it has scheduling gates" if pod.gated else ""

    def find_rejection(self, uid: str, name: str, now: float, *, margin: float = 0.0) -> str:
        """Say why a pod must not be bound to a node.

        Args:
            margin: Part of the node's cpu and memory that must stay free beside the pod, 0 to 1.
        """
        node, pod, record = self._nodes.get(name), self._pods.get(uid), self._state.pods.get(uid)
        if pod is None or record is None:
            return _NOT_CACHED
        if node is None or name not in self._state.nodes.rows:
            return "the node is gone"
        return (
            self._find_lasting_rejection(pod, node)
            or self._find_short_resource(record, uid, name, margin)
            or self._find_existing_anti_affinity(pod, uid, record.priority, node)
            or self._find_preceding(record, uid, name, node, now)
        )

    def _find_lasting_rejection(self, pod: _Pod, node: NodeTraits) -> str:
        """Find what the node itself says that rejects the pod."""
        found = find_node_rejection(node, pod.rules, pod.rules.tolerates)
        if found is None:
            return ""
        return _WORDS.get(found.reason) or f"taint {found.detail.partition(':')[0].partition('=')[0]}"

    def _find_short_resource(self, record: PodRecord, uid: str, name: str, margin: float) -> str:
        """Name a requested resource of which the node has not enough left; empty for none."""
        on_node = self._state.node_records[name]
        others = [pod for pod in on_node.list_assumed_pods() if pod.uid != uid]
        others += [self._state.pods[each] for each in self._nominated_before(record, uid, name)]
        used, capacity = sum_amounts((pod.amounts for pod in others), on_node.requested), on_node.capacity
        if margin:
            kept = (int(capacity.cpu_milli * margin), int(capacity.memory_bytes * margin))
            used = used.add(Amounts(0, *kept))
        found = next(list_shortages(record.amounts, used, capacity), None)
        return "" if found is None else _WORDS.get(found.reason) or f"insufficient {found.detail}"

    def _nominated_before(self, record: PodRecord, uid: str, name: str) -> Iterator[str]:
        """Give the nominated pods of the node with the same or a larger priority."""
        for each in self._nominated.get(name, ()):
            other = self._state.pods.get(each)
            if each != uid and other is not None and other.priority >= record.priority:
                yield each

    def _find_existing_anti_affinity(self, pod: _Pod, uid: str, priority: int, node: NodeTraits) -> str:
        """Find out whether some pod's required anti-affinity keeps this one away.

        Where labels of a namespace would tell, it does.
        """
        for term, _, owners in self._existing.find_terms(pod.metadata):
            unbound = owners.get("", set()) - {uid}
            at = owners.keys() | {self._place(each, self._pods[each], priority) for each in unbound}
            key = term.topology_key
            wanted = node.labels.get(key)
            if wanted is not None and any(
                self._nodes[name].labels.get(key) == wanted for name in at if name in self._nodes
            ):
                return OTHERS_ANTI_AFFINITY
        return ""

    def _place(self, uid: str, pod: _Pod, priority: int) -> str:
        """Return the node on which a pod counts, empty for none."""
        bound_to = self._state.get_assumed(uid)
        if pod.node or bound_to is not None:
            return pod.node or (bound_to.node if bound_to is not None else "")
        record = self._state.pods.get(uid)
        return pod.nominated if record is not None and record.priority >= priority else ""

    def _find_preceding(self, record: PodRecord, uid: str, name: str, node: NodeTraits, now: float) -> str:
        """Say that a larger-priority pod that is still untried would fit here; empty if there is none.

        A pod blocks room only if its scheduler was seen working, because a pod can name a scheduler that does
        not exist.
        """
        if self._untried_order is None:
            blocking = (kind for kind in self._untried if kind.scheduler in self._schedulers)
            self._untried_order = sorted(blocking, key=lambda kind: -kind.priority)
        looked = 0
        for kind in self._untried_order:
            if kind.priority <= record.priority or looked == MOST_UNTRIED:
                return ""
            other_uid = self._find_untried(kind, uid, now)
            if other_uid is None:
                continue
            looked += 1
            pod, other = self._pods[other_uid], self._state.pods[other_uid]
            if (
                not self._find_lasting_rejection(pod, node)
                and not self._find_short_resource(other, other_uid, name, 0.0)
                and self._has_cards(other, name)
            ):
                return "a pod of larger priority waits for the node"
        return ""

    def _find_untried(self, kind: _PodKind, but: str, now: float) -> str | None:
        """Find a pod of a kind that still blocks room; pods that have waited too long are forgotten."""
        for uid in list(self._untried.get(kind, ())):
            since = self._pods[uid].untried_since
            if since is None or now - since >= UNTRIED_S:
                self._forget_untried(uid, self._pods[uid])
            elif uid != but and uid in self._state.pods and self._state.get_assumed(uid) is None:
                return uid
        return None

    def _forget_untried(self, uid: str, pod: _Pod) -> None:
        alike = self._untried.get(pod.kind) if pod.kind is not None else None
        if alike is not None and pod.kind is not None:
            alike.discard(uid)
            if not alike:
                del self._untried[pod.kind]
                self._untried_order = None

    def _has_cards(self, record: PodRecord, name: str) -> bool:
        if record.charged is None:
            return True
        nodes = self._state.nodes
        row = nodes.rows[name]
        admits = self._selectors.get_mask(nodes.inventory, record.charged.selector)
        ask = make_policy_request(record.charged, record.amounts, admits=admits)
        query = SchedulingRequest(record.charged, ask)
        return bool(filter_nodes(nodes, query, np.array([row], dtype=np.intp))[0])


def _is_untried(pod: Pod) -> bool:
    """Return True if a pod is of another scheduler, which has not reported on it yet."""
    return pod.spec.scheduler_name != BATCH_SCHEDULER and not pod.status.was_tried
