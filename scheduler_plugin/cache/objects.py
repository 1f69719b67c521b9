"""Nodes and pods as they come from the API server, only the fields that the scheduler reads.

msgspec skips everything else while decoding, so a list of 5 000 nodes costs neither seconds nor memory.
"""

from typing import Any

import msgspec

from allocator.names import POD_NODE_POLICY

Resources = dict[str, str | int]


class KubeStruct(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of the Kubernetes objects: lower camel case on the wire."""


class LiteMetadata(KubeStruct):
    """`metadata` of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class PodMetadata(LiteMetadata):
    """`metadata` of a pod.

    Attributes:
        labels: For PodDisruptionBudgets.
        deletion_timestamp: When its grace period ends, once it is being deleted.
    """

    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class NodeLiteStatus(KubeStruct):
    """`status` of a node."""

    allocatable: Resources | None = None


class NodeLite(KubeStruct):
    """A node."""

    metadata: LiteMetadata = msgspec.field(default_factory=LiteMetadata)
    status: NodeLiteStatus = msgspec.field(default_factory=NodeLiteStatus)


class ResourceList(KubeStruct):
    """`resources` of a container or a pod."""

    limits: Resources | None = None
    requests: Resources | None = None


class ContainerLite(KubeStruct):
    """A container or init container."""

    name: str = ""
    restart_policy: str | None = None
    resources: ResourceList | None = None


class PreferredTerms(KubeStruct):
    """The preferences of one kind of affinity."""

    preferred_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class PodAffinity(PreferredTerms):
    """`spec.affinity.podAffinity`: only the number of its terms matters here."""

    required_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class Affinity(KubeStruct):
    """`spec.affinity`."""

    node_affinity: PreferredTerms | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(KubeStruct):
    """SpreadConstraint is an item of `spec.topologySpreadConstraints`."""

    when_unsatisfiable: str = ""


class SchedulingGate(KubeStruct):
    """SchedulingGate is an item of `spec.schedulingGates`."""

    name: str = ""


class PodSpec(KubeStruct):
    """`spec` of a pod."""

    node_name: str = ""
    containers: list[ContainerLite] | None = None
    init_containers: list[ContainerLite] | None = None
    resources: ResourceList | None = None
    overhead: Resources | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    scheduling_gates: list[SchedulingGate] | None = None


class ContainerStatus(KubeStruct):
    """Status of a container: what it has while it is being resized."""

    name: str = ""
    allocated_resources: Resources | None = None
    resources: ResourceList | None = None


class Condition(KubeStruct):
    """A condition of a node or a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodLiteStatus(KubeStruct):
    """`status` of a pod.

    Attributes:
        allocated_resources: What the kubelet has allocated to the pod as a whole, from Kubernetes 1.36 on.
        resources: What the pod as a whole has, likewise.
    """

    phase: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: Resources | None = None
    resources: ResourceList | None = None


class PodLite(KubeStruct):
    """A pod."""

    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodLiteStatus = msgspec.field(default_factory=PodLiteStatus)


def has_preferences(pod: PodLite) -> bool:
    """Return True if the pod states preferences, so that kube-scheduler must score all fitting nodes."""
    affinity = pod.spec.affinity
    if affinity is not None:
        kinds = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        if any(kind and kind.preferred_during_scheduling_ignored_during_execution for kind in kinds):
            return True
    spreads = pod.spec.topology_spread_constraints or ()
    return any(spread.when_unsatisfiable == "ScheduleAnyway" for spread in spreads)


def ranks_nodes_itself(pod: PodLite) -> bool:
    """Return True if the pod states preferences and names no policy, so its preferences rank the nodes."""
    return has_preferences(pod) and POD_NODE_POLICY not in (pod.metadata.annotations or {})


def can_preempt(pod: PodLite) -> bool:
    """Return True if pods of smaller priority may be evicted for this one.

    Not if it has affinity to other pods, because those could be among the victims.
    """
    near = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    required = near is not None and near.required_during_scheduling_ignored_during_execution
    return pod.spec.preemption_policy != "Never" and not required


def build_container_mappings(containers: list[ContainerLite] | None) -> list[dict[str, Any]]:
    """Build the plain mappings of containers that `allocator.request.parse_pod` reads."""
    return [
        {
            "name": container.name,
            "restartPolicy": container.restart_policy,
            "resources": {"limits": container.resources.limits, "requests": container.resources.requests}
            if container.resources
            else None,
        }
        for container in containers or ()
    ]
