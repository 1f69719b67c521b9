"""A real etcd restored from an older copy: the extender that runs goes on, and gives nothing twice."""

import json

import pytest

from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NODES, PODS, publish_node
from tests.cluster_builders import node_object

NODE = "restored"
BEATS = 300
"""Writes after the copy; more than the API server makes by itself before the extender asks it again."""


@pytest.fixture
def cluster(make_cluster) -> Cluster:
    cluster = make_cluster(with_node=False, start=Cluster.start_api_server)
    publish_node(cluster.api, node_object(NODE, (16, 16), seen=1))
    return cluster


def bind(cluster: Cluster, name: str) -> str:
    """Ask the extender as kube-scheduler does, until the pod is bound; returns the UUID of its card."""
    uid = cluster.create(w.pod(name, w.container(gib=12)))
    call = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": NODE}

    def bound() -> bool:
        assert cluster.extender.call("bind", call) == {"Error": ""}
        return True

    until(bound, f"pod {name} bound")
    ((card, _),) = json.loads(cluster.pod(name)["metadata"]["annotations"]["gpupack.io/assigned"])["main"]
    return str(card)


def test_the_extender_begins_anew(cluster: Cluster) -> None:
    copy = cluster.control.copy_etcd()
    cluster.extender.start()
    process = cluster.extender.pid
    lost = bind(cluster, "lost")
    for number in range(BEATS):
        cluster.api.merge(f"{NODES}/{NODE}", {"metadata": {"annotations": {"beat": str(number)}}})
    cluster.control.restore_etcd(copy)
    assert cluster.api.names(PODS) == []
    # A node may still run the pod that nobody knows any more: the other card has room.
    assert bind(cluster, "found") != lost
    assert cluster.extender.pid == process
    assert cluster.extender.alive
