"""Nodes whose cards pods share, a preemptor on a clock of the test's own, and the API server's part of it."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from allocator.names import POD_ASSIGNED
from kubeapi.errors import BudgetRefused, Conflict, KubeApiError, NotFound
from kubeapi.objects import Pod, PodDisruptionBudget
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.preemption.preemptor import REFUSAL_REST_S, Preemptor
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.api_requests import ApiRequests
from tests.cluster_builders import node, pod_object, uuid

EPOCH_S = 1_800_000_000.0
"""Wall clock at the beginning."""


class PreemptionApi(ApiRequests):
    """What a preemptor asks of an API server; the watch brings what it does, unless `silent`.

    Attributes:
        pods: Pods by path.
        evicted: Names of the pods evicted, in order.
        nominated: Name and node of each nomination written, in order.
        faults: Errors by the end of a path, raised once each.
        silent: The watch brings nothing.
        grace_s: Of the pods.
    """

    def __init__(self, world: "PreemptionWorld") -> None:
        super().__init__()
        self.world = world
        self.pods: dict[str, dict[str, Any]] = {}
        self.evicted: list[str] = []
        self.nominated: list[tuple[str, str]] = []
        self.faults: dict[str, list[KubeApiError]] = {}
        self.silent = False
        self.grace_s = 30.0

    def answer(self, verb: str, path: str, body: Any) -> Any:
        for end, errors in self.faults.items():
            if path.endswith(end) and errors:
                raise errors.pop(0)
        pod = self.pods.get(path.removesuffix("/eviction").removesuffix("/status"))
        if pod is None:
            raise NotFound("no such pod", status=404)
        if verb == "get":
            return msgspec.json.encode(pod)
        return self._evict(pod, body) if verb == "post" else self._nominate(pod, body)

    def _evict(self, pod: dict[str, Any], body: Mapping[str, Any]) -> bytes:
        assert body["kind"] == "Eviction"
        if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
            raise Conflict("the UID in the precondition (x) does not match the UID in record (y)")
        self.evicted.append(pod["metadata"]["name"])
        ends = datetime.fromtimestamp(self.world.wall_s + self.grace_s, UTC)
        pod["metadata"]["deletionTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._changed(pod)

    def _nominate(self, pod: dict[str, Any], body: Mapping[str, Any]) -> bytes:
        if body["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise Conflict("metadata.uid", cause="uid")
        node = body["status"]["nominatedNodeName"] or ""
        self.nominated.append((pod["metadata"]["name"], node))
        pod["status"] = {**pod["status"], "nominatedNodeName": node}
        return self._changed(pod)

    def _changed(self, pod: dict[str, Any]) -> bytes:
        self.world.version += 1
        pod["metadata"]["resourceVersion"] = str(self.world.version)
        if not self.silent:
            self.world.see(pod)
        return msgspec.json.encode(pod)


class PreemptionWorld:
    """A cluster of nodes with pods on known cards, all held by their nodes.

    Attributes:
        search_s: So long the preemptor looks at a slice of nodes.
    """

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.search_s = 0.0
        self.version = 1
        self.state = ClusterState()
        self.policies = ClusterPolicies()
        self.budgets = DisruptionBudgets()
        self.extender = Extender(self.state, self.policies, 16, budgets=self.budgets)
        self.committer = Committer(self.state, self.policies)
        self.api = PreemptionApi(self)
        self.nodes: dict[str, tuple[tuple[int, ...], list[int], list[str]]] = {}
        self.cards: dict[str, tuple[str, int, int]] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.preemptor = self.restart(**options)
        self.budgets.replace([], "1")

    def restart(self, **options: Any) -> Preemptor:
        """A preemptor that knows nothing but the state."""
        self.preemptor = Preemptor(
            self.state,
            self.policies,
            self.budgets,
            self.api,
            lambda: self.now,
            lambda: self.wall_s,
            sleep=self.sleep,
            **options,
        )
        return self.preemptor

    @property
    def wall_s(self) -> float:
        return EPOCH_S + self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds + self.search_s

    # What happens in the cluster.

    def node(
        self,
        name: str,
        sizes: tuple[int, ...],
        *,
        cpu: str = "40",
        models: Sequence[str] | None = None,
        **pods: tuple[int, int, int],
    ) -> None:
        """A node; its pods are (card, units, priority) by name."""
        self.nodes[name] = (sizes, [0] * len(sizes), [])
        self.about[name] = {"cpu": cpu, "models": models}
        for pod_name, where in pods.items():
            self.run(name, pod_name, *where)
        self.publish(name)

    def run(self, node_name: str, name: str, card: int, units: int, priority: int, **more: Any) -> None:
        """A pod that runs on a card; the node says so with `publish`."""
        annotations = {POD_ASSIGNED: json.dumps({"main": [[uuid(node_name, card), units]]})}
        annotations |= more.pop("annotations", {})
        spec = {"priority": priority, **more.pop("spec", {})}
        self.create(name, units, node=node_name, annotations=annotations, spec=spec, **more)
        self.nodes[node_name][1][card] += units
        self.nodes[node_name][2].append(f"uid-{name}")
        self.cards[name] = (node_name, card, units)

    def publish(self, name: str) -> None:
        self.version += 1
        sizes, used, holds = self.nodes[name]
        compute = [0] * len(sizes)
        for held_name, (_, card, _) in self.cards.items():
            held = self.state.pods.get(f"uid-{held_name}")
            if held is not None and held.uid in holds and held.charged is not None:
                compute[card] = min(100, compute[card] + held.charged.demands[0].compute)
        more = self.about[name]
        made = node(name, sizes, used, version=self.version, holds=holds, compute=compute, **more)
        self.state.apply_node(made, self.now)

    def publish_without(self, name: str, lost: int) -> None:
        """What a node says that has lost a card: those after it move up."""
        self.version += 1
        sizes, used, holds = self.nodes[name]
        stay = [card for card in range(len(sizes)) if card != lost]
        lite = node(
            name,
            [sizes[card] for card in stay],
            [used[card] for card in stay],
            version=self.version,
            holds=holds,
            uuids=[uuid(name, card) for card in stay],
        )
        self.state.apply_node(lite, self.now)

    def vanish(self, name: str, *, published: bool = True) -> None:
        """A pod's end, and the words without it."""
        self.delete(name)
        node_name, card, units = self.cards.pop(name)
        self.nodes[node_name][1][card] -= units
        self.nodes[node_name][2].remove(f"uid-{name}")
        if published:
            self.publish(node_name)

    def create(self, name: str, units: int, **options: Any) -> dict[str, Any]:
        """A pod of any kind, known to the API server and to the state."""
        self.version += 1
        made = pod_object(name, units, version=self.version, **options)
        self.api.pods[f"/api/v1/namespaces/default/pods/{name}"] = made
        self.see(made)
        return made

    def delete(self, name: str) -> None:
        self.version += 1
        gone = self.api.pods.pop(f"/api/v1/namespaces/default/pods/{name}")
        self.state.delete_pod(_lite(gone), str(self.version), self.now)

    def see(self, pod: dict[str, Any]) -> None:
        self.preemptor.existing.apply_pod(_lite(pod))
        self.state.apply_pod(_lite(pod), self.now)

    def budget(self, app: str, allowed: int, disrupted: Sequence[str] = ()) -> None:
        """Of pods with the label `app`; some of them were evicted a moment ago."""
        made = {
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {
                "disruptionsAllowed": allowed,
                "disruptedPods": dict.fromkeys(disrupted, "2027-01-15T08:00:00Z"),
            },
        }
        self.budgets.event("ADDED", msgspec.convert(made, PodDisruptionBudget), "1")

    # What kube-scheduler does.

    @classmethod
    def of_two_nodes(cls) -> "PreemptionWorld":
        """Two nodes of which each has 8 units free and no card that has them."""
        world = cls()
        world.node("n1", (8, 8), a=(0, 4, 3), b=(1, 4, 2))
        world.node("n2", (8, 8), c=(0, 4, 5), d=(1, 4, 4))
        return world

    def wait(self, name: str, units: int, priority: int = 10, **options: Any) -> dict[str, Any]:
        """A pod that no node has room for."""
        made = self.create(name, units, spec={"priority": priority, **options.pop("spec", {})}, **options)
        assert not self.filter(made)
        return made

    def filter(self, pod: dict[str, Any], nodes: list[str] | None = None) -> list[str]:
        """One attempt; returns the nodes that pass."""
        body = {"Pod": pod, "NodeNames": sorted(self.nodes) if nodes is None else nodes}
        found = self.extender.filter(json.dumps(body).encode(), self.now)
        asked = found.refused or found.passed or found.gang_refused
        self.preemptor.record_refusal(asked, found.evictable)
        self.offered = found.evictable
        self.answer = json.loads(found.answer)
        return list(self.answer["NodeNames"])

    def preempt(
        self, pod: dict[str, Any], violations: int = 0, **victims: Sequence[str]
    ) -> dict[str, tuple[list[str], int]]:
        """kube-scheduler asks for victims; names by node, in order, and how many violate a budget."""
        proposed = {
            node_name: {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": violations}
            for node_name, names in victims.items()
        }
        body = json.dumps({"Pod": pod, "NodeNameToMetaVictims": proposed}).encode()
        answer = json.loads(self.extender.preempt(body, self.now))["NodeNameToMetaVictims"]
        return {
            node_name: (
                [each["UID"].removeprefix("uid-") for each in found["Pods"]],
                found["NumPDBViolations"],
            )
            for node_name, found in answer.items()
        }

    async def settle(self, seconds: float = REFUSAL_REST_S) -> None:
        """Let time pass, then one round."""
        self.now += seconds
        await self.preemptor.run_once()

    async def evicted(self, seconds: float = REFUSAL_REST_S) -> list[str]:
        """Let time pass, then one round; returns who has been evicted by now."""
        await self.settle(seconds)
        return self.api.evicted

    async def reserved(self, seconds: float = REFUSAL_REST_S) -> int:
        """Let time pass, then one round; returns how many pods have a reservation."""
        await self.settle(seconds)
        return len(self.state.reservations)


def _lite(pod: dict[str, Any]) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod), type=Pod)


BUDGET_SAYS_NO = BudgetRefused("Cannot evict pod as it would violate the pod's disruption budget.")
