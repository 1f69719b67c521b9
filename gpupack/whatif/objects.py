"""Nodes and pods as the questions read them: all that filter reads, and what kube-scheduler looks at besides.

From kubectl's JSON, or from the API server's lists. Everything else is skipped while decoding.
"""

from dataclasses import dataclass

from allocator.claims import ClaimObject
from allocator.names import (
    BATCH_SCHEDULER,
    POD_REQUEUED,
    QUEUE_GATE,
)
from gpupack.errors import InputError
from gpupack.inventory.kubectl_json import ALL_ALLOWED, read_items
from kubeapi.objects import (
    Node,
    Pod,
    PodDisruptionBudget,
)
from scheduler_plugin.cache.pods import is_requeued


@dataclass(frozen=True, slots=True)
class KubeObjects:
    """KubeObjects is the objects of an input, by kind."""

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
    """Names of a pod's scheduling gates, and of the queue's annotation where it was requeued."""
    return [*pod.gates, POD_REQUEUED] if is_requeued(pod) else pod.gates


def is_of_batch_mode(pod: Pod) -> bool:
    """Tell whether batch mode binds a pod without a gate when its turn has come."""
    return pod.spec.scheduler_name == BATCH_SCHEDULER and not list_gates(pod)


def waits_in_queue(pod: Pod) -> bool:
    """Tell whether it is the queue that a pod without a node waits for."""
    gates = list_gates(pod)
    return QUEUE_GATE in gates or POD_REQUEUED in gates or is_of_batch_mode(pod)


def read_deployment_name(pod: Pod) -> str:
    """Read the Deployment of a pod from its ReplicaSet, which bears its name and the hash of a revision.

    Returns:
        Empty if no Deployment made it.
    """
    controller = pod.metadata.controller
    suffix = f"-{(pod.metadata.labels or {}).get('pod-template-hash', '')}"
    if controller is None or controller.kind != "ReplicaSet" or suffix == "-":
        return ""
    name = controller.name.removesuffix(suffix)
    return "" if name == controller.name else name
