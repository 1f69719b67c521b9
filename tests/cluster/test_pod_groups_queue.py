"""PodGroups of Kubernetes in the queue, on the real kube-scheduler: all gates of a group go together."""

from typing import Any

import pytest

from allocator.names import QUEUE_GATE, QUEUE_NAME
from tests.cluster.batch_builders import bound
from tests.cluster.conftest import StartQueue
from tests.cluster.harness import Cluster, binaries, until, versions
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import add_priority_class
from tests.cluster.harness.cluster import publish_node
from tests.cluster.harness.daemons import QueueController, run_gpupack
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_rights
from tests.cluster_builders import node_object

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
CONFIG = "queues: [{name: a, nominalQuota: 15}]\n"


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    """One node with cards for all pods of these tests, without a kubelet."""
    binaries.skip_before(versions.POD_GROUPS_SINCE, "PodGroups in one cycle")

    def start(cluster: Cluster) -> None:
        control = cluster.control
        control.with_pod_groups = True
        control.start_without_controllers()
        until(lambda: cluster.api.get(GROUPS), "PodGroups are served")
        control.configure_scheduler(cluster.extender.url)
        control.start_scheduler()
        cluster.extender.start()

    cluster: Cluster = make_cluster(with_node=False, start=start)
    publish_node(cluster.api, node_object("n1", (8,) * 8))
    return cluster


@pytest.fixture(scope="module")
def running(cluster: Cluster, start_queue: StartQueue) -> QueueController:
    apply_rights(cluster.api, MANIFESTS / "namespace", COMPONENTS / "queue")
    return start_queue(cluster, CONFIG)


def create_group(cluster: Cluster, name: str, min_count: int) -> None:
    policy = {"gang": {"minCount": min_count}}
    cluster.api.post(GROUPS, {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}})


def create_pod(cluster: Cluster, name: str, gib: int = 5, *gates: str, **more: Any) -> None:
    group = {"podGroupName": name.partition("-")[0]}
    spec = {"schedulingGroup": group, "schedulingGates": [{"name": gate} for gate in gates], **more}
    labels = {QUEUE_NAME: "a"} if QUEUE_GATE in gates else {}
    cluster.create(w.pod(name, w.container(gib=gib), labels=labels, **spec))


def list_bound(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in bound(cluster, "")}


def why(cluster: Cluster, pod: str) -> str:
    return run_gpupack(cluster.control.admin_config, "why", pod).stdout


def test_groups_go_whole_as_their_quota_allows(cluster: Cluster, running: QueueController) -> None:
    """Half of each of two groups was admitted, and nothing was ever bound: a gate holds a whole group.

    One pod of each is in no queue and counts for minCount, which is less than the number of pods.
    """
    groups = {name: {f"{name}-{at}" for at in range(3)} | {f"{name}-free"} for name in "ab"}
    for name in groups:
        create_group(cluster, name, 3)
    for at in range(3):
        for name in groups:
            create_pod(cluster, f"{name}-{at}", 5, QUEUE_GATE)
    for name in groups:
        create_pod(cluster, f"{name}-free", 1)
    until(lambda: list_bound(cluster) in groups.values(), "one group is bound")
    (waits,) = (name for name, pods in groups.items() if not pods <= list_bound(cluster))
    until(
        lambda: (
            {(pod["name"], pod["reason"]) for pod in running.status()["pods"]}
            == {(f"{waits}-{at}", "Quota") for at in range(3)}
        ),
        "the other one waits for quota",
    )
    assert "is held by scheduling gate gpupack.io/queue" in why(cluster, f"{waits}-free")
    for name in list_bound(cluster):
        cluster.delete(name, wait=False)
    until(lambda: list_bound(cluster) == groups[waits], "the other one is bound")


def test_why_says_what_keeps_kube_scheduler_from_a_group(cluster: Cluster) -> None:
    create_pod(cluster, "c-0")
    assert 'there is no PodGroup "c"' in why(cluster, "c-0")
    create_group(cluster, "c", 2)
    assert '1 of the 2 pods are there that PodGroup "c" needs at least' in why(cluster, "c-0")
    create_pod(cluster, "c-1", 5, "example.com/held")
    assert 'pod c-1 of PodGroup "c" is held by scheduling gate example.com/held' in why(cluster, "c-0")
    create_group(cluster, "d", 9)
    for at in range(9):
        create_pod(cluster, f"d-{at}")
    assert "of its 9 pods fit at once now" in why(cluster, "d-0")
    add_priority_class(cluster, "high", 1000)
    create_group(cluster, "e", 1)
    create_pod(cluster, "e-0", 5, priorityClassName="high")
    assert 'PodGroup "e" has priority 0, and a pod of it 1000' in why(cluster, "e-0")
    assert not list_bound(cluster) & {"c-0", "e-0", *(f"d-{at}" for at in range(9))}
