"""What every place that answers says of one scene, in one form: nodes and pods by name, cards by position."""

import copy
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from allocator.claims import ClaimObject
from allocator.names import POD_ASSIGNED, POD_REQUEUED
from allocator.request import ContainerRequest, PodRequest
from gpupack.dashboard.advice import PendingPod, explain_pending_pod
from gpupack.dashboard.board import ClusterBoard
from gpupack.diagnose import explain_pod
from gpupack.inventory import build_rows, load_nodes
from gpupack.inventory.records import NodeRow
from gpupack.rebalance.movable_pods import MovablePods
from gpupack.rebalance.plan_state import PlanState
from gpupack.whatif import Cluster
from gpupack.whatif.answers import PodExplanation
from gpupack.whatif.what_if import PodCardUsage
from kubeapi.objects import Node, Pod
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.preemption.node_victims import NodeUnderPreemption, view_node
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.request import SchedulingRequest

from .scene import Scene, make_claim

Units = dict[tuple[str, int], int]
"""Units by node and position of the card."""

Charge = dict[tuple[str, int], tuple[int, int]]
"""Units and percent of compute, likewise."""

ONE_UNIT: Final = PodRequest((ContainerRequest("main", 1, "main"),))
LATER_S: Final = TOMBSTONE_S + 1.0


class Places:
    """Every place, told of the same objects as its own watch or list would tell it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._items = list(scene.nodes.values()), list(scene.pods.values())
        self._claims = [msgspec.convert(claim, ClaimObject) for claim in scene.claims.values()]

    # The places.

    @cached_property
    def extender(self) -> Extender:
        """An extender that has just started; pods of the queue are released by then."""
        nodes, pods = self._items
        pods = [released(pod) if pod["metadata"]["name"] in self.scene.asking else pod for pod in pods]
        state = ClusterState()
        state.replace_nodes([msgspec.convert(each, Node) for each in nodes], "", 0.0)
        state.replace_pods([msgspec.convert(each, Pod) for each in pods], "", 0.0)
        state.claims.replace(self._claims, "", 0.0)
        state.expire_tombstones(LATER_S)
        return Extender(state, ClusterPolicies(), 0)

    @cached_property
    def watched(self) -> Extender:
        """An extender that has seen all that happened, after the tombstones of what is gone have ended."""
        self.scene.scheduler.expire_tombstones(LATER_S)
        return Extender(self.scene.scheduler, ClusterPolicies(), 0)

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster of `why`, `fit`, `advise` and the simulator."""
        return Cluster.from_json(self.scene.text)

    @cached_property
    def queue(self) -> Queue:
        nodes, pods = self._items
        state = ClusterState(rules=QueueChargeRules())
        state.replace_nodes([msgspec.convert(each, Node) for each in nodes], "", 0.0)
        lites = [msgspec.convert(each, Pod) for each in pods]
        state.replace_pods(lites, "", 0.0)
        state.claims.replace(self._claims, "", 0.0)
        state.expire_tombstones(LATER_S)
        queue = Queue(parse_config("queues.yaml", "queues: [{name: a}]"), state, ClusterPolicies())
        for each in nodes:
            queue.set_node(each["metadata"]["name"], msgspec.convert(each, Node).traits)
        for lite in lites:
            queue.apply_pod(lite, 0.0)
        return queue

    @cached_property
    def top(self) -> dict[str, NodeRow]:
        """`gpupack top --pods`, by node."""
        return {row.node: row for row in build_rows(load_nodes(self.scene.text, pods=True))}

    @cached_property
    def board(self) -> ClusterBoard:
        """The dashboard; it hears of the last node, pod and claim later than of the others."""
        nodes, pods = self._items
        board = ClusterBoard()
        board.replace_nodes([msgspec.convert(each, Node) for each in nodes[:-1]])
        board.replace_pods([msgspec.convert(each, Pod) for each in pods[:-1]])
        board.replace_claims(self._claims[:-1])
        board.get_cluster()
        for each in nodes[-1:]:
            board.put_node(msgspec.convert(each, Node))
        for each in pods[-1:]:
            board.put_pod(msgspec.convert(each, Pod))
        for claim in self._claims[-1:]:
            board.put_claim(claim)
        board.refresh()
        return board

    @cached_property
    def held(self) -> PodCardUsage:
        """What pods have, as `why` and `advise` see it."""
        return PodCardUsage(self.cluster)

    @property
    def usable(self) -> list[str]:
        """Names of the nodes whose cards can be used at all."""
        nodes = self.cluster.state.nodes
        return [name for name in self.scene.nodes if nodes.usable[nodes.rows[name]]]

    # A pod's cards.

    def cards_of(self, name: str) -> dict[str, Units]:
        """What every place says of the cards of a pod that has a node."""
        pod = self.scene.pods[name]
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        found = self.shown_cards(name)
        if node in self.usable:
            record = self.cluster.state.pods[uid]
            found["ways out"] = _on(node, self.held.get_units(record))
            for mover in MovablePods(self.cluster, self.held).list_on_node(node):
                if mover.uid == uid:
                    found["advise"] = _on(node, mover.units)
        return found

    def shown_cards(self, name: str) -> dict[str, Units]:
        pod = self.scene.pods[name]
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        detail = self.board.make_detail(node)
        assert detail is not None
        by_place = {"top": self.top[node].cards, "dashboard": detail.cards}
        told = explain_pod(self.cluster, "default", name)
        positions = {card.uuid: at for at, card in enumerate(self.top[node].cards)}
        units = _units((node, positions[card.uuid], card.promised_units) for card in told.cards)
        return {"why": units} | {
            place: _units(
                (node, at, each.units)
                for at, card in enumerate(cards)
                for each in card.pods
                if each.uid == uid
            )
            for place, cards in by_place.items()
        }

    def freed_by(self, name: str) -> dict[str, Units]:
        """What the end of a pod frees, as every place says that reckons with it."""
        pod = self.scene.pods[name]
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        preempted = self.room(node).freed.get(uid, {})
        return {
            "ways out": _on(node, self.held.get_freed_units(self.cluster.state.pods[uid])),
            "preempt": _on(node, {at: units for at, (units, _) in preempted.items()}),
            "advise": _on(node, self.held.get_freed_units(self.board.get_cluster().state.pods[uid])),
        }

    def compute_free_without(self, name: str) -> dict[str, Units]:
        """What of compute is free on a pod's cards once it has ended, likewise."""
        pod = self.scene.pods[name]
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        room = self.room(node)
        cards = room.freed.get(uid, {})
        found = {"preempt": {at: card.compute_free for at, card in enumerate(room.get_cards_without([uid]))}}
        for place, cluster in (("ways out", self.cluster), ("advise", self.board.get_cluster())):
            freed = self.held.get_freed_compute(cluster.state.pods[uid])
            nodes, row = cluster.state.nodes, cluster.state.nodes.rows[node]
            free, limit = nodes.compute_free[row].tolist(), int(nodes.compute_limit[row])
            found[place] = {at: min(limit, free[at] + freed.get(at, 0)) for at in cards}
        return {place: _units((node, at, max(0, free[at])) for at in cards) for place, free in found.items()}

    def room(self, node: str) -> NodeUnderPreemption:
        """A node as preemption sees it for a pod that asks for units."""
        query = self.extender.policies.make_request(self.extender.state.nodes, ONE_UNIT, ONE_POD)
        found = view_node(self.extender.state, node, query)
        assert found is not None
        return found

    def makes_room(self, name: str, node: str, victims: list[str]) -> bool:
        """Whether a pod fits on a node once pods have gone, as preemption sees it."""
        query = self.query(name)
        room = view_node(self.extender.state, node, query)
        return room is not None and room.fits_without(query, victims)

    # What is free.

    def free_on(self, node: str) -> dict[str, list[int]]:
        """Free units of the cards of a node that can be used."""
        found = {}
        states = {"filter": self.extender.state, "why": self.cluster.state, "queue": self.queue.state}
        for place, state in states.items():
            row = state.nodes.rows[node]
            found[place] = state.nodes.free[row, : int(state.nodes.cards[row])].tolist()
        found["top"] = [card.free_units for card in self.top[node].cards]
        found["advise"] = list(PlanState(self.cluster, self.held).get_free_units(node))
        found["preempt"] = [max(0, card.size_units - card.used_units) for card in self.room(node).cards]
        if self.board.tiles[node].open:
            found["dashboard"] = [card.free for card in self.board.tiles[node].cards]
        return found

    def compute_free_on(self, node: str) -> dict[str, list[int]]:
        """Percent of compute that the cards of a node that can be used have free."""
        states = {"filter": self.extender.state, "why": self.cluster.state, "queue": self.queue.state}
        found = {}
        for place, state in states.items():
            row = state.nodes.rows[node]
            found[place] = state.nodes.compute_free[row, : int(state.nodes.cards[row])].tolist()
        found["advise"] = list(PlanState(self.cluster, self.held).get_free_compute(node))
        found["preempt"] = [card.compute_free for card in self.room(node).cards]
        found["top"] = [
            0 if card.compute_in_use is None else card.compute_limit - card.compute_in_use
            for card in self.top[node].cards
        ]
        return {place: [max(0, percent) for percent in free] for place, free in found.items()}

    # Who fits.

    def query(self, name: str) -> SchedulingRequest:
        state = self.extender.state
        record = state.pods[f"uid-{name}"]
        assert record.request is not None
        return self.extender.policies.make_request(state.nodes, record.request, record.amounts)

    def filtered(self, name: str, extender: Extender) -> tuple[FilterReply, dict[str, str]]:
        """Filter's answer of a pod over HTTP, and its reason by node; empty where the node passes."""
        found = extender.filter(self._body(name), LATER_S)
        answer = json.loads(found.answer)
        reasons = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
        return found, dict.fromkeys(answer["NodeNames"], "") | reasons

    def _body(self, name: str) -> bytes:
        pod = released(self.scene.pods[name])
        return json.dumps({"Pod": pod, "NodeNames": sorted(self.scene.nodes)}).encode()

    def bound(self, name: str, node: str) -> tuple[str, Charge]:
        """Bind a pod and undo it: why not, or what is charged."""
        state = self.extender.state
        row = state.nodes.rows[node]
        before = state.nodes.assumed[row].copy(), state.nodes.compute.assumed[row].copy()
        try:
            found = Committer(state, self.extender.policies).assume(
                "default", name, f"uid-{name}", node, LATER_S
            )
        except CommitError as error:
            return str(error), {}
        assert found.assumed is not None
        units, compute = state.nodes.assumed[row] - before[0], state.nodes.compute.assumed[row] - before[1]
        state.forget(found.assumed, LATER_S)
        charged = enumerate(zip(units.tolist(), compute.tolist(), strict=True))
        return "", {(node, at): charge for at, charge in charged if any(charge)}

    def with_cards(self, name: str, node: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """A pod that waits as it would be once it is bound, and its claim on a node that serves claims."""
        state = self.extender.state
        found = Committer(state, self.extender.policies).assume("default", name, f"uid-{name}", node, LATER_S)
        assert found.assumed is not None
        state.forget(found.assumed, LATER_S)
        pod = copy.deepcopy(released(self.scene.pods[name]))
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"][POD_ASSIGNED] = found.assigned
        return pod, None if found.claim is None else make_claim(found.claim)

    def preempted(self, name: str, node: str, proposed: list[str]) -> list[str] | None:
        """UIDs of the victims that the verb preempt names on a node; None: it names the node not at all."""
        body = {
            "Pod": released(self.scene.pods[name]),
            "NodeNameToMetaVictims": {node: {"Pods": [{"UID": uid} for uid in proposed]}},
        }
        answer = json.loads(self.extender.preempt(json.dumps(body).encode(), LATER_S))
        found = answer["NodeNameToMetaVictims"].get(node)
        return None if found is None else [each["UID"] for each in found["Pods"]]

    def why(self, name: str, *, ways: bool = False) -> PodExplanation:
        """What `gpupack why` says of a pod."""
        return explain_pod(self.cluster, "default", name, ways=ways)

    def pending(self, name: str) -> PendingPod:
        pod = next(pod for pod in self.board.get_cluster().pods.values() if pod.metadata.name == name)
        return explain_pending_pod(self.board.get_cluster(), pod, lambda *_: None)

    def queued(self, name: str) -> tuple[set[str], status.WaitExplanation | None]:
        """Nodes on which the queue has room for a pod, and why it waits there, where it does."""
        entry = self.queue.queued_pods[f"uid-{name}"]
        assert entry.requirements is not None
        fits = self.queue.capacity.mask_fits(entry.requirements)
        nodes = self.queue.state.nodes
        named = {nodes.names[row] for row in np.flatnonzero(fits).tolist()}
        return named, status.explain_pod(self.queue, entry, LATER_S) if entry.queue_info.gated else None


def released(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod as kube-scheduler shows it once the queue has released it."""
    meta = pod["metadata"]
    annotations = {key: text for key, text in meta["annotations"].items() if key != POD_REQUEUED}
    spec = {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
    return pod | {"metadata": meta | {"annotations": annotations}, "spec": spec}


def _units(found: Any) -> Units:
    units: Units = {}
    for node, at, count in found:
        units[node, at] = units.get((node, at), 0) + count
    return units


def _on(node: str, units: Mapping[int, int]) -> Units:
    return {(node, at): count for at, count in units.items()}
