"""Pods of batch mode on a real API server, and what became of them."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allocator.names import BATCH_SCHEDULER, POD_ASSIGNED, QUEUE_NAME
from benchmarks.throughput import CARD_GIB, fake_node, in_parallel
from tests.cluster.harness import Api, Cluster
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.following import follow
from tests.cluster.harness.rest import Json

RESTARTS_ALL = {
    "initContainers": [
        {
            **w.container("init", limits={"cpu": "100m"}),
            "restartPolicy": "Never",
            "restartPolicyRules": [
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
            ],
        }
    ]
}
"""Since Kubernetes 1.36 kube-scheduler binds such a pod to a node only that declares the feature."""

UNITS = 20
"""Of each pod of a burst: four fill a card."""


def start_fleet(cluster: Cluster, count: int) -> None:
    """Start the API server, with so many fake nodes."""
    cluster.start_api_server()
    in_parallel(count, lambda index: cluster.api.post(NODES, fake_node(index)))


def queued(name: str, gib: int = 8, **more: Any) -> dict[str, Any]:
    """A pod of the queue `a`."""
    asks = w.container(gib=gib, limits={"cpu": "100m", "memory": "64Mi"})
    return w.pod(name, asks, labels={QUEUE_NAME: "a"}, **more)


def of_batch(name: str, gib: int = 8, **spec: Any) -> dict[str, Any]:
    """The same with the scheduler of batch mode."""
    return queued(name, gib, schedulerName=BATCH_SCHEDULER, **spec)


def create_all(fleet: Cluster, prefix: str, count: int) -> None:
    bodies = [of_batch(f"{prefix}-{number:03d}", UNITS) for number in range(count)]
    in_parallel(count, lambda index: fleet.api.post(PODS, bodies[index]))


def bound(fleet: Cluster, prefix: str) -> list[dict[str, Any]]:
    pods = fleet.api.get(PODS)["items"]
    return [pod for pod in pods if pod["metadata"]["name"].startswith(prefix) and pod["spec"].get("nodeName")]


def check_cards(fleet: Cluster) -> None:
    """No card has more than it can take, by what the pods say."""
    used: Counter[str] = Counter()
    for pod in bound(fleet, ""):
        for shares in json.loads(pod["metadata"]["annotations"][POD_ASSIGNED]).values():
            for card, units in shares:
                used[card] += units
    assert used
    assert max(used.values()) <= CARD_GIB


@contextmanager
def watch_nodes(api: Api) -> Iterator[dict[str, set[str]]]:
    """All nodes on which each pod is seen from now on, by the pod's UID."""
    seen: dict[str, set[str]] = {}

    def note(pod: Json) -> None:
        if pod["spec"].get("nodeName"):
            seen.setdefault(pod["metadata"]["uid"], set()).add(pod["spec"]["nodeName"])

    follow(api, PODS, note)
    yield seen
