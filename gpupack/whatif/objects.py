"""Nodes and pods as the questions read them: all that filter reads, and what kube-scheduler looks at besides.

From kubectl's JSON, or from the API server's lists. Everything else is skipped while decoding.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from allocator.claims import ClaimObject
from allocator.names import PLACEHOLDER_FOR, POD_REQUEUED
from gpupack.errors import InputError
from gpupack.inventory.kubectl_json import ALL_ALLOWED, read_items
from kubeapi.objects import (
    Node,
    Pod,
    PodDisruptionBudget,
)
from scheduler_plugin.cache.pods import is_held_by_queue, is_of_batch_mode, is_own_placeholder, is_requeued


@dataclass(frozen=True, slots=True)
class KubeObjects:
    """The objects of an input, by kind."""

    nodes: list[Node]
    pods: list[Pod]
    budgets: list[PodDisruptionBudget]
    claims: list[ClaimObject]


def load_objects(text: str | bytes) -> KubeObjects:
    """Read `kubectl get nodes,pods -A -o json`; PodDisruptionBudgets and ResourceClaims may be in it too.

    Raises:
        InputError: not JSON, something else than a list of nodes and pods, or no nodes in it.
    """
    kinds = {
        "Node": Node,
        "Pod": Pod,
        "PodDisruptionBudget": PodDisruptionBudget,
        "ResourceClaim": ClaimObject,
    }
    found = read_items(text, kinds, content="nodes and pods", allowed=ALL_ALLOWED)
    if not found["Node"]:
        raise InputError(f"the input holds {'no nodes' if found['Pod'] else 'nothing'}; {ALL_ALLOWED}")
    return KubeObjects(*(found[kind] for kind in kinds))


def list_gates(pod: Pod) -> list[str]:
    """List a pod's scheduling gates, and the queue's annotation where it was requeued."""
    return [*pod.gates, POD_REQUEUED] if is_requeued(pod) else pod.gates


def waits_in_queue(pod: Pod) -> bool:
    """Tell whether it is the queue that a pod without a node waits for, also if batch mode binds it."""
    return is_held_by_queue(pod) or is_of_batch_mode(pod)


def list_stood_for(pod: Pod) -> list[str]:
    """List the pods for which a placeholder of gpupack's asks for a node, as it names them; else none."""
    named = pod.metadata.get_annotation(PLACEHOLDER_FOR) if is_own_placeholder(pod) else None
    return named.split(",") if named else []


class Revision(NamedTuple):
    """The version of a workload's pod template from which a rollout made a pod."""

    kind: str
    name: str
    hash: str


_HASHES: Final = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}


def read_revision(pod: Pod) -> Revision | None:
    """Read which revision a pod is of, if what made it replaces pods and may start the new one first.

    A Deployment's ReplicaSet, and that of a Rollout of Argo, bears its name and the hash of the revision.
    """
    controller, labels = pod.metadata.controller, pod.metadata.labels or {}
    if controller is None:
        return None
    if controller.kind == "DaemonSet":
        return Revision("DaemonSet", controller.name, labels.get("controller-revision-hash", ""))
    for label, kind in _HASHES.items():
        suffix = f"-{labels.get(label, '')}"
        if controller.kind == "ReplicaSet" and suffix != "-" and controller.name.endswith(suffix):
            return Revision(kind, controller.name.removesuffix(suffix), suffix[1:])
    return None
