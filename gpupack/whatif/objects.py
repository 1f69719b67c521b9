"""Nodes and pods as the questions read them: all that filter reads, and what kube-scheduler looks at besides.

From kubectl's JSON, or from the API server's lists. Everything else is skipped while decoding.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from allocator.claims import ClaimObject
from allocator.names import (
    BATCH_SCHEDULER,
    PLACEHOLDER_LABEL,
    PLACEHOLDER_SCHEDULER,
    POD_REQUEUED,
    QUEUE_GATE,
)
from gpupack.errors import InputError
from gpupack.inventory.kubectl_json import ALL_ALLOWED, read_items
from scheduler_plugin.cache.disruption_budgets import DisruptionBudget
from scheduler_plugin.cache.host_objects import NodeAffinity
from scheduler_plugin.cache.objects import Condition, ContainerLite, ContainerStatus, KubeStruct
from scheduler_plugin.cache.pods import is_requeued
from scheduler_plugin.queue.cache.pods import (
    PodOwner,
    QueueNode,
    QueuePod,
    QueuePodMetadata,
    QueueSpec,
    QueueStatus,
)


class KubeNodeStatus(KubeStruct):
    """`status` of a node."""

    allocatable: dict[str, str | int] | None = None
    capacity: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None


class KubeNode(QueueNode, tag_field="kind", tag="Node"):
    """A node."""

    status: KubeNodeStatus = msgspec.field(default_factory=KubeNodeStatus)  # type: ignore[assignment]

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def ready(self) -> bool | None:
        """Whether the condition Ready is True, None if there is none."""
        for condition in self.status.conditions or ():
            if condition.type == "Ready":
                return condition.status == "True"
        return None


class OwnerReference(PodOwner):
    """OwnerReference is an item of `metadata.ownerReferences`, with the owner's name."""

    name: str = ""


class KubePodMetadata(QueuePodMetadata):
    """`metadata` of a pod."""

    owner_references: list[OwnerReference] | None = None  # type: ignore[assignment]


class ContainerPort(KubeStruct):
    """ContainerPort is one of a container's ports."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class KubeContainer(ContainerLite):
    """A container or init container."""

    ports: list[ContainerPort] | None = None


class AffinityTerms(KubeStruct):
    """Required and preferred terms, as they are written."""

    required_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None
    preferred_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class KubeAffinity(KubeStruct):
    """`spec.affinity`; what it says of pods is read where it matters."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: AffinityTerms | None = None
    pod_anti_affinity: AffinityTerms | None = None


class VolumeClaimSource(KubeStruct):
    """`persistentVolumeClaim` of a volume."""

    claim_name: str = ""


class Volume(KubeStruct):
    """Volume is an item of `spec.volumes`."""

    persistent_volume_claim: VolumeClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class KubePodSpec(QueueSpec):
    """`spec` of a pod."""

    affinity: KubeAffinity | None = None  # type: ignore[assignment]
    containers: list[KubeContainer] | None = None  # type: ignore[assignment]
    init_containers: list[KubeContainer] | None = None  # type: ignore[assignment]
    scheduler_name: str = ""
    volumes: list[Volume] | None = None


class Terminated(KubeStruct):
    """Terminated is the end of a container."""

    finished_at: str | None = None


class ContainerState(KubeStruct):
    """`state` of a container."""

    terminated: Terminated | None = None


class KubeContainerStatus(ContainerStatus):
    """KubeContainerStatus is one of a pod's `containerStatuses`."""

    state: ContainerState | None = None


class KubePodStatus(QueueStatus):
    """`status` of a pod."""

    container_statuses: list[KubeContainerStatus] | None = None  # type: ignore[assignment]
    reason: str = ""
    message: str = ""


class KubePod(QueuePod, tag_field="kind", tag="Pod"):
    """A pod."""

    metadata: KubePodMetadata = msgspec.field(default_factory=KubePodMetadata)
    spec: KubePodSpec = msgspec.field(default_factory=KubePodSpec)
    status: KubePodStatus = msgspec.field(default_factory=KubePodStatus)

    @property
    def full_name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class KubeBudget(DisruptionBudget, tag_field="kind", tag="PodDisruptionBudget"):
    """A PodDisruptionBudget."""


class KubeClaim(ClaimObject, tag_field="kind", tag="ResourceClaim"):
    """A ResourceClaim."""


@dataclass(frozen=True, slots=True)
class KubeObjects:
    """KubeObjects is the objects of an input, by kind."""

    nodes: list[KubeNode]
    pods: list[KubePod]
    budgets: list[KubeBudget]
    claims: list[KubeClaim]


def load_objects(text: str | bytes) -> KubeObjects:
    """Read `kubectl get nodes,pods -A -o json`; PodDisruptionBudgets and ResourceClaims may be in it too.

    Raises:
        InputError: not JSON, something else than a list of nodes and pods, or no nodes in it.
    """
    kinds = {
        "Node": KubeNode,
        "Pod": KubePod,
        "PodDisruptionBudget": KubeBudget,
        "ResourceClaim": KubeClaim,
    }
    found = read_items(text, kinds, content="nodes and pods", allowed=ALL_ALLOWED)
    if not found["Node"]:
        raise InputError(f"the input holds {'no nodes' if found['Pod'] else 'nothing'}; {ALL_ALLOWED}")
    if not all(node.name for node in found["Node"]):
        raise InputError(f"the input holds a node without a name; {ALL_ALLOWED}")
    return KubeObjects(*(found[kind] for kind in kinds))


def is_placeholder(pod: KubePod) -> bool:
    """Tell whether a pod is one of ours that asks a cluster autoscaler for a node, and never runs."""
    return (
        PLACEHOLDER_LABEL in (pod.metadata.labels or {}) and pod.spec.scheduler_name == PLACEHOLDER_SCHEDULER
    )


def list_gates(pod: KubePod) -> list[str]:
    """Names of a pod's scheduling gates, and of the queue's annotation where it was requeued."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    return [*gates, POD_REQUEUED] if is_requeued(pod) else gates


def is_of_batch_mode(pod: KubePod) -> bool:
    """Tell whether batch mode binds a pod without a gate when its turn has come."""
    return pod.spec.scheduler_name == BATCH_SCHEDULER and not list_gates(pod)


def waits_in_queue(pod: KubePod) -> bool:
    """Tell whether it is the queue that a pod without a node waits for."""
    gates = list_gates(pod)
    return QUEUE_GATE in gates or POD_REQUEUED in gates or is_of_batch_mode(pod)
