"""Nodes and pods with what kube-scheduler checks besides amounts: labels, taints, affinity, conditions."""

import msgspec

from kubeapi.selectors import NodeRules, NodeTerm, Taint, Toleration
from scheduler_plugin.cache.objects import (
    Affinity,
    KubeStruct,
    NodeLite,
    PodLite,
    PodLiteStatus,
    PodMetadata,
    PodSpec,
    PreferredTerms,
)


class RequiredNodes(KubeStruct):
    """The required half of a node affinity."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(PreferredTerms):
    """`spec.affinity.nodeAffinity`."""

    required_during_scheduling_ignored_during_execution: RequiredNodes | None = None


class RulesAffinity(Affinity):
    """`spec.affinity`, with the required node affinity."""

    node_affinity: NodeAffinity | None = None


class RulesSpec(PodSpec):
    """`spec` of a pod, with the nodes that it may run on."""

    node_selector: dict[str, str] | None = None
    affinity: RulesAffinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


class HostNodeSpec(KubeStruct):
    """`spec` of a node."""

    taints: tuple[Taint, ...] | None = None
    unschedulable: bool = False


class HostPodSpec(RulesSpec):
    """`spec` of a pod, with its scheduler."""

    scheduler_name: str = ""


class HostPodStatus(PodLiteStatus):
    """`status` of a pod."""

    reason: str = ""


class HostPod(PodLite):
    """A pod."""

    spec: HostPodSpec = msgspec.field(default_factory=HostPodSpec)
    status: HostPodStatus = msgspec.field(default_factory=HostPodStatus)


class HostNode(NodeLite):
    """A node."""

    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: HostNodeSpec = msgspec.field(default_factory=HostNodeSpec)


def read_node_rules(spec: RulesSpec) -> NodeRules:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return NodeRules(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        terms=required.node_selector_terms if required is not None else None,
        tolerations=tuple(sorted(set(spec.tolerations or ()), key=_toleration_key)),
    )


def _toleration_key(toleration: Toleration) -> tuple[str, str, str, str]:
    return (toleration.key, toleration.operator, toleration.value, toleration.effect)
