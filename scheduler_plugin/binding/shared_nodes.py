"""Nodes that batch mode shares with another scheduler, and when it stops binding there. Pure.

What kube-scheduler has decided and not bound yet is not seen. Where a node is short of cpu or memory two pods
may meet, and the kubelet then fails one for good. Then the headroom is too small, and batch mode stops on
shared nodes for a while.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from allocator.names import BATCH_POOL, BATCH_SCHEDULER
from kubeapi.podstate import is_terminal
from scheduler_plugin.cache.host_objects import HostNode, HostPod
from scheduler_plugin.cache.signals import Signal

STOPPED_S: Final = 600.0
"""So long batch mode binds nothing on shared nodes after a kubelet has failed a pod there."""

OUT_OF: Final = "OutOf"
"""Reason with which a kubelet fails a pod that it has no room for, before the resource's name."""

KEEPS_OUT: Final = frozenset({"NoSchedule", "NoExecute"})


class SharedNodes:
    """SharedNodes tells batch mode's own nodes from those that it shares.

    Attributes:
        failed: Pods that kubelets failed for lack of a resource on shared nodes with pods of batch mode, by
            that resource.
        lost: Signals such a pod: what batch mode says of it.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.lost: Signal[[str]] = Signal()
        self._own: set[str] = set()
        self._on: dict[str, set[str]] = {}
        self._node_of: dict[str, str] = {}
        self._counted: set[str] = set()
        self._has_list = False
        self._stopped_until = float("-inf")
        self._why = ""

    # What comes in.

    def apply_node(self, node: HostNode) -> None:
        """Take a node's newest version."""
        own = any(taint.key == BATCH_POOL and taint.effect in KEEPS_OUT for taint in node.spec.taints or ())
        (self._own.add if own else self._own.discard)(node.metadata.name)

    def delete_node(self, name: str) -> None:
        """Forget a node."""
        self._own.discard(name)

    def replace_nodes(self, nodes: Sequence[HostNode]) -> None:
        """Take a complete list of nodes."""
        self._own.clear()
        for node in nodes:
            self.apply_node(node)

    def apply_pod(self, pod: HostPod, now: float) -> None:
        """Take a pod's newest version.

        Args:
            pod: The pod.
            now: Seconds.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        of_batch = pod.spec.scheduler_name == BATCH_SCHEDULER
        failed = pod.status.phase == "Failed" and pod.status.reason.startswith(OUT_OF)
        if failed and uid not in self._counted:
            self._counted.add(uid)
            if self._has_list and node not in self._own and (of_batch or self._on.get(node)):
                self._lose(pod, now)
        if of_batch and node and not is_terminal(pod.status.phase):
            self._node_of[uid] = node
            self._on.setdefault(node, set()).add(uid)
        else:
            self._leave(uid)

    def delete_pod(self, uid: str) -> None:
        """Forget a pod."""
        self._counted.discard(uid)
        self._leave(uid)

    def replace_pods(self, pods: Sequence[HostPod], now: float) -> None:
        """Take a complete list of pods; what had failed before the first one is history.

        Args:
            pods: All pods.
            now: Seconds.
        """
        listed = {pod.metadata.uid for pod in pods}
        for uid in [uid for uid in (*self._node_of, *self._counted) if uid not in listed]:
            self.delete_pod(uid)
        for pod in pods:
            self.apply_pod(pod, now)
        self._has_list = True

    # What is asked.

    def is_own(self, name: str) -> bool:
        """Tell whether a taint keeps all pods but those of batch mode, and of DaemonSets, off a node."""
        return name in self._own

    def is_stopped(self, now: float) -> bool:
        """Tell whether batch mode binds nothing on shared nodes now."""
        return now < self._stopped_until

    def explain_stop(self, name: str, now: float) -> str:
        """Say why batch mode must not bind to a node now, empty where it may."""
        return self._why if self.is_stopped(now) and not self.is_own(name) else ""

    def _lose(self, pod: HostPod, now: float) -> None:
        resource = pod.status.reason.removeprefix(OUT_OF)
        self.failed[resource] += 1
        self._stopped_until = now + STOPPED_S
        self._why = (
            f"batch mode pauses on nodes without the taint {BATCH_POOL}: the kubelet of node"
            f" {pod.spec.node_name} had not enough {resource} for pod"
            f" {pod.metadata.namespace}/{pod.metadata.name}; a larger batchHeadroom helps"
        )
        self.lost(self._why)

    def _leave(self, uid: str) -> None:
        node = self._node_of.pop(uid, None)
        if node is not None:
            on = self._on[node]
            on.discard(uid)
            if not on:
                del self._on[node]
