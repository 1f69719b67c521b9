"""The API server of the model: nodes, pods and one sequence of events, read by each at its own pace."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from allocator.names import COMPUTE_RESOURCE, NODE_CORDON, PERCENT_RESOURCE, POD_ASSIGNED, resource_name
from allocator.packing import NodeWords, read_node
from allocator.request import PodRequest, parse_pod
from deviceplugin.allocation.objects import (
    PodObject,
)
from kubeapi.objects import (
    Condition,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from tests.property.kernel.api import Event

UNIT_MIB = 1024
RESOURCE = resource_name(UNIT_MIB)


@dataclass(frozen=True)
class ModelPod:
    """One version of a pod; `containers` are (name, units, kind) with kind init, sidecar or main.

    With `percent` they ask for percent of a card in place of units. Each asks for `compute` percent of the
    compute of each of its cards.
    """

    uid: str
    name: str
    version: int
    containers: tuple[tuple[str, int, str], ...]
    annotations: tuple[tuple[str, str], ...] = ()
    node: str = ""
    phase: str = "Pending"
    started: bool = False
    created: str = ""
    ours: bool = False
    percent: bool = False
    compute: int = 0

    @property
    def resource(self) -> str:
        return PERCENT_RESOURCE if self.percent else RESOURCE

    def limits(self, units: int) -> dict[str, str | int]:
        limits: dict[str, str | int] = {self.resource: str(units)}
        return limits | ({COMPUTE_RESOURCE: str(self.compute)} if self.compute else {})

    @property
    def ended(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @cached_property
    def lite(self) -> Pod:
        def container(name: str, units: int, kind: str) -> Container:
            amount = self.limits(units)
            return Container(
                name=name,
                restart_policy="Always" if kind == "sidecar" else None,
                resources=ResourceRequirements(limits=amount, requests=amount),
            )

        return Pod(
            metadata=ObjectMeta(
                name=self.name,
                namespace="default",
                uid=self.uid,
                resource_version=str(self.version),
                annotations=dict(self.annotations),
            ),
            spec=PodSpec(
                node_name=self.node,
                containers=[container(*c) for c in self.containers if c[2] == "main"],
                init_containers=[container(*c) for c in self.containers if c[2] != "main"],
            ),
            status=PodStatus(phase=self.phase),
        )

    @cached_property
    def request(self) -> PodRequest:
        def container(name: str, units: int, kind: str) -> dict[str, object]:
            return {
                "name": name,
                "restartPolicy": "Always" if kind == "sidecar" else None,
                "resources": {"limits": self.limits(units)},
            }

        request = parse_pod(
            dict(self.annotations),
            [container(*c) for c in self.containers if c[2] != "main"],
            [container(*c) for c in self.containers if c[2] == "main"],
            RESOURCE,
        )
        assert request is not None
        return request

    @cached_property
    def object(self) -> PodObject:
        """What the node daemon decodes."""

        def container(name: str, units: int, kind: str) -> Container:
            return Container(
                name=name,
                restart_policy="Always" if kind == "sidecar" else None,
                resources=ResourceRequirements(limits=self.limits(units)),
            )

        return PodObject(
            metadata=ObjectMeta(
                name=self.name,
                uid=self.uid,
                namespace="default",
                resource_version=str(self.version),
                annotations=dict(self.annotations),
            ),
            spec=PodSpec(
                node_name=self.node,
                containers=[container(*c) for c in self.containers if c[2] == "main"],
                init_containers=[container(*c) for c in self.containers if c[2] != "main"],
            ),
            status=PodStatus(
                phase=self.phase,
                start_time="then" if self.started else None,
                conditions=[Condition("Ready")] if self.started else None,
            ),
        )


@dataclass
class World:
    """What is true in etcd, and how it came about; `created` are all pods there ever were, by UID."""

    now: float = 0.0
    version: int = 0
    deleted_at: dict[str, float] = field(default_factory=dict)
    gone: str = ""
    pods: dict[str, ModelPod] = field(default_factory=dict)
    created: dict[str, ModelPod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    pod_events: list[Event[ModelPod]] = field(default_factory=list)
    node_events: list[Event[Node]] = field(default_factory=list)
    _words: dict[str, tuple[Node | None, NodeWords | None]] = field(default_factory=dict)

    def create(self, pod: ModelPod) -> None:
        self.version += 1
        self.created[pod.uid] = pod
        self._store("ADDED", replace(pod, version=self.version))

    def change(self, name: str, uid: str, **changes: object) -> bool:
        """Change a pod if the name still means this UID."""
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return False
        self.version += 1
        self._store("MODIFIED", replace(pod, version=self.version, **changes))  # type: ignore[arg-type]
        return True

    def annotate(self, name: str, uid: str, key: str, value: str) -> bool:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid or dict(pod.annotations).get(key) == value:
            return False
        return self.change(name, uid, annotations=tuple({**dict(pod.annotations), key: value}.items()))

    def bind(self, name: str, uid: str, version: int, node: str, assigned: str | None, *, ours: bool) -> bool:
        """The Binding: a compare-and-swap on uid and resourceVersion."""
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid or pod.node or pod.version != version:
            return False
        notes = dict(pod.annotations)
        if assigned is not None:
            notes[POD_ASSIGNED] = assigned
        return self.change(name, uid, node=node, annotations=tuple(notes.items()), ours=ours)

    def delete(self, name: str, uid: str) -> bool:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return False
        self.deleted_at[uid] = self.now
        self.version += 1
        del self.pods[name]
        self.gone = name
        self.pod_events.append(Event(self.version, "DELETED", replace(pod, version=self.version)))
        return True

    def put_node(self, name: str, allocatable: dict[str, str | int], annotations: dict[str, str]) -> None:
        self.version += 1
        kind = "MODIFIED" if name in self.nodes else "ADDED"
        # kube-scheduler's sums over a node never decide here: its kubelet offers more than the cards have.
        allocatable = {"pods": "1000", RESOURCE: "1000000", PERCENT_RESOURCE: "1000000", **allocatable}
        node = Node(
            metadata=ObjectMeta(name=name, resource_version=str(self.version), annotations=annotations),
            status=NodeStatus(allocatable=allocatable),
        )
        self.nodes[name] = node
        self.node_events.append(Event(self.version, kind, node))

    def cordon(self, name: str, uuids: tuple[str, ...]) -> None:
        """A person keeps cards of a node free."""
        node = self.nodes.get(name)
        if node is None or (node.metadata.annotations or {}).get(NODE_CORDON, "") == ",".join(uuids):
            return
        notes = {**(node.metadata.annotations or {}), NODE_CORDON: ",".join(uuids)}
        self.put_node(name, dict(node.status.allocatable or {}), notes)

    def words(self, name: str) -> NodeWords | None:
        """What a Node's words say, None where it has none or is not there."""
        node = self.nodes.get(name)
        known, words = self._words.get(name, (None, None))
        if node is not known:
            words = None if node is None else read_node(node.status.allocatable or {})
            self._words[name] = (node, words)
        return words

    def delete_node(self, name: str) -> None:
        self.version += 1
        node = self.nodes.pop(name)
        gone = msgspec.structs.replace(
            node, metadata=msgspec.structs.replace(node.metadata, resource_version=str(self.version))
        )
        self.node_events.append(Event(self.version, "DELETED", gone))

    def _store(self, kind: str, pod: ModelPod) -> None:
        self.pods[pod.name] = pod
        self.pod_events.append(Event(self.version, kind, pod))
