"""What the queue does while pods move: its own code decides, on the cluster as it was read."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from allocator.errors import shown
from allocator.names import (
    BATCH_SCHEDULER,
    OWN_POD_ANNOTATIONS,
    QUEUE_GATE,
)
from allocator.place import Placement
from allocator.podcards import charged_compute, charged_units
from gpupack.cordon import CordonRequest, decide_change
from gpupack.errors import InputError
from gpupack.rebalance.movable_pods import MovablePod
from gpupack.rebalance.moved_cluster import bind_pod, remove_from_words
from gpupack.rebalance.plan_state import Card, Destination
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.queue_rules import QueueRules
from gpupack.whatif.unknown_requests import drop_unknown_policies
from kubeapi.metadata import format_time
from kubeapi.objects import Node, Pod, PodSchedulingGate, PodStatus
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.pod_cards import read_pod_cards
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.jobs import PodMaker
from scheduler_plugin.queue.cache.pods import read_queue_info
from scheduler_plugin.queue.controller.status import WaitReason, explain_pod
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules

_NOW_S: Final = 0.0
"""The queue's clock stands still: nobody waits longer because others are moved."""

Moves = Sequence[tuple[MovablePod, Destination]]


@dataclass(frozen=True, slots=True)
class QueueRefusal:
    """A move after which a pod would not run again at once.

    Attributes:
        queue: Its queue if no other pod of that queue would be admitted either; else empty.
    """

    uid: str
    queue: str
    reason: str


class QueueRehearsal:
    """A queue that begins with the cluster as it was read, and admits whom it would admit anyway.

    It knows what every process of the queue finds out at its beginning, except for pauses after refusals and
    the state of Jobs. It takes Jobs for complete: a second stage that they let go would come first.
    """

    def __init__(self, cluster: Cluster, rules: QueueRules) -> None:
        self._cluster = cluster
        self._wall_s = rules.read_at_s
        self._nodes = dict(cluster.nodes)
        self._state = ClusterState(cluster.unit_mib, rules=QueueChargeRules())
        self._state.node_failed.connect(lambda _name, _error: None)
        self._state.replace_nodes(list(self._nodes.values()), "", _NOW_S)
        pods = [drop_unknown_policies(pod) for pod in cluster.pods.values()]
        self._state.replace_pods(pods, "", _NOW_S)
        self._state.claims.replace(list(cluster.claims.values()), "", _NOW_S)
        self._state.pod_groups.replace_groups(cluster.pod_groups.list_groups())
        self._expire()
        policies = rules.settings.make_policies()
        self._queue = Queue(rules.config, self._state, policies, self._wall_s, cluster.coscheduling_groups)
        self._queue.batch.enabled = True
        self._queue.job_stages.set_jobs(_assume_complete_jobs(pods))
        self._queue.set_namespaces(rules.namespaces)
        for node in self._nodes.values():
            self._queue.set_node(node.name, node.traits)
        for pod in sorted(pods, key=lambda pod: pod.metadata.created_at):
            self._add_to_queue(pod)
        self._queue.claimed.update_all()
        self._admit()
        self._queue.update_reservations(_NOW_S)
        self._admit()

    def move_all(self, moves: Moves) -> "list[tuple[MovablePod, Destination]] | QueueRefusal":
        """Make moves, one after the other, as `gpupack advise --apply` makes them.

        The result has the places that the queue gives to its pods, or says why a move cannot be made.
        """
        made: list[tuple[MovablePod, Destination]] = []
        emptied = {(each.node, card) for each, _ in moves for card in each.units}
        for movable, destination in moves:
            to_come = {(each.node, card) for _, each in moves[len(made) :] for card in each.placement.charge}
            self._cordon(emptied - to_come)
            self._evict(movable)
            if self._cluster.find_queue(movable.pod):
                found = self._readmit(movable)
            else:
                found = self._bind(movable, destination)
            if isinstance(found, QueueRefusal):
                return found
            made.append((movable, found))
        return made

    def move(self, movable: MovablePod) -> Destination | QueueRefusal:
        """Evict a pod of a queue; return where its successor goes, or why it would wait."""
        self._evict(movable)
        return self._readmit(movable)

    def _readmit(self, movable: MovablePod) -> Destination | QueueRefusal:
        """Let the successor of an evicted pod wait in its queue, and be admitted."""
        queue, successor = self._cluster.find_queue(movable.pod), self._make_successor(movable)
        self._state.apply_pod(successor, _NOW_S)
        self._add_to_queue(successor)
        uid = successor.metadata.uid
        if uid in self._admit():
            place = self._find_place(movable, uid)
            if place is None:
                return QueueRefusal(movable.uid, "", "it is not known which cards its queue would name")
            bound = bind_pod(self._cluster, successor, place)
            self._state.apply_pod(bound, _NOW_S)
            self._add_to_queue(bound)
            return place
        waits = explain_pod(self._queue, self._queue.queued_pods[uid], _NOW_S)
        why = f"queue {shown(queue)} would let its successor wait: {waits.message}"
        return QueueRefusal(movable.uid, "" if waits.reason is WaitReason.REFUSED else queue, why)

    def _bind(self, movable: MovablePod, destination: Destination) -> Destination | QueueRefusal:
        """Bind the successor of a pod of no queue, unless the queue has given its place to others."""
        self._state.apply_pod(bind_pod(self._cluster, self._make_successor(movable), destination), _NOW_S)
        nodes = self._state.nodes
        row = nodes.rows[destination.node]
        if nodes.mask_overcharged(row)[list(destination.placement.charge)].any():
            why = f"pods of the queue would take its place on node {destination.node}"
            return QueueRefusal(movable.uid, "", why)
        return destination

    def _find_place(self, movable: MovablePod, uid: str) -> Destination | None:
        """Find the cards that were taken for an admitted pod; None: its node names none."""
        assumed = self._state.get_assumed(uid)
        if assumed is None or assumed.assigned is None or movable.record.request is None:
            return None
        node, request = self._state.node_records[assumed.node], movable.record.request
        charge = charged_units(request, assumed.assigned, node.uuids, node.sizes)
        if charge is None:
            return None
        containers = tuple(
            (name, tuple((node.uuids.index(uuid), units) for uuid, units in shares))
            for name, shares in assumed.assigned.items()
        )
        compute = charged_compute(request, assumed.assigned, node.uuids)
        return Destination(assumed.node, Placement(containers, charge, compute))

    def _evict(self, movable: MovablePod) -> None:
        """End a pod; whom the queue admits now comes before its successor, which is yet to be made."""
        pod, record = movable.pod, self._state.node_records[movable.node]
        left = remove_from_words(
            self._nodes[movable.node], [movable], read_pod_cards(self._state.nodes, record)
        )
        self._state.delete_pod(pod, pod.metadata.resource_version, _NOW_S)
        self._expire()
        self._queue.delete_pod(movable.uid, _NOW_S)
        self._set_node(left)
        self._admit()

    def _cordon(self, cards: Collection[Card]) -> None:
        for name in {node for node, _ in cards}:
            uuids, node = self._state.node_records[name].uuids, self._nodes[name]
            request = CordonRequest(True, tuple(uuids[card] or "" for at, card in cards if at == name))
            annotations = node.metadata.annotations or {}
            with suppress(InputError):  # `--apply` says so, and evicts nobody
                change = decide_change(name, annotations, request)
                set_to = {key: value for key, value in change.annotations.items() if value is not None}
                metadata = msgspec.structs.replace(node.metadata, annotations={**annotations, **set_to})
                self._set_node(msgspec.structs.replace(node, metadata=metadata))

    def _set_node(self, node: Node) -> None:
        version = self._state.node_records[node.name].version + 1
        metadata = msgspec.structs.replace(node.metadata, resource_version=str(version))
        node = self._nodes[node.name] = msgspec.structs.replace(node, metadata=metadata)
        self._state.apply_node(node, _NOW_S)
        self._queue.set_node(node.name, node.traits)

    def _make_successor(self, movable: MovablePod) -> Pod:
        """Make the pod that a controller makes in place of one: younger than all, and behind the gate."""
        pod = movable.pod
        annotations = {
            name: value
            for name, value in (pod.metadata.annotations or {}).items()
            if name not in OWN_POD_ANNOTATIONS
        }
        gates = [] if pod.spec.scheduler_name == BATCH_SCHEDULER else [PodSchedulingGate(QUEUE_GATE)]
        return msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(
                pod.metadata,
                name=f"{pod.metadata.name}-successor",
                uid=f"{pod.metadata.uid}-successor",
                resource_version="",
                annotations=annotations,
                creation_timestamp=format_time(self._wall_s),
                deletion_timestamp=None,
            ),
            spec=msgspec.structs.replace(pod.spec, node_name="", scheduling_gates=gates),
            status=PodStatus(phase="Pending"),
        )

    def _add_to_queue(self, pod: Pod) -> None:
        if pod.spec.scheduler_name == BATCH_SCHEDULER:
            self._queue.set_batch_spec(pod.metadata.uid, {})
        self._queue.apply_pod(pod, _NOW_S)

    def _admit(self) -> set[str]:
        """Admit whom the queue admits now; return their UIDs."""
        return {member.uid for each in self._queue.admit_workloads(_NOW_S) for member in each.members}

    def _expire(self) -> None:
        """End the charges of pods that are gone, as if their nodes had reported that already."""
        self._state.expire_tombstones(_NOW_S + TOMBSTONE_S)


def _assume_complete_jobs(pods: Collection[Pod]) -> list[PodMaker]:
    """List the Jobs that made pods of jobs, as if they made no more."""
    infos = ((pod.metadata.namespace, read_queue_info(pod)) for pod in pods)
    return [
        PodMaker(
            uid=info.maker,
            name="",
            job=f"{namespace}/{info.job}",
            reads_data=bool(info.data),
            completions=None,
            succeeded=0,
            complete=True,
            failed=False,
        )
        for namespace, info in infos
        if info.maker and info.job
    ]
