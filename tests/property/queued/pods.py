"""Pods of the model that are born gated, and the API server's part of admitting them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from allocator.names import POD_GANG, POD_REQUEUED, QUEUE_GATE, QUEUE_NAME
from kubeapi.objects import Pod
from scheduler_plugin.queue.cache.node_pins import make_node_affinity
from tests.property.kernel.api import named_node, patch_json
from tests.property.undercount.world import ModelPod, World


@dataclass(frozen=True)
class GatedPod(ModelPod):
    """A pod that belongs to a queue.

    Attributes:
        queue: Name of its queue.
        gated: It wears the gate.
        only_node: The node that the queue named.
        unschedulable: kube-scheduler said that it finds no node.
        owned: A controller would make it again.
        label: What its label names, if not its queue.
    """

    queue: str = ""
    gated: bool = True
    only_node: str = ""
    unschedulable: bool = False
    owned: bool = True
    label: str | None = None

    @cached_property
    def lite(self) -> Pod:
        """What extender and queue decode; the extender looks at less of it."""
        raw = msgspec.to_builtins(super().lite)
        number = int(self.created)
        raw["metadata"] |= {
            "labels": {QUEUE_NAME: self.queue_label},
            "creationTimestamp": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
            "ownerReferences": [{"uid": "owner", "controller": True}] if self.owned else [],
        }
        if self.gated:
            raw["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}]
        if self.only_node:
            raw["spec"]["affinity"] = {"nodeAffinity": make_node_affinity([self.only_node])}
        if self.unschedulable and not self.node:
            failed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            raw["status"]["conditions"] = [failed]
        return msgspec.convert(raw, Pod)

    @property
    def queue_label(self) -> str:
        """Its queue, unless somebody wrote another one on it."""
        return self.queue if self.label is None else self.label

    @property
    def waits(self) -> bool:
        """It waits in its queue: it wears the gate, or is requeued."""
        return self.gated or (not self.node and POD_REQUEUED in dict(self.annotations))

    @property
    def gang(self) -> str:
        """Name of its gang, empty for none."""
        return dict(self.annotations).get(POD_GANG, "")

    def units(self, size: int) -> int:
        """Units that it asks for over all its cards, where each is of that size."""
        return sum(demand.units_on(size) * demand.cards for demand in self.request.demands)


def take_patch(world: World, pod: GatedPod | None, patch: Sequence[Mapping[str, Any]]) -> bool:
    """Carry a patch out as an API server does."""
    raw = None if pod is None else patch_json(msgspec.to_builtins(pod.lite), patch)
    if pod is None or raw is None:
        return False
    return world.change(
        pod.name,
        pod.uid,
        annotations=tuple((raw["metadata"]["annotations"] or {}).items()),
        gated=bool(raw["spec"].get("schedulingGates")),
        only_node=named_node(raw),
    )


def gate(world: World, pod: ModelPod, queue: str, notes: Mapping[str, str], *, owned: bool) -> None:
    """The pod that was created last belongs to a queue and is born gated; nobody has seen it yet.

    Args:
        notes: Annotations beside its own.
        owned: A controller would make it again.
    """
    fields = {name: getattr(pod, name) for name in ModelPod.__dataclass_fields__}
    fields["annotations"] = tuple((dict(pod.annotations) | dict(notes)).items())
    gated = GatedPod(**fields, queue=queue, owned=owned)
    world.pods[pod.name] = gated
    world.pod_events[-1] = replace(world.pod_events[-1], item=gated)


def find(world: World, path: str) -> GatedPod | None:
    pod = world.pods.get(path.removesuffix("/eviction").rpartition("/")[2])
    return pod if isinstance(pod, GatedPod) else None
