"""The API server of the model: nodes that do not change, groups, pods, and the events of these."""

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from kubeapi.objects import Node, Pod, PodGroup
from tests.cluster_builders import node_object, pod_object
from tests.property.kernel.api import Event
from tests.state_world import assigned


@dataclass(frozen=True, slots=True)
class ModelPod:
    """One pod: `card` is the one that its Binding named, -1 before; `group` is empty for a pod on its own."""

    uid: str
    units: int
    group: str
    scheduler: str
    version: int
    node: str = ""
    card: int = -1
    nominated: str = ""

    def raw(self) -> dict[str, Any]:
        return pod_object(
            self.uid,
            self.units,
            uid=self.uid,
            version=self.version,
            node=self.node,
            annotations=assigned(self.card, self.units, self.node) if self.card >= 0 else {},
            spec={"schedulingGroup": {"podGroupName": self.group}} if self.group else {},
            status={"nominatedNodeName": self.nominated} if self.nominated else {},
        )


@dataclass
class GroupApi:
    """What is true: sizes of cards by node, `minCount` by group, pods by UID; and the log of their events."""

    version: int = 1
    nodes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    pods: dict[str, ModelPod] = field(default_factory=dict)
    events: list[Event[ModelPod | str]] = field(default_factory=list)

    def put_pod(self, pod: ModelPod, **changes: Any) -> ModelPod:
        self.version += 1
        kind = "MODIFIED" if pod.uid in self.pods else "ADDED"
        pod = self.pods[pod.uid] = replace(pod, version=self.version, **changes)
        self.events.append(Event(self.version, kind, pod))
        return pod

    def delete_pod(self, uid: str) -> None:
        self.version += 1
        self.events.append(Event(self.version, "DELETED", self.pods.pop(uid)))

    def put_group(self, name: str, min_count: int) -> None:
        self.version += 1
        self.groups[name] = min_count
        self.events.append(Event(self.version, "ADDED", name))

    def make_node(self, name: str) -> Node:
        """Make the Node as its daemon publishes it once it has seen all pods."""
        raw: Any = node_object(name, self.nodes[name], version=self.version, seen=self.version, cpu="1000")
        return msgspec.convert(raw, Node)

    def make_group(self, name: str) -> PodGroup:
        spec = {"schedulingPolicy": {"gang": {"minCount": self.groups[name]}}}
        return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, PodGroup)

    @staticmethod
    def make_pod(pod: ModelPod) -> Pod:
        return msgspec.convert(pod.raw(), Pod)
