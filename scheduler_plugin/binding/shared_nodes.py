"""Nodes that batch mode shares with another scheduler, and when it stops binding there. Pure.

Decisions of kube-scheduler that are not bound yet cannot be seen. On a node that is short of cpu or memory
two Bindings may collide, and the kubelet then fails one of the two pods for good. That shows that the
headroom is too small, so batch mode stops on that node for a while.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from allocator.names import BATCH_POOL, BATCH_SCHEDULER
from kubeapi.objects import Node, Pod
from kubeapi.selectors import list_repelling_taints
from scheduler_plugin.cache.signals import Signal

STOPPED_S: Final = 600.0
"""How long batch mode binds nothing on a shared node after one of its Bindings met another one there."""

RACE_S: Final = 30.0
"""Bindings to one node this close together may have been decided without each other."""

OUT_OF: Final = "OutOf"
"""Reason with which a kubelet fails a pod that it has no room for, before the resource's name."""


class SharedNodes:
    """Distinguishes batch mode's own nodes from those that it shares.

    Anyone who may create pods can make a kubelet fail one: with `spec.nodeName`, and more cpu than the node
    has. So a failed pod is evidence only if it was seen without a node before, because then a scheduler has
    bound it.

    Attributes:
        failed: Pods that kubelets failed on shared nodes after a Binding of batch mode had collided with
            another one, by the resource that was short.
        lost: Signals such a pod, with a message about it.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.lost: Signal[[str]] = Signal()
        self._own: set[str] = set()
        self._unbound: set[str] = set()
        self._bound_at: dict[str, float] = {}
        self._batch_bound_at: dict[str, float] = {}
        self._stopped: dict[str, tuple[float, str]] = {}

    # What comes in.

    def apply_node(self, node: Node) -> None:
        taints = list_repelling_taints(node.spec.taints or (), unschedulable=False)
        own = any(taint.key == BATCH_POOL for taint in taints)
        (self._own.add if own else self._own.discard)(node.metadata.name)

    def delete_node(self, name: str) -> None:
        self._own.discard(name)
        self._batch_bound_at.pop(name, None)
        self._stopped.pop(name, None)

    def replace_nodes(self, nodes: Sequence[Node]) -> None:
        listed = {node.metadata.name for node in nodes}
        for name in (self._own | self._batch_bound_at.keys() | self._stopped.keys()) - listed:
            self.delete_node(name)
        for node in nodes:
            self.apply_node(node)

    def apply_pod(self, pod: Pod, now: float) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        if not node:
            self._unbound.add(uid)
            return
        of_batch = pod.spec.scheduler_name == BATCH_SCHEDULER
        if uid in self._unbound:
            self._unbound.discard(uid)
            self._bound_at[uid] = now
            if of_batch:
                self._batch_bound_at[node] = now
        bound_at = self._bound_at.get(uid)
        if pod.status.phase == "Failed" and pod.status.reason.startswith(OUT_OF) and bound_at is not None:
            batch_bound_at = self._batch_bound_at.get(node, float("-inf"))
            if node not in self._own and (of_batch or abs(bound_at - batch_bound_at) <= RACE_S):
                self._record_lost_race(pod, now)
        if pod.has_ended or pod.status.phase == "Running":
            # The kubelet has decided.
            self._bound_at.pop(uid, None)

    def delete_pod(self, uid: str) -> None:
        self._unbound.discard(uid)
        self._bound_at.pop(uid, None)

    def replace_pods(self, pods: Sequence[Pod], now: float) -> None:
        for uid in (self._unbound | self._bound_at.keys()) - {pod.metadata.uid for pod in pods}:
            self.delete_pod(uid)
        for pod in pods:
            self.apply_pod(pod, now)

    # What is asked.

    def is_own(self, name: str) -> bool:
        """Return True if a taint keeps all pods off a node except those of batch mode and DaemonSets."""
        return name in self._own

    def list_stopped(self, now: float) -> list[str]:
        return [name for name in self._stopped if self.explain_stop(name, now)]

    def explain_stop(self, name: str, now: float) -> str:
        """Say why batch mode must not bind to a node now, empty if it may."""
        until, why = self._stopped.get(name, (float("-inf"), ""))
        return why if now < until and not self.is_own(name) else ""

    def _record_lost_race(self, pod: Pod, now: float) -> None:
        node, resource = pod.spec.node_name, pod.status.reason.removeprefix(OUT_OF)
        self.failed[resource] += 1
        why = (
            f"batch mode pauses on node {node}: its kubelet had not enough {resource} for pod"
            f" {pod.full_name}, which was bound at the same time as another;"
            " a larger batchHeadroom helps"
        )
        self._stopped[node] = (now + STOPPED_S, why)
        self.lost(why)
