"""Nodes and pods of a replay through queues, as the API server would show them to the queue."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from allocator.names import (
    COMPUTE_RESOURCE,
    PERCENT_RESOURCE,
    POD_ASSIGNED,
    POD_CARDS,
    POD_CONTAINERS,
    POD_DATA,
    POD_FIRST_STAGE_SIZE,
    POD_GPU_MODEL,
    POD_JOB,
    QUEUE_GATE,
    QUEUE_NAME,
    resource_name,
)
from allocator.records import Assignment, dump_assigned
from kubeapi.objects import (
    Container,
    Node,
    ObjectMeta,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    ResourceList,
    ResourceRequirements,
)
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.charges import NodeRecord
from scheduler_plugin.cache.empty_nodes import make_empty_node
from scheduler_plugin.queue.config.queues import LocalityForm
from scheduler_plugin.queue.scheduler.queue import QueueChargeRules
from scheduler_plugin.simulator.cluster import SimulatedPodKind
from scheduler_plugin.simulator.trace import TraceNode, TracePod

if TYPE_CHECKING:
    from scheduler_plugin.simulator.arrivals import Arrival

UNIT_MIB: Final = 1
"""MiB that a unit of the trace stands for in the objects; nothing depends on it."""
_MANY: Final = 1 << 40


class ReplayChargeRules(QueueChargeRules):
    """The accounting of a replay: a node knows at once that a pod has ended."""

    def needs_tombstone(self, record: NodeRecord, uid: str, version: int) -> bool:  # noqa: ARG002
        """Charge nothing for a pod that is gone: nothing of it runs any more."""
        return False


def make_node(node: TraceNode, row: int, card_units: int, locality: LocalityForm) -> Node:
    """Make the Node of a trace's node."""
    # A trace says neither how many pods a node takes nor what its kubelet offers: the cards decide.
    amounts = Amounts(_MANY, node.cpu_milli, node.memory_mib << 20, _MANY, _MANY, tuple(node.others))
    labels = {f"{locality.label_prefix}{data}": "" for data in node.data}
    if node.rack:
        labels[locality.rack_label] = node.rack
    cards = [(node.model, card_units * UNIT_MIB)] * node.cards
    made = make_empty_node(node.name, cards, UNIT_MIB, amounts, labels, compute_limit=node.compute_limit)
    made.metadata.resource_version = str(row + 1)
    return made


class PodObjects:
    """Makes the pods of a replay, each version with a resourceVersion of its own.

    Args:
        able: Numbers of those that some empty node can take: the others never run.
    """

    def __init__(self, arrivals: "Sequence[Arrival]", queues: Sequence[str], able: Iterable[int]) -> None:
        self._arrivals = arrivals
        self._queues = queues
        self._version = len(arrivals)
        self._containers: dict[SimulatedPodKind, list[Container]] = {}
        self._first_stages = Counter(
            (queues[number], arrivals[number].pod.job) for number in able if arrivals[number].pod.data
        )

    @property
    def version(self) -> str:
        return str(self._version)

    def make(
        self,
        number: int,
        uid: str,
        kind: SimulatedPodKind,
        *,
        node: str = "",
        assigned: Assignment | None = None,
        phase: str = "Pending",
    ) -> Pod:
        """Make the next version of a pod; without a node it waits behind the queue's gate."""
        self._version += 1
        pod, queue = self._arrivals[number].pod, self._queues[number]
        annotations = self._annotate(pod, queue)
        if assigned is not None:
            annotations[POD_ASSIGNED] = dump_assigned(assigned)
        containers = self._containers.get(kind)
        if containers is None:
            containers = self._containers[kind] = _make_containers(pod, kind)
        gates = None if node or kind.query is None else [PodSchedulingGate(QUEUE_GATE)]
        return Pod(
            ObjectMeta(
                name=uid,
                namespace=queue,
                uid=uid,
                resource_version=self.version,
                annotations=annotations,
                labels={QUEUE_NAME: queue} if kind.query is not None else None,
            ),
            PodSpec(node_name=node, containers=containers, scheduling_gates=gates),
            PodStatus(phase=phase),
        )

    def _annotate(self, pod: TracePod, queue: str) -> dict[str, str]:
        annotations = {
            POD_GPU_MODEL: ",".join(pod.models),
            POD_DATA: ",".join(sorted(pod.data)),
            POD_JOB: pod.job,
            POD_CONTAINERS: "apart" if pod.apart else "",
            POD_CARDS: str(pod.cards_each) if pod.cards_each > 1 else "",
            POD_FIRST_STAGE_SIZE: str(self._first_stages[queue, pod.job]) if pod.job else "",
        }
        return {name: value for name, value in annotations.items() if value}


def _make_containers(pod: TracePod, kind: SimulatedPodKind) -> list[Container]:
    """Make the containers of a pod; the first one asks for what it needs beside cards."""
    host: ResourceList = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    host |= {name: str(amount) for name, amount in pod.others}
    requested = kind.query.request.containers if kind.query is not None else ()
    resource = PERCENT_RESOURCE if pod.percent else resource_name(UNIT_MIB)
    found: list[Container] = []
    for container in requested:
        amounts: ResourceList = {resource: str(container.units), **({} if found else host)}
        if container.compute:
            amounts[COMPUTE_RESOURCE] = str(container.compute)
        found.append(Container(container.name, resources=ResourceRequirements(amounts, amounts)))
    return found or [Container("c0", resources=ResourceRequirements(host, host))]
