"""Batch mode and kube-scheduler fill the same nodes, whose kubelets really admit: shared nodes with headroom.

`GPUPACK_BATCH_PODS` sets the number of pods, `GPUPACK_BATCH_KUBELETS` that of the kubelets.
"""

import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER, POD_ASSIGNED, QUEUE_NAME
from tests.cluster.conftest import StartQueue
from tests.cluster.harness import Cluster, NodeDaemon, binaries, cgroups, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.controlplane import RESOURCE, free_ports
from tests.cluster.harness.daemons import QueueController
from tests.cluster.harness.node import NodeSide
from tests.cluster.harness.words import integer, node_state

PODS_IN_ALL = int(os.environ.get("GPUPACK_BATCH_PODS", "60"))
KUBELETS = int(os.environ.get("GPUPACK_BATCH_KUBELETS", "2"))
UNDER_WAY = 14 * KUBELETS
"""Pods that have not ended: more than the nodes can take."""
CARD_GIB = 8
CARDS = 2
MOST_OUT_OF = 0.001
"""Share of pods that a kubelet may fail for lack of cpu or memory, and one in any case."""

pytestmark = pytest.mark.timeout(240 + 6 * PODS_IN_ALL)


class Node:
    """A kubelet with `gpupack node`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.home = Path(tempfile.mkdtemp(prefix=f"{cgroups.PREFIX}{os.getpid()}-"))
        kubelet_port, port = free_ports(2)
        config = cluster.control.write_kubeconfig(name, f"{name}-token")
        self.side = NodeSide(self.home, binaries.programs(), name, config, kubelet_port)
        profile = w.cards(*[CARD_GIB * 1024] * CARDS)
        for device in profile["devices"]:
            device["uuid"] = f"GPU-{device['uuid'][4:-12]}{name:0>6}{device['index']:06d}".replace("n", "0")
        self.daemon = NodeDaemon(self.side, cluster.control.admin_config, profile, port)

    def stop(self) -> None:
        self.daemon.kill()
        self.side.stop()
        if not os.environ.get("GPUPACK_CLUSTER_KEEP"):
            shutil.rmtree(self.home)


@pytest.fixture(scope="module")
def nodes(make_cluster: Any) -> Iterator[tuple[Cluster, list[Node]]]:
    names = [f"n{number}" for number in range(KUBELETS)]

    def begin(cluster: Cluster) -> None:
        tokens = cluster.home / "tokens.csv"
        lines = "".join(f"{name}-token,system:node:{name},{name},system:nodes\n" for name in names)
        tokens.write_text(tokens.read_text() + lines)
        cluster.control.configure_scheduler(cluster.extender.url)
        cluster.control.start()
        cluster.extender.flags = ["--commit"]
        cluster.extender.start()

    cluster: Cluster = make_cluster(with_node=False, start=begin)
    made = [Node(cluster, name) for name in names]
    try:
        for node in made:
            node.side.start()
            node.daemon.start(ready=False)
        until(lambda: all(units(cluster, name) == CARDS * CARD_GIB for name in names), "nodes ready")
        cluster.wait_account()
        yield cluster, made
    finally:
        for node in made:
            node.stop()


@pytest.fixture(scope="module")
def queue(nodes: tuple[Cluster, list[Node]], start_queue: StartQueue) -> QueueController:
    cluster, _ = nodes
    config = "mode: batch\nbatchHeadroom: 10\nqueues: [{name: a}]\n"
    return start_queue(cluster, config, "--committer", cluster.extender.url, is_admin=True)


def units(cluster: Cluster, name: str) -> int:
    """Units that a node's kubelet counts, once its words are there; 0 before."""
    node = cluster.api.get(f"{NODES}/{name}")
    return integer(node["status"]["allocatable"].get(RESOURCE, "0")) if node_state(node) else 0


def make_pod(number: int, rng: random.Random) -> dict[str, Any]:
    """Every other pod is one of batch mode; a node has two to four times the cpu of all that it may run."""
    limits = {"cpu": f"{rng.choice((50, 100, 200))}m", "memory": f"{rng.choice((16, 32, 64))}Mi"}
    command = ("/bin/sleep", str(rng.choice((1, 2, 3))))
    of_batch = {"labels": {QUEUE_NAME: "a"}, "schedulerName": BATCH_SCHEDULER} if number % 2 == 0 else {}
    container = w.container(gib=rng.choice((1, 2, 3, 5)), command=command, limits=limits)
    return w.pod(f"p{number:05d}", container, **of_batch)


class Run:
    """Keeps the nodes full until all pods have ended.

    Attributes:
        ended: How many pods ended, by their scheduler and how.
        odd: Pods that a kubelet failed, in words.
        explained: What their nodes said then, where cpu and memory were not short.
    """

    def __init__(self, cluster: Cluster, nodes: list[Node]) -> None:
        self.cluster, self.nodes = cluster, nodes
        self.explained: list[str] = []
        self.rng = random.Random(1)
        self.created = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        self.odd: list[str] = []

    def go(self) -> None:
        deadline = time.monotonic() + 120 + 5 * PODS_IN_ALL
        while sum(self.ended.values()) < PODS_IN_ALL:
            assert time.monotonic() < deadline, f"{self.created} created, ended: {self.ended}"
            pods = self.cluster.api.get(PODS)["items"]
            self.check_cards(pods)
            left = len(pods)
            for pod in pods:
                if pod["status"].get("phase") in {"Succeeded", "Failed"}:
                    self.end(pod)
                    left -= 1
            while left < UNDER_WAY and self.created < PODS_IN_ALL:
                self.cluster.api.post(PODS, make_pod(self.created, self.rng))
                self.created += 1
                left += 1
            time.sleep(0.5)

    def end(self, pod: dict[str, Any]) -> None:
        status, name = pod["status"], pod["metadata"]["name"]
        reason = status.get("reason", "")
        self.ended[pod["spec"]["schedulerName"], reason or status["phase"]] += 1
        if status["phase"] == "Failed":
            node = pod["spec"].get("nodeName")
            self.odd.append(f"{name} on {node}: {reason} {status.get('message')}")
            if not reason.startswith("OutOf"):
                self.explained.append(self.explain(node))
        self.cluster.api.delete(f"{PODS}/{name}", grace_s=0)
        if self.cluster.extender.metric("gpupack_extender_batch_paused_nodes"):
            # It would pause for ten minutes, as it should; a new process knows nothing of that. A killed one
            # without a Lease may leave a Binding behind that is written after the list of its successor.
            self.cluster.extender.stop()
            self.cluster.extender.start()

    def explain(self, name: str) -> str:
        """What a node's daemon and the API server say of its pods."""
        (node,) = [each for each in self.nodes if each.name == name]
        pods = [pod for pod in self.cluster.api.get(PODS)["items"] if pod["spec"].get("nodeName") == name]
        said = [
            f"{pod['metadata']['name']} {pod['status'].get('phase')} {pod['metadata'].get('annotations')}"
            for pod in pods
        ]
        return "\n".join([node.daemon.http("/explain"), *said, node.daemon.tail(80)])

    def check_cards(self, pods: list[dict[str, Any]]) -> None:
        """What runs has no more of a card than it has, and neither have the nodes' words."""
        used: Counter[str] = Counter()
        for pod in pods:
            if pod["status"].get("phase") == "Running":
                for shares in json.loads(pod["metadata"]["annotations"][POD_ASSIGNED]).values():
                    used.update(dict(shares))
        assert max(used.values(), default=0) <= CARD_GIB
        for node in self.cluster.api.get(NODES)["items"]:
            state = node_state(node)
            assert state is None or all(card.used <= card.size for card in state.cards)


def test_both_fill_the_same_nodes_and_no_kubelet_has_to_refuse_a_card(
    nodes: tuple[Cluster, list[Node]], queue: QueueController
) -> None:
    cluster, made = nodes
    run = Run(cluster, made)
    run.go()
    out_of = [line for line in run.odd if ": OutOf" in line]
    assert len(out_of) <= max(1, MOST_OUT_OF * PODS_IN_ALL), "\n".join(run.odd)
    assert run.odd == out_of, "\n".join([*run.odd, *run.explained])
    by_scheduler = Counter({name: 0 for name, _ in run.ended})
    for (name, _), count in run.ended.items():
        by_scheduler[name] += count
    assert min(by_scheduler.values()) >= PODS_IN_ALL // 2
    assert len(by_scheduler) == 2

    def released() -> bool:
        states = [node_state(cluster.api.get(f"{NODES}/{node.name}")) for node in made]
        return all(state is not None and not any(state.used) for state in states)

    until(released, "the words say that nothing is used")
