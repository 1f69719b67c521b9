"""What gpupack reads of the objects of the Kubernetes API: Pod, Node, and the smaller ones. Pure.

Names are those of the API: what is `restartPolicy` there is `restart_policy` here. msgspec skips every other
field while it decodes. A Pod with all its parts is decoded as fast as a smaller one would be, because the
structs are left out of garbage collection: JSON has no cycles, so never put one into these objects.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubeapi.metadata import parse_resource_version, parse_time
from kubeapi.selectors import LabelSelector, NodeRules, NodeTerm, NodeTraits, Taint, Toleration

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod, the API's image of a static pod. Its value is the UID that the kubelet uses."""

SCHEDULED: Final = "PodScheduled"
"""The only condition of a pod that is not the kubelet's."""
SCHEDULING_GATED: Final = "SchedulingGated"
"""Reason with which the API server creates a pod that has gates; it stays until a scheduler tries the pod."""
TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})

ResourceList = dict[str, str | int]
"""Quantities by the name of the resource, as they are written."""


def is_extended_resource(name: str) -> bool:
    """Return True for `domain/name` that is neither Kubernetes' own nor, with `requests.`, of a quota.

    Only such a resource may be of a device plugin, and it is whole.
    """
    domain, _, rest = name.partition("/")
    return bool(domain and rest) and "kubernetes.io/" not in name and not name.startswith("requests.")


class KubeStruct(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """Base of the objects of the API and of their parts: lower camel case on the wire."""


T = TypeVar("T")


class ListMeta(KubeStruct):
    """`metadata` of a list; `next` is where the next page goes on, empty for the last one."""

    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class ObjectList(KubeStruct, Generic[T]):
    """A page of a list; the API server writes null for no items."""

    items: list[T] | None
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


def make_list_decoder(kind: type[T]) -> Callable[[bytes], ObjectList[T]]:
    return msgspec.json.Decoder(ObjectList[kind]).decode  # type: ignore[valid-type]


class OwnerReference(KubeStruct):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(KubeStruct):
    """`metadata` of any object.

    Attributes:
        creation_timestamp: API servers before 1.34 write null in templates of objects.
        deletion_timestamp: When the grace period of an object that is being deleted ends.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def version(self) -> int:
        return parse_resource_version(self.resource_version)

    @property
    def created_at(self) -> float:
        """Seconds since the epoch; 0 if the API server does not say."""
        return parse_time(self.creation_timestamp) or 0.0

    @property
    def is_terminating(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that would create the object again."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)

    def is_controlled_by(self, uid: str) -> bool:
        controller = self.controller
        return controller is not None and controller.uid == uid

    def get_annotation(self, name: str) -> str | None:
        return None if self.annotations is None else self.annotations.get(name)

    def get_label(self, name: str) -> str | None:
        return None if self.labels is None else self.labels.get(name)


class KubeObject(KubeStruct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def full_name(self) -> str:
        return self.metadata.full_name


class Condition(KubeStruct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


class ConditionedStatus(KubeStruct):
    conditions: list[Condition] | None = None

    def get_condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions or () if each.type == kind), None)


class ContainerClaim(KubeStruct):
    """A claim of the pod that a container uses; no request means all of the claim's."""

    name: str = ""
    request: str = ""


class ResourceRequests(KubeStruct):
    """What a running container or pod has been given; its limits are not read."""

    requests: ResourceList | None = None


class ResourceRequirements(KubeStruct):
    limits: ResourceList | None = None
    requests: ResourceList | None = None
    claims: list[ContainerClaim] | None = None


class ContainerPort(KubeStruct):
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class Container(KubeStruct):
    name: str = ""
    restart_policy: str | None = None
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None

    @property
    def is_sidecar(self) -> bool:
        """Whether an init container goes on running beside the main containers."""
        return self.restart_policy == "Always"


class PodAffinity(KubeStruct):
    """`podAffinity` or `podAntiAffinity`; few pods have one, so `scheduling.pod_affinity` reads the terms."""

    required_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None
    preferred_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class NodeSelector(KubeStruct):
    """The required half of a node affinity: one of the terms must hold."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(KubeStruct):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class Affinity(KubeStruct):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(KubeStruct):
    when_unsatisfiable: str = ""


class PodSchedulingGate(KubeStruct):
    name: str = ""


class PersistentVolumeClaimSource(KubeStruct):
    claim_name: str = ""


class Volume(KubeStruct):
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class PodSchedulingGroup(KubeStruct):
    """Names the pod's PodGroup, whose pods kube-scheduler places in one cycle from Kubernetes 1.37 on."""

    pod_group_name: str | None = None


class PodResourceClaim(KubeStruct):
    """A ResourceClaim of a pod, by the pod's own name for it; one from a template is named in the status."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(KubeStruct):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str = "PreemptLowerPriority"
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    scheduling_gates: list[PodSchedulingGate] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    volumes: list[Volume] | None = None
    scheduling_group: PodSchedulingGroup | None = None

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Init containers and sidecars first."""
        return (*(self.init_containers or ()), *(self.containers or ()))

    @property
    def requested_resources(self) -> list[str]:
        """Names of what any container asks for, be it 0 of it; one may be there more than once."""
        resources = (each.resources for each in self.all_containers if each.resources is not None)
        amounts = (each for both in resources for each in (both.limits, both.requests))
        return [name for each in amounts for name in each or ()]

    @property
    def node_terms(self) -> tuple[NodeTerm, ...] | None:
        """Terms of the required node affinity, one of which must hold; None: no such affinity."""
        affinity = self.affinity.node_affinity if self.affinity is not None else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        return required.node_selector_terms if required is not None else None

    @property
    def node_rules(self) -> NodeRules:
        """What the nodes have to be like that it may run on."""
        return NodeRules(
            selector=tuple(sorted((self.node_selector or {}).items())),
            terms=self.node_terms,
            tolerations=tuple(sorted(set(self.tolerations or ()), key=_toleration_key)),
        )

    @property
    def has_preferences(self) -> bool:
        """Whether it prefers some nodes, so that kube-scheduler must score all that fit."""
        affinity = self.affinity
        if affinity is not None:
            kinds = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
            if any(kind and kind.preferred_during_scheduling_ignored_during_execution for kind in kinds):
                return True
        spreads = self.topology_spread_constraints or ()
        return any(spread.when_unsatisfiable == "ScheduleAnyway" for spread in spreads)

    @property
    def can_preempt(self) -> bool:
        """Whether pods of smaller priority may be evicted for it.

        Not if it has affinity to other pods, because those could be among the victims.
        """
        near = self.affinity.pod_affinity if self.affinity is not None else None
        required = near is not None and near.required_during_scheduling_ignored_during_execution
        return self.preemption_policy != "Never" and not required


def _toleration_key(toleration: Toleration) -> tuple[str, str, str, str]:
    return (toleration.key, toleration.operator, toleration.value, toleration.effect)


class ContainerStateTerminated(KubeStruct):
    finished_at: str | None = None


class ContainerState(KubeStruct):
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(KubeStruct):
    """What the kubelet says of a container.

    Attributes:
        allocated_resources: What the kubelet has promised the container, while it is being resized.
        resources: What the container has now.
    """

    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState | None = None
    allocated_resources: ResourceList | None = None
    resources: ResourceRequests | None = None


class ContainerExtendedResourceRequest(KubeStruct):
    """Names the request of a claim that a container's limit became."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(KubeStruct):
    """The claim that the scheduler made for a pod that asks by its containers' limits."""

    resource_claim_name: str = ""
    request_mappings: list[ContainerExtendedResourceRequest] | None = None


class PodConditions(ConditionedStatus):
    """The conditions of a pod, and what they say of its scheduling."""

    @property
    def scheduled(self) -> Condition | None:
        """The condition PodScheduled, which for a pod that had gates may be the API server's."""
        return self.get_condition(SCHEDULED)

    @property
    def was_tried(self) -> bool:
        """Whether a scheduler has said anything of the pod."""
        found = self.scheduled
        return found is not None and found.reason != SCHEDULING_GATED

    @property
    def was_refused(self) -> bool:
        """Whether a scheduler says that it could not place the pod, for want of room or for an error."""
        found = self.scheduled
        return found is not None and found.status == "False" and self.was_tried

    @property
    def is_unschedulable(self) -> bool:
        """Whether its condition says so, by which a cluster autoscaler counts it."""
        found = self.scheduled
        return found is not None and found.status == "False" and found.reason == "Unschedulable"


class PodStatus(PodConditions):
    """`status` of a pod.

    Attributes:
        allocated_resources: What the kubelet has allocated to the pod as a whole, from Kubernetes 1.36 on.
        resources: What the pod as a whole has, likewise.
    """

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: ResourceList | None = None
    resources: ResourceRequests | None = None
    resource_claim_statuses: list[PodResourceClaim] | None = None
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None

    def list_containers(self) -> Iterator[ContainerStatus]:
        yield from self.init_container_statuses or ()
        yield from self.container_statuses or ()
        yield from self.ephemeral_container_statuses or ()


class Pod(KubeObject):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def has_ended(self) -> bool:
        """Whether it has succeeded or failed for good: no container of it starts again."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def priority(self) -> int:
        return self.spec.priority or 0

    @property
    def scheduling_group(self) -> tuple[str, str] | None:
        """Namespace and name of its PodGroup of `scheduling.k8s.io`; None for a pod on its own."""
        group = self.spec.scheduling_group
        if group is None or not group.pod_group_name:
            return None
        return self.metadata.namespace, group.pod_group_name

    @property
    def is_gated(self) -> bool:
        return bool(self.spec.scheduling_gates)

    @property
    def gates(self) -> list[str]:
        return [gate.name for gate in self.spec.scheduling_gates or ()]

    @property
    def runtime_uid(self) -> str:
        """The UID under which the kubelet runs the pod: of a static pod another than that of its mirror."""
        return self.metadata.get_annotation(MIRROR_ANNOTATION) or self.metadata.uid

    @property
    def is_mirror(self) -> bool:
        """Whether it is the image of a static pod of the kubelet, which no eviction ends."""
        return MIRROR_ANNOTATION in (self.metadata.annotations or ())

    @property
    def is_of_daemon_set(self) -> bool:
        owner = self.metadata.controller
        return owner is not None and owner.kind == "DaemonSet"


def decode_pod(body: bytes) -> Pod:
    """Decode a pod as the API server writes it; what it may raise is `kubeapi.errors.UNREADABLE`."""
    return msgspec.json.decode(body, type=Pod)


class ServerVersion(KubeStruct):
    major: str
    minor: str
    git_version: str


class AccessStatus(KubeStruct):
    allowed: bool = False
    denied: bool = False


class AccessReview(KubeStruct):
    status: AccessStatus = msgspec.field(default_factory=AccessStatus)

    @property
    def is_allowed(self) -> bool:
        return self.status.allowed and not self.status.denied


class NodeSpec(KubeStruct):
    taints: tuple[Taint, ...] | None = None
    unschedulable: bool = False


class NodeSystemInfo(KubeStruct):
    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(ConditionedStatus):
    allocatable: ResourceList | None = None
    capacity: ResourceList | None = None
    node_info: NodeSystemInfo | None = None


class Node(KubeObject):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def traits(self) -> NodeTraits:
        meta, spec = self.metadata, self.spec
        return NodeTraits(meta.name, spec.unschedulable, meta.labels or {}, spec.taints or ())

    @property
    def ready(self) -> bool | None:
        """Whether the condition Ready is True; None if there is none."""
        condition = self.status.get_condition("Ready")
        return None if condition is None else condition.is_true


class WritableNodeSpec(KubeStruct):
    """`spec` of a Node whose taints are written again: they stay as they are, with all their fields."""

    taints: list[dict[str, Any]] | None = None


class WritableNode(KubeObject):
    spec: WritableNodeSpec = msgspec.field(default_factory=WritableNodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    def make_taint_removal(self, keys: Collection[str]) -> dict[str, Any]:
        """Make the merge patch that takes taints, by their keys, off this version of the Node alone."""
        left = [taint for taint in self.spec.taints or () if taint.get("key") not in keys]
        return {
            "metadata": {"resourceVersion": self.metadata.resource_version},
            "spec": {"taints": left or None},
        }


class Namespace(KubeObject):
    """Its labels choose queues."""


class PodTemplate(KubeObject):
    """Its annotations are those of the pods that a Job makes."""


class JobSpec(KubeStruct):
    completions: int | None = None
    template: PodTemplate = msgspec.field(default_factory=PodTemplate)


class JobStatus(ConditionedStatus):
    succeeded: int = 0


class Job(KubeObject):
    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)


class GangSchedulingPolicy(KubeStruct):
    """The pods of a group start together, at least so many of them."""

    min_count: int = 0


class PodGroupSchedulingPolicy(KubeStruct):
    """`schedulingPolicy` of Kubernetes' own PodGroup; without `gang` it is a group for other reasons."""

    gang: GangSchedulingPolicy | None = None


class PodGroupSchedulingConstraints(KubeStruct):
    """`schedulingConstraints` of Kubernetes' own PodGroup: labels of nodes that all its pods must share."""

    topology: list[dict[str, Any]] | None = None


class PodGroupSpec(KubeStruct):
    """`spec` of a PodGroup: `minMember` is of the coscheduling plugin, the rest of Kubernetes itself."""

    min_member: int = 0
    scheduling_policy: PodGroupSchedulingPolicy | None = None
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    priority: int | None = None

    @property
    def min_count(self) -> int:
        """How many of its pods start together, at least; 0 if its pods need not start together."""
        gang = self.scheduling_policy.gang if self.scheduling_policy is not None else None
        return self.min_member if gang is None else gang.min_count


class PodGroup(KubeObject):
    """A PodGroup of Kubernetes (`scheduling.k8s.io`) or of the plugin coscheduling (`.x-k8s.io`)."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, as `Pod.scheduling_group` names it."""
        return self.metadata.namespace, self.metadata.name


class PodDisruptionBudgetSpec(KubeStruct):
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(KubeStruct):
    """`status` of a PodDisruptionBudget.

    Attributes:
        disrupted_pods: Times of evictions whose end the controller has not seen yet, by pod name.
    """

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudget(KubeObject):
    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)


class LeaseSpec(KubeStruct):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeStruct):
    """A Lease; its metadata stays as it is, to be written again."""

    metadata: dict[str, Any] = {}
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
