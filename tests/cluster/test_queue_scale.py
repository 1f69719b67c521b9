"""The queue before many nodes: real API server and kube-scheduler, fake nodes, where pods are bound only."""

from collections import Counter
from typing import Any

import pytest

from allocator.names import POD_ASSIGNED, QUEUE_NAME
from allocator.records import load_assigned
from benchmarks.throughput import CARD_GIB, REQUESTS_GIB, in_parallel
from tests.cluster.batch_builders import bound, start_fleet
from tests.cluster.conftest import StartQueue
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.controlplane import RESOURCE
from tests.cluster.harness.daemons import QueueController

COUNT = 200
"""Nodes, of eight cards each."""
QUOTA = 1500
MANY = f"mode: batch\ngangWithin: 2s\nqueues: [{{name: a, nominalQuota: {QUOTA}}}, {{name: b}}]\n"
NO_SUCH_POD = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"no": "such"}}}
        ]
    }
}
"""kube-scheduler finds no node for such a pod, and the queue knows nothing of that."""


def begin(cluster: Cluster) -> None:
    """Start all but what would miss the nodes' kubelets."""
    cluster.control.configure_scheduler(cluster.extender.url)
    start_fleet(cluster, COUNT)
    cluster.extender.start()
    cluster.control.start_scheduler()


@pytest.fixture(scope="module")
def fleet(make_cluster: Any) -> Cluster:
    cluster: Cluster = make_cluster(with_node=False, start=begin)
    return cluster


@pytest.fixture(scope="module")
def queue(fleet: Cluster, start_queue: StartQueue) -> QueueController:
    """One for all tests, and their pods stay: no daemon of a fake node would say that they are gone."""
    return start_queue(fleet, MANY, is_admin=True)


def units(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE])


def test_what_kube_scheduler_refuses_gives_its_room_back_and_those_like_it_wait(
    fleet: Cluster, queue: QueueController
) -> None:
    """A pod at once; a gang, whose other pods may be bound still, after `gangWithin`. They wait again."""
    for gang in ("g", "h"):
        notes = {"gpupack.io/gang": gang, "gpupack.io/gang-size": "2"}
        for number in range(2):
            fleet.create(w.gated(f"{gang}{number}", 80, "b", annotations=notes, affinity=NO_SUCH_POD))
        if gang == "g":
            until(lambda: fleet.scheduled("g0").get("reason") == "Unschedulable", "kube-scheduler's answer")
    like = "gang default/g asks for the same and could not be bound; one at a time is tried again"
    until(lambda: _why(queue, "h0") == _why(queue, "h1") == f"HeldBack {like}", "h is held back")
    assert "it waits in its queue again" in fleet.wait_event("g0", "Requeued")
    fleet.create(w.gated("single", 80, "b", affinity=NO_SUCH_POD))
    assert "kube-scheduler found no node for it" in fleet.wait_event("single", "Requeued")
    fleet.create(w.gated("like-it", 80, "b", affinity=NO_SUCH_POD))
    until(lambda: _why(queue, "like-it").startswith("HeldBack"), "it is held back")
    fleet.create(w.gated("other", 79, "b"))
    fleet.wait_bound("other")


def _why(queue: QueueController, name: str) -> str:
    """Reason and message of a pod that waits; empty when it does not."""
    found = (pod for pod in queue.status()["pods"] if pod["name"] == name)
    return next((f"{pod['reason']} {pod['message']}" for pod in found), "")


def test_hundreds_of_nodes_and_pods_and_a_restart_in_between(fleet: Cluster, queue: QueueController) -> None:
    """What the quota allows is bound, all of it, and no card has more than it can take."""
    born: dict[str, Any] = {}

    def create(number: int) -> None:
        pod = w.gated(f"p{number:04}", REQUESTS_GIB[number % len(REQUESTS_GIB)], "ab"[number % 2])
        born[pod["metadata"]["name"]] = fleet.api.post(PODS, pod)

    in_parallel(400, create)
    until(lambda: len(bound(fleet, "")) > 1, "the first")
    queue.kill()
    queue.start()

    def all_that_may() -> bool:
        waiting = [pod for pod in queue.status()["pods"] if pod["name"] in born]
        assert {pod["reason"] for pod in waiting} == {"Quota"}, f"{len(waiting)} wait"
        found = [pod for pod in bound(fleet, "") if pod["metadata"]["name"] in born]
        assert len(found) + len(waiting) == len(born), f"{len(found)} bound, {len(waiting)} wait"
        return True

    until(all_that_may, "all that may go", every_s=0.5)
    on_cards: Counter[str] = Counter()
    of_queue: Counter[str] = Counter()
    for pod in bound(fleet, ""):
        of_queue[pod["metadata"]["labels"][QUEUE_NAME]] += units(pod)
        for shares in load_assigned(pod["metadata"]["annotations"][POD_ASSIGNED]).values():
            on_cards.update(dict(shares))
        if (before := born.pop(pod["metadata"]["name"], None)) is not None:
            _only_ours_changed(before, pod)
    assert max(on_cards.values()) <= CARD_GIB
    assert QUOTA - min(units(pod) for pod in born.values()) < of_queue["a"] <= QUOTA
    assert sum(on_cards.values()) == of_queue.total()


def _only_ours_changed(born: dict[str, Any], now: dict[str, Any]) -> None:
    """Of a pod's spec the gate, the node affinity and the node; of its metadata annotations of ours."""
    ours = {"schedulingGates", "affinity", "nodeName"}
    assert {key: value for key, value in born["spec"].items() if key not in ours} == {
        key: value for key, value in now["spec"].items() if key not in ours
    }
    assert "affinity" not in born["spec"]
    assert now["spec"]["affinity"].keys() == {"nodeAffinity"}
    assert now["metadata"]["labels"] == born["metadata"]["labels"]
    notes = now["metadata"]["annotations"].keys() - born["metadata"].get("annotations", {}).keys()
    assert notes <= {"gpupack.io/planned", POD_ASSIGNED}
