"""The API server of the model: nodes, pods and everything that happened to them, in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from allocator.claims import ClaimObject
from allocator.names import (
    BATCH_SCHEDULER,
    MIB_PER_GIB,
    POD_DATA,
    POD_GANG,
    POD_GANG_SIZE,
    POD_JOB,
    POD_REQUEUED,
    QUEUE_GATE,
    QUEUE_NAME,
    resource_name,
)
from kubeapi import objects
from kubeapi.objects import Node
from tests.cluster_builders import claim, node_object, uuid
from tests.property.kernel.api import Event, Watch, patch_json
from tests.queue_world import pod_group

NEW_YEAR: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The time when the model's clock is at 0."""

UNITS: Final = resource_name(MIB_PER_GIB)

DATA: Final = "data.gpupack.io/"
"""Labels that say which data a node has."""

RACK: Final = "topology.kubernetes.io/rack"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a pod asks for; pods of one template share it.

    Attributes:
        queue: Name of its queue.
        units: Units of one card.
        gang: Prefix of its gang's name, empty for none.
        size: Pods of the gang.
        owner: UID of the controller that makes it again; empty for none.
        priority: Of the pod.
        runs_s: Seconds for which it runs; infinite: until the history ends.
        model: The card model that it asks for; empty: any.
        gated: It comes with the gate.
        batch: It has none, and names the scheduler of batch mode.
        grouped: A PodGroup of Kubernetes says which pods are the gang, and how many.
        halves: Every other pod of the gang is bound by the other scheduler.
        data: Names of the data that it reads, by commas; empty: none.
        notes: Further annotations.
        firsts: Pods like it with data that come before it: the first stage of its job.
        claims: It asks by a claim, which the queue does not hold back; it is `gated` no more then.
    """

    queue: str
    units: int
    gang: str = ""
    size: int = 0
    owner: str = ""
    priority: int = 0
    runs_s: float = float("inf")
    model: str = ""
    gated: bool = True
    batch: bool = False
    grouped: bool = False
    halves: bool = False
    data: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    firsts: int = 0
    claims: bool = False


@dataclass(slots=True)
class Pod:
    """A pod as it is in truth, whoever knows of it.

    Attributes:
        spec: What it asks for.
        raw: The object of the API.
        lite: The same as the queue decodes it.
        created: When, seconds of the model's clock.
        card: Its card on its node, by position.
        ends: When it ends by itself, seconds.
        bound: When it was bound, seconds.
        loose: When somebody else than the queue let it go, seconds.
    """

    spec: Spec
    raw: dict[str, Any]
    lite: objects.Pod
    created: float
    card: int = -1
    ends: float = float("inf")
    bound: float = float("inf")
    loose: float = float("-inf")

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def node(self) -> str:
        return str(self.raw["spec"].get("nodeName", ""))

    @property
    def requeued(self) -> bool:
        return POD_REQUEUED in self.raw["metadata"]["annotations"]

    @property
    def gated(self) -> bool:
        return bool(self.raw["spec"].get("schedulingGates"))

    @property
    def waits(self) -> bool:
        """It wears the gate, or its admission was taken back, or batch mode has not bound it."""
        return self.gated or (not self.node and (self.requeued or self.spec.batch))

    @property
    def ended(self) -> bool:
        return self.raw["status"]["phase"] in {"Succeeded", "Failed"}

    @property
    def ending(self) -> bool:
        return "deletionTimestamp" in self.raw["metadata"]

    @property
    def gang(self) -> str:
        group = self.lite.scheduling_group
        return str(self.raw["metadata"]["annotations"].get(POD_GANG, "")) if group is None else group[1]

    @property
    def job(self) -> str:
        return str(self.raw["metadata"]["annotations"].get(POD_JOB, ""))

    @property
    def counts(self) -> bool:
        """Tell whether quota counts the pod: admitted or bound, with a claim bound only, and not ended."""
        return not self.waits and not self.ended and (bool(self.node) or not self.spec.claims)

    @property
    def claim(self) -> str:
        return f"uid-claim-{self.name}"


@dataclass(slots=True)
class FirstStage:
    """The first stage of a job, which no Job makes and of which nobody says a size.

    Attributes:
        size: Pods that have to succeed.
        since: When its pods came, seconds.
        succeeded: Pods that have.
    """

    size: int
    since: float
    succeeded: int = 0


@dataclass(frozen=True, slots=True)
class Change(Event[Any]):
    """One change of an object, as the queue decodes it.

    Attributes:
        at: When, seconds.
        waits: It is a pod that waited then.
        host: The object as the scheduler's process decodes it; None where there is no such process.
    """

    at: float
    waits: bool = False
    host: Node | objects.Pod | None = None


class LateWatch(Watch[Change]):
    """A watch that brings news when it is told to."""

    def read_until(self, at: float) -> Iterator[Change]:
        while self.cursor < len(self.log) and self.log[self.cursor].at <= at:
            self.cursor += 1
            yield self.log[self.cursor - 1]


class World:
    """Everything that is true.

    Args:
        nodes: Units of the cards, by node.
        binds: Batch mode binds the pods.
        labels: Of nodes that have any.
        namespace_queue: The queue that the label of the pods' namespace names; empty: it has none.

    Attributes:
        pods: By name.
        claims: Those that are allocated, by UID.
        groups: PodGroups of Kubernetes, by name.
        claim_ended: When the last one was deleted, seconds.
        events: All changes of nodes, pods, claims and PodGroups.
        budgets: Owners whose pods no eviction may end now.
        forbidden: UIDs of pods whose admit the API server refuses for good.
        skew_s: Seconds that the API server's clock is ahead.
        was_skewed: Pods were dated by a wrong clock.
        blocked: Owners for whose pods kube-scheduler finds no node, for reasons of its own.
        closed: Cards that are cordoned, as node and position.
        models: Card model by node.
        stages: First stages by job.
    """

    def __init__(
        self,
        nodes: Mapping[str, Sequence[int]],
        *,
        binds: bool = False,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        namespace_queue: str = "",
    ) -> None:
        self.binds = binds
        self.namespace_labels = {QUEUE_NAME: namespace_queue} if namespace_queue else {}
        self.labels = dict(labels or {})
        self.now = 0.0
        self.version = 1
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, ClaimObject] = {}
        self.groups: dict[str, objects.PodGroup] = {}
        self.claim_ended = float("-inf")
        self.events: list[Change] = []
        self.nodes = dict(nodes)
        self.models = dict.fromkeys(nodes, "NVIDIA A100")
        self.node_items: dict[str, Node] = {}
        self.host_nodes: dict[str, Node] = {}
        self.cordoned: set[str] = set()
        self.budgets: set[str] = set()
        self.blocked: set[str] = set()
        self.stages: dict[str, FirstStage] = {}
        self.closed: set[tuple[str, int]] = set()
        self.raw_nodes: dict[str, dict[str, Any]] = {}
        self.born = 0
        self.forbidden: set[str] = set()
        self.skew_s = 0.0
        self.was_skewed = False
        for name in nodes:
            self.publish(name)

    # Nodes.

    def publish(self, name: str) -> None:
        """A node writes its words: what its cards are used for now."""
        self.version += 1
        held = [pod for pod in self.pods.values() if pod.node == name and not pod.ended]
        used = [0] * len(self.nodes[name])
        for pod in held:
            used[pod.card] += pod.spec.units
        raw = node_object(
            name,
            self.nodes[name],
            used,
            version=self.version,
            holds=[pod.uid for pod in held],
            claims={pod.claim: {pod.card: pod.spec.units} for pod in held if pod.spec.claims},
            models=[self.models[name]] * len(used),
            revision=self.version,
            cpu="400",
            memory="1000Gi",
            allocatable_units=sum(self.nodes[name]),
            cordon=",".join(card_uuid(*card) for card in sorted(self.closed) if card[0] == name) or None,
        )
        self.raw_nodes[name] = raw
        raw["spec"] = {"unschedulable": True} if name in self.cordoned else {}
        if name in self.labels:
            metadata: Any = raw["metadata"]
            metadata["labels"] = dict(self.labels[name])
        item = msgspec.convert(raw, Node)
        kind = "MODIFIED" if name in self.node_items else "ADDED"
        self.node_items[name] = item
        host = msgspec.convert(raw, Node) if self.binds else None
        if host is not None:
            self.host_nodes[name] = host
        self.events.append(Change(self.version, kind, item, self.now, host=host))

    def free(self, name: str, without: frozenset[str] | set[str] = frozenset()) -> list[int]:
        """Units free on each card of a node, as if some pods were gone."""
        free = list(self.nodes[name])
        for pod in self.pods.values():
            if pod.node == name and not pod.ended and pod.uid not in without:
                free[pod.card] -= pod.spec.units
        return [min(units, 0) if (name, at) in self.closed else units for at, units in enumerate(free)]

    # Pods.

    def create(self, spec: Spec, gang: str = "") -> Pod:
        self.born += 1
        self.was_skewed |= bool(self.skew_s)
        name = f"p{self.born}"
        notes = dict(spec.notes)
        if gang and spec.grouped:
            self._create_group(gang, spec.size)
        elif gang:
            notes |= {POD_GANG: gang, POD_GANG_SIZE: str(spec.size)}
        if spec.model:
            notes["gpupack.io/gpu-model"] = spec.model
        if spec.data:
            notes[POD_DATA] = spec.data
        amounts = {"cpu": "1", "memory": "1Gi"} | ({} if spec.claims else {UNITS: str(spec.units)})
        owner = {"kind": "ReplicaSet", "name": spec.owner, "uid": spec.owner, "controller": True}
        owners = [owner] if spec.owner else []
        raw = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "annotations": notes,
                "labels": {QUEUE_NAME: spec.queue},
                "creationTimestamp": self.stamp(self.skew_s),
                "ownerReferences": owners,
            },
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}],
                "schedulingGates": [{"name": QUEUE_GATE}] if spec.gated and not spec.batch else [],
                "priority": spec.priority,
                **({"schedulerName": BATCH_SCHEDULER} if spec.batch else {}),
                **({"resourceClaims": [{"name": "card"}]} if spec.claims else {}),
                **({"schedulingGroup": {"podGroupName": gang}} if gang and spec.grouped else {}),
            },
            "status": {"phase": "Pending"},
        }
        pod = Pod(spec, raw, msgspec.convert(raw, objects.Pod), self.now)
        pod.loose = pod.loose if spec.gated else self.now
        self.pods[name] = pod
        self._tell("ADDED", pod)
        return pod

    def create_job(self, spec: Spec) -> Pod:
        """Create a job of two stages, the pods with data first; return the pod of the second one."""
        name = f"job{self.born}"
        spec = replace(spec, notes=(*spec.notes, (POD_JOB, name)))
        self.stages[name] = FirstStage(spec.firsts, self.now)
        for _ in range(spec.firsts):
            self.create(replace(spec, data="x"))
        return self.create(spec)

    def changed(self, pod: Pod) -> None:
        self._tell("MODIFIED", pod)

    def delete(self, pod: Pod) -> None:
        del self.pods[pod.name]
        if all(other.job != pod.job for other in self.pods.values()):
            # Nothing remembers a job that no pod names.
            self.stages.pop(pod.job, None)
        self._tell("DELETED", pod)

    def allocate(self, pod: Pod, node: str, card: int) -> None:
        """The claim of a pod is allocated a share of a card, and reserved for it."""
        name = f"claim-{pod.name}"
        found = claim(name, (card, pod.spec.units), node=node, version=self.version + 1, pods=[pod.name])
        self.claims[pod.claim] = found
        self._tell_other("ADDED", found)

    def deallocate(self, uid: str) -> None:
        self.claim_ended = self.now
        self._tell_other("DELETED", self.claims.pop(uid))

    def ends_claims(self, within_s: float) -> bool:
        """Tell whether a claim whose pod has ended still counts, or did so until lately.

        Args:
            within_s: How long ago that may have ended, seconds.
        """
        held = {pod.claim for pod in self.pods.values() if pod.counts}
        return not self.claims.keys() <= held or self.now - self.claim_ended < within_s

    def _create_group(self, name: str, count: int) -> None:
        """Create a PodGroup that is not there yet, before its first pod."""
        if name not in self.groups:
            self.groups[name] = pod_group(name, count)
            self._tell_other("ADDED", self.groups[name])

    def _tell_other(self, kind: str, item: ClaimObject | objects.PodGroup) -> None:
        self.version += 1
        self.events.append(Change(self.version, kind, item, self.now))

    def stamp(self, seconds: float = 0.0) -> str:
        """Write the time, or one so many seconds later, as the API writes it."""
        at = NEW_YEAR + timedelta(seconds=int(self.now + seconds))
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def patch(self, pod: Pod, patch: Sequence[Mapping[str, Any]]) -> bool:
        """Carry a JSON patch out: all of it, or nothing where a test fails."""
        raw = patch_json(pod.raw, patch)
        if raw is None:
            return False
        pod.raw = raw
        self.changed(pod)
        return True

    def _tell(self, kind: str, pod: Pod) -> None:
        self.version += 1
        pod.raw["metadata"]["resourceVersion"] = str(self.version)
        pod.lite = msgspec.convert(pod.raw, objects.Pod)
        host = msgspec.convert(pod.raw, objects.Pod) if self.binds else None
        self.events.append(Change(self.version, kind, pod.lite, self.now, pod.waits, host))


def card_uuid(node: str, card: int) -> str:
    return uuid(node, card)
