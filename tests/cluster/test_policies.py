"""Node policies in a real control plane: kube-scheduler puts pods where each policy's formula says."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from allocator.names import NODE_HOLDS, POD_NODE_POLICY
from allocator.policy import choose
from allocator.records import Holds, dump_holds
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.scheduling.policies.registry import CardDemand, Learner, PolicyRequest
from tests.cluster.harness import Cluster, Extender, until, workload
from tests.cluster.harness.cluster import PODS, publish_node
from tests.cluster.harness.controlplane import extender_entry
from tests.cluster_builders import GIB, node_object
from tests.yaml_text import read_yaml

BALANCED = Path(__file__).resolve().parents[2] / "docs" / "policies" / "balanced.md"

CPU, MEMORY_GIB, CARD, CARDS = 40, 100, 16, 4
MODEL = "NVIDIA A100"


class Request(NamedTuple):
    """Cores, GiB of host memory, units of one card."""

    cpu: int
    memory: int
    units: int


NODES = {"a": (10, 20, (8, 8, 0, 0)), "b": (4, 10, (8, 8, 8, 4)), "c": (16, 40, (12, 12, 12, 12))}
"""Used cores, used GiB of host memory, used units of each card."""

PODS_IN_ORDER = (Request(4, 10, 4), Request(8, 30, 4), Request(4, 30, 2))
PLACES = {
    "least-requested": "bab",
    "balanced": "aba",
    "weighted-balance": "abc",
    "best-fit": "cca",
    "fragmentation": "ccb",
}
"""Where the pods go: no two policies agree."""

TOO_BIG = Request(1, 1, CARD + 1)
"""Fits the node's sum, so that kube-scheduler asks, and no card."""

BESIDE_PENDING = (Request(10, 35, 7), Request(11, 19, 9), Request(13, 8, 3))
"""Before the pod that is too big, while it waits, and after it is gone; each differs by that."""


class Model:
    """The same nodes and pods on paper: the policy's own code, no Kubernetes."""

    def __init__(self, policy: str, parameters: Mapping[str, str] | None = None) -> None:
        self.policy = make_policy(policy, parameters)
        self.nodes = NodeArrays()
        for name, (cpu, memory, used) in NODES.items():
            row = self.nodes.add_node(name)
            self.nodes.amounts.set_capacity(row, Amounts(110, CPU * 1000, MEMORY_GIB * GIB))
            self.nodes.set_cards(row, (CARD,) * CARDS, used, models=(MODEL,) * CARDS)
            self.nodes.amounts.set_requested(row, Amounts(0, cpu * 1000, memory * GIB))
        self.rows = np.array([self.nodes.rows[name] for name in NODES])

    def place(self, request: Request) -> str:
        """Find the best node; nothing is taken."""
        ask, nodes = self.ask(request), self.nodes
        fits = nodes.free_order[0][self.rows] >= request.units
        fits &= (nodes.cpu_capacity - nodes.cpu_used)[self.rows] >= ask.cpu_milli
        fits &= (nodes.memory_capacity - nodes.memory_used)[self.rows] >= ask.memory_bytes
        rows = self.rows[fits]
        scores = self.policy.score(nodes, ask, rows)
        return min(zip(scores.tolist(), [nodes.names[row] for row in rows], strict=True))[1]

    def take(self, request: Request, name: str) -> None:
        nodes, ask, row = self.nodes, self.ask(request), self.nodes.rows[name]
        chosen = choose(build_cards(nodes, row), request.units, 1, ask.card_policy)
        assert chosen is not None
        assumed = nodes.assumed[row, :CARDS].tolist()
        assumed[chosen[0]] += request.units
        nodes.set_assumed(row, assumed)
        nodes.amounts.add_requested(row, ask.amounts)

    def pending(self, request: Request) -> None:
        assert isinstance(self.policy, Learner)
        self.policy.pending("waits", self.nodes, self.ask(request), self.rows)

    def gone(self) -> None:
        assert isinstance(self.policy, Learner)
        self.policy.pod_resolved("waits", None)

    @staticmethod
    def ask(request: Request) -> PolicyRequest:
        demands = (CardDemand(request.units, 1),)
        return PolicyRequest(Amounts(1, request.cpu * 1000, request.memory * GIB), demands)


def fractions_after(name: str, request: Request) -> list[Fraction]:
    cpu, memory, used = NODES[name]
    return [
        Fraction(cpu + request.cpu, CPU),
        Fraction(memory + request.memory, MEMORY_GIB),
        Fraction(sum(used) + request.units, CARD * CARDS),
    ]


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def variance(values: Sequence[Fraction]) -> Fraction:
    return mean([(value - mean(values)) ** 2 for value in values])


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    cluster: Cluster = make_cluster(with_node=False, start=Cluster.start_api_server)
    for name, (cpu, memory, used) in NODES.items():
        publish_node(cluster.api, node_object(name, (CARD,) * CARDS, used, models=(MODEL,) * CARDS))
        limits = {"cpu": cpu, "memory": f"{memory}Gi"}
        fills, labels = workload.container(limits=limits), {"part": "filler"}
        cluster.create(workload.pod(f"filler-{name}", fills, labels=labels, nodeName=name))
    cluster.control.configure_scheduler(cluster.extender.url)
    cluster.control.start_scheduler()
    return cluster


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Callable[..., Extender]]:
    """A function that starts the extender with the cluster's policy; ended with all pods of the test."""
    started: list[Extender] = []

    def start(policy: str, *parameters: str, more: Sequence[str] = ()) -> Extender:
        words = [word for each in parameters for word in ("--node-policy-parameter", each)]
        port = int(cluster.extender.url.rpartition(":")[2])
        kubeconfig = cluster.home / "gpupack-scheduler.kubeconfig"
        made = Extender(kubeconfig, cluster.control.log_dir, port, "--node-policy", policy, *words, *more)
        started.append(made)
        made.start()
        return made

    yield start
    delete_all(cluster)
    for extender in started:
        extender.kill()


def delete_all(cluster: Cluster) -> None:
    cluster.api.call("DELETE", PODS, query={"labelSelector": "part!=filler", "gracePeriodSeconds": 0})
    until(lambda: len(cluster.api.names(PODS)) == len(NODES), "only the fillers left")
    # Every node's daemon says that it knows.
    holds = dump_holds(Holds(int(cluster.api.get(PODS)["metadata"]["resourceVersion"]), frozenset()))
    for name in NODES:
        cluster.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {NODE_HOLDS: holds}}})


def wait_nothing_assumed(extender: Extender) -> None:
    """Return once the extender counts no pod beside what the nodes publish."""
    assumed = 'gpupack_scheduler_gpu_memory_bytes{kind="assumed"}'
    until(lambda: extender.metric(assumed) == 0, "nothing assumed")


def wait_cached(extender: Extender, pods: int) -> None:
    """Return once the extender knows of so many pods."""
    until(lambda: extender.metric("gpupack_scheduler_pods") == pods, f"{pods} pods in the extender's cache")


def create(cluster: Cluster, name: str, request: Request, policy: str | None = None) -> None:
    limits = {"cpu": request.cpu, "memory": f"{request.memory}Gi"}
    annotations = {} if policy is None else {POD_NODE_POLICY: policy}
    container = workload.container(gib=request.units or None, limits=limits)
    cluster.create(workload.pod(name, container, annotations=annotations))


def place(cluster: Cluster, name: str, request: Request, policy: str | None = None) -> str:
    create(cluster, name, request, policy)
    cluster.wait_bound(name)
    return cluster.node_of(name)


def place_all(cluster: Cluster, policy: str | None = None) -> str:
    return "".join(place(cluster, f"p{at}", each, policy) for at, each in enumerate(PODS_IN_ORDER))


def test_the_places_are_those_of_the_formulas() -> None:
    first = PODS_IN_ORDER[0]
    after = {name: fractions_after(name, first) for name in NODES}
    assert min(NODES, key=lambda name: mean(after[name])) == PLACES["least-requested"][0]
    assert min(NODES, key=lambda name: variance(after[name])) == PLACES["balanced"][0]
    # cpu is what the pod takes the largest part of.
    assert max(NODES, key=lambda name: NODES[name][0]) == PLACES["best-fit"][0]
    for policy, places in PLACES.items():
        model = Model(policy)
        for request, name in zip(PODS_IN_ORDER, places, strict=True):
            assert model.place(request) == name, (policy, request)
            model.take(request, name)


@pytest.mark.parametrize(("policy", "other"), list(itertools.pairwise([*PLACES, next(iter(PLACES))])))
def test_policy_of_the_cluster_and_of_a_pod(cluster: Cluster, start: Any, policy: str, other: str) -> None:
    extender = start(policy)
    # Pods that name a policy go first: what the cluster's has learned from them by then changes nothing yet.
    assert place_all(cluster, other) == PLACES[other]
    delete_all(cluster)
    wait_cached(extender, len(NODES))
    wait_nothing_assumed(extender)
    assert place_all(cluster) == PLACES[policy]


@pytest.fixture
def asks_about_all_pods(cluster: Cluster) -> Iterator[None]:
    """kube-scheduler with the second extender of docs/policies/balanced.md."""

    def restart(more: Sequence[dict[str, Any]]) -> None:
        url = cluster.extender.url
        extenders = [extender_entry(url), *({**each, "urlPrefix": url} for each in more)]
        cluster.control.configure_scheduler(None, extenders=extenders)
        cluster.control.restart_scheduler()

    (shown,) = re.findall(r"```yaml\n(extenders:.*?)```", BALANCED.read_text(), re.DOTALL)
    restart(read_yaml(shown)["extenders"])
    yield
    restart([])


PLAIN = Request(4, 10, 0)


def test_pods_without_gpu_go_where_the_policy_says(
    cluster: Cluster, start: Any, asks_about_all_pods: None
) -> None:
    """The emptiest node is where kube-scheduler by itself puts such a pod."""
    place_plain = partial(place, cluster, request=PLAIN)
    extender = start("balanced")
    assert place_plain("alone") == "b"
    extender.kill()
    delete_all(cluster)
    start("balanced", more=("--rank-all-pods",))
    assert place_plain("ranked") == min(NODES, key=lambda name: variance(fractions_after(name, PLAIN))) == "a"


def test_a_pod_s_own_preferences_are_not_outvoted(cluster: Cluster, start: Any) -> None:
    start("least-requested")
    request = PODS_IN_ORDER[0]
    prefers_c = {"key": "metadata.name", "operator": "In", "values": ["c"]}
    limits = {"cpu": request.cpu, "memory": f"{request.memory}Gi"}
    for name, annotations, node in (
        ("prefers", {}, "c"),
        ("names-a-policy", {POD_NODE_POLICY: "least-requested"}, PLACES["least-requested"][0]),
    ):
        container = workload.container(gib=request.units, limits=limits)
        pod = workload.pod(name, container, annotations=annotations)
        preference = {"weight": 1, "preference": {"matchFields": [prefers_c]}}
        pod["spec"]["affinity"] = {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}
        }
        cluster.create(pod)
        cluster.wait_bound(name)
        assert cluster.node_of(name) == node


def test_weighted_balance_counts_pods_that_could_not_be_placed(cluster: Cluster, start: Any) -> None:
    extender = start("weighted-balance", "threshold=0")
    model = Model("weighted-balance", {"threshold": "0"})
    before, beside, after = BESIDE_PENDING

    first = model.place(before)
    model.take(before, first)
    assert place(cluster, "before", before) == first

    unaware = model.place(beside)
    model.pending(TOO_BIG)
    aware = model.place(beside)
    assert aware != unaware
    model.take(beside, aware)
    create(cluster, "waits", TOO_BIG)
    until(lambda: cluster.scheduled("waits").get("reason") == "Unschedulable", "the pod refused")
    assert place(cluster, "beside", beside) == aware

    still_counted = model.place(after)
    model.gone()
    last = model.place(after)
    assert last != still_counted
    cluster.delete("waits")
    wait_cached(extender, len(NODES) + 2)
    assert place(cluster, "after", after) == last
