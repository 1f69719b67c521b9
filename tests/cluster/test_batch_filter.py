"""What batch mode checks itself, beside the real kube-scheduler: random pods, each pinned to one random node.

Whatever our checks allow kube-scheduler binds; whatever they refuse it refuses, too. No extender is asked.
"""

import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from allocator.names import BATCH_SCHEDULER
from allocator.packing import Layout, NodeWords, node_resources, width
from benchmarks.throughput import fake_node, in_parallel
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.node_pins import make_node_affinity
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields
from scheduler_plugin.scheduling.kubernetes_checks import KubernetesChecks
from tests.cluster.batch_builders import RESTARTS_ALL
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import add_priority_class
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.controlplane import RESOURCE

NODE_COUNT = 60
BOUND = 120
WAVES = int(os.environ.get("GPUPACK_FILTER_WAVES", "6"))
"""Each asks about every node once: 360 pairs of a pod and a node."""
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
ZONES = ("a", "b", "c")
APPS = ("x", "y")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture(scope="module")
def fleet(make_cluster: Any) -> Cluster:
    def begin(cluster: Cluster) -> None:
        cluster.control.configure_scheduler(None)
        cluster.control.start_without_controllers()
        cluster.control.start_scheduler()

    cluster: Cluster = make_cluster(with_node=False, start=begin)
    return cluster


def make_node(index: int, rng: random.Random) -> dict[str, Any]:
    cards = (16,) * 4
    layout = Layout(bits=width(16), cards=4, unit_mib=1024)
    words = node_resources(NodeWords(layout, cards, (0,) * 4, revision=1))
    resources = {
        "cpu": str(rng.randint(1, 6)),
        "memory": f"{rng.randint(1, 6)}Gi",
        "pods": str(rng.randint(2, 10)),
        RESOURCE: str(rng.choice((8, 64))),
        **{key: str(value) for key, value in words.items()},
    }
    if rng.random() < 0.5:
        resources |= {"ephemeral-storage": "4Gi", "example.com/fpga": "2", "hugepages-2Mi": "64Mi"}
    taints = [{"key": "team", "value": rng.choice("ab"), "effect": rng.choice(EFFECTS)}]
    name = f"node-{index:03d}"
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": rng.choice(ZONES)}},
        "spec": {
            "taints": taints if rng.random() < 0.3 else [],
            "unschedulable": rng.random() < 0.1,
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}],
        },
    }


def amounts(rng: random.Random) -> dict[str, str]:
    found = {"cpu": f"{rng.choice((0, 100, 500, 900))}m", "memory": f"{rng.choice((0, 100, 500, 900))}Mi"}
    if rng.random() < 0.15:
        found["ephemeral-storage"] = "2Gi"
    if rng.random() < 0.1:
        found["example.com/fpga"] = "1"
    if rng.random() < 0.05:
        found["hugepages-2Mi"] = "32Mi"
    return found


def make_pod(name: str, rng: random.Random, **spec: Any) -> dict[str, Any]:
    containers = [w.container("main", gib=rng.choice((None, 1, 6)), limits=amounts(rng))]
    init = []
    if rng.random() < 0.3:
        init = [w.container("init", limits=amounts(rng), sidecar=rng.random() < 0.5)]
    pod = w.pod(name, *containers, init=init, **spec)
    pod["metadata"]["labels"] = {"app": rng.choice(APPS)}
    if rng.random() < 0.3:
        pod["spec"]["tolerations"] = [
            rng.choice(
                (
                    {"operator": "Exists"},
                    {"key": "team", "value": "a"},
                    {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
                )
            )
        ]
    if rng.random() < 0.1:
        pod["spec"]["resources"] = {"requests": {"cpu": "2"}}
    return pod


def shun(rng: random.Random) -> dict[str, Any]:
    term = {
        "topologyKey": rng.choice(("zone", "kubernetes.io/hostname")),
        "labelSelector": {"matchLabels": {"app": rng.choice(APPS)}},
    }
    return {"podAntiAffinity": {REQUIRED: [term]}}


def fill(fleet: Cluster, rng: random.Random) -> list[str]:
    """Create nodes, and bound pods of every kind; the nodes' names."""
    nodes = [make_node(index, rng) for index in range(NODE_COUNT)]
    in_parallel(NODE_COUNT, lambda index: fleet.api.post(NODES, nodes[index]))
    names = [node["metadata"]["name"] for node in nodes]
    for index in range(BOUND):
        fate = rng.random()
        more = {"affinity": shun(rng)} if rng.random() < 0.02 else {}
        path = create(fleet, make_pod(f"bound-{index:03d}", rng, nodeName=rng.choice(names), **more))
        if fate < 0.15:
            fleet.api.merge(f"{path}/status", {"status": {"phase": rng.choice(("Succeeded", "Failed"))}})
        elif fate < 0.3:
            fleet.api.delete(path, grace_s=30)
    return names


def create(fleet: Cluster, pod: dict[str, Any]) -> str:
    """Create a pod that stays while it is being deleted; its path."""
    pod["metadata"]["finalizers"] = ["example.com/stay"]
    fleet.api.post(PODS, pod)
    return f"{PODS}/{pod['metadata']['name']}"


def nominate(fleet: Cluster, names: list[str], rng: random.Random) -> None:
    """Nominate pods of another scheduler: kube-scheduler counts only its own, so we may refuse more."""
    for name, value in (("high", 1000), ("low", -1000)):
        add_priority_class(fleet, name, value, preemptionPolicy="Never")
    for index, node in enumerate(rng.sample(names, 20)):
        priority = rng.choice(("high", "low"))
        pod = make_pod(f"nominated-{index}", rng, schedulerName="nobody", priorityClassName=priority)
        fleet.api.merge(f"{create(fleet, pod)}/status", {"status": {"nominatedNodeName": node}})


def make_probe(number: int, node: str, rng: random.Random) -> dict[str, Any]:
    """A pod that may run on one node only, by a field, and by its own rules."""
    pod = make_pod(f"probe-{number:04d}", rng)
    affinity = make_node_affinity([node])
    if rng.random() < 0.4:
        for term in affinity[REQUIRED]["nodeSelectorTerms"]:
            operator = rng.choice(("In", "NotIn"))
            term["matchExpressions"] = [{"key": "zone", "operator": operator, "values": rng.sample(ZONES, 2)}]
    if rng.random() < 0.2:
        pod["spec"]["nodeSelector"] = {"zone": rng.choice(ZONES)}
    pod["spec"]["affinity"] = {"nodeAffinity": affinity}
    return pod


def read_cluster(fleet: Cluster) -> tuple[ClusterState, KubernetesChecks]:
    """The cluster as the scheduler's process sees it now."""
    state = ClusterState()
    checks = KubernetesChecks(state)
    nodes = msgspec.json.decode(json.dumps(fleet.api.get(NODES)["items"]), type=list[Node])
    pods = msgspec.json.decode(json.dumps(fleet.api.get("/api/v1/pods")["items"]), type=list[Pod])
    state.replace_nodes(nodes, "1000000000", 0)
    state.replace_pods(pods, "1000000000", 0)
    checks.replace(nodes, pods, 0)
    return state, checks


def verdict(fleet: Cluster, name: str) -> Callable[[], str]:
    """What kube-scheduler says of a pod: its node, or why it has none."""

    def look() -> str:
        pod = fleet.api.get(f"{PODS}/{name}")
        conditions = pod.get("status", {}).get("conditions", [])
        refused = [each.get("message", "?") for each in conditions if each["type"] == "PodScheduled"]
        if pod["spec"].get("nodeName"):
            return "bound"
        return f"refused: {refused[0]}" if refused else ""

    return look


class Comparison:
    """Asks our checks and kube-scheduler about one pod a node.

    Attributes:
        reasons: How often our checks gave each reason, `allowed` for none.
        differences: What was not the same, in words.
    """

    def __init__(self, fleet: Cluster, names: list[str], rng: random.Random) -> None:
        self.fleet = fleet
        self.names = names
        self.rng = rng
        self.number = 0
        self.reasons: Counter[str] = Counter()
        self.differences: list[str] = []

    def run(self, *, may_refuse_more: bool = False) -> None:
        state, checks = read_cluster(self.fleet)
        asked: list[tuple[str, str, dict[str, Any]]] = []
        for node in self.names:
            self.number += 1
            probe = make_probe(self.number, node, self.rng)
            name = probe["metadata"]["name"]
            local = {**probe, "metadata": {**probe["metadata"], "uid": name, "namespace": "default"}}
            found = msgspec.json.decode(json.dumps(local), type=Pod)
            state.apply_pod(found, 0)
            checks.apply_pod(found, 0)
            asked.append((name, checks.find_rejection(name, node, 0), probe))
            state.delete_pod(found, "", 0)
            checks.delete_pod(name)
        in_parallel(len(asked), lambda index: self.fleet.api.post(PODS, asked[index][2]))
        for name, why, _ in asked:
            look = verdict(self.fleet, name)
            until(lambda look=look: bool(look()), f"kube-scheduler's word on {name}", 60)  # type: ignore[misc]
            if not why:
                # It may have heard of the new pod before it heard that those of the last wave are gone.
                with suppress(AssertionError):
                    until(lambda look=look: look() == "bound", f"{name} bound", 20)  # type: ignore[misc]
            theirs = look()
            self.reasons[why or "allowed"] += 1
            if (theirs == "bound") is not (why == "") and not (why and may_refuse_more):
                said = repr(why or "allowed")
                self.differences.append(f"{name}: ours {said}, kube-scheduler {theirs!r}")
        for name, _, _ in asked:
            self.fleet.api.delete(f"{PODS}/{name}", grace_s=0)


def test_a_pod_that_needs_a_feature_of_its_node_is_kube_schedulers(fleet: Cluster) -> None:
    """Nodes here declare none; whatever else a pod asks for is left on this one."""
    if fleet.api.get("/version")["minor"] in {"34", "35"}:
        pytest.skip("before Kubernetes 1.36 kube-scheduler asks for no features")
    fleet.api.post(NODES, fake_node(0))
    pod = fleet.api.post(PODS, w.pod("restarts-all", w.container(), **RESTARTS_ALL))
    look = verdict(fleet, "restarts-all")
    until(lambda: bool(look()), "kube-scheduler's word", 60)
    assert "didn't match Pod's required features" in look()
    assert list_unsupported_fields({**pod["spec"], "schedulerName": BATCH_SCHEDULER})
    fleet.api.delete(f"{PODS}/restarts-all", grace_s=0)
    fleet.api.delete(f"{NODES}/node-00000")


@pytest.mark.timeout(300 + 5 * WAVES)
def test_kube_scheduler_agrees(fleet: Cluster) -> None:
    """In the last wave pods of another scheduler are nominated: we may refuse more, not allow more."""
    seed = int(time.time())
    rng = random.Random(seed)
    names = fill(fleet, rng)
    comparison = Comparison(fleet, names, rng)
    for _ in range(WAVES - 1):
        comparison.run()
    nominate(fleet, names, rng)
    comparison.run(may_refuse_more=True)
    logging.getLogger(__name__).warning("seed %d: %s", seed, dict(comparison.reasons))
    assert not comparison.differences, f"seed {seed}:\n" + "\n".join(comparison.differences)
    assert comparison.reasons["allowed"] > 20
    assert len(comparison.reasons) >= 7
