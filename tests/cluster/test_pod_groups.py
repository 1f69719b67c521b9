"""The coscheduling plugin's PodGroup on a real API server: its pods go together, of the size that it says."""

import json
from typing import Any

import pytest

from scheduler_plugin.cache.gang_names import GROUP_LABELS
from scheduler_plugin.cache.pod_groups import COSCHEDULING, list_pod_group_paths
from tests.cluster.conftest import StartQueue
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import Dashboard, QueueController
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_rights, define_kinds

(GROUPS,) = list_pod_group_paths(COSCHEDULING, "default")
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        # Kubernetes wants it of those who define kinds in its own groups.
        "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
        },
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "names": {
            "kind": "PodGroup",
            "plural": "podgroups",
            "singular": "podgroup",
            "listKind": "PodGroupList",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    cluster: Cluster = make_cluster(w.cards(8192, 8192))
    apply_rights(cluster.api, MANIFESTS / "namespace")
    define_kinds(cluster.api, [CRD])
    return cluster


@pytest.fixture(scope="module")
def running(cluster: Cluster, start_queue: StartQueue) -> QueueController:
    apply_rights(cluster.api, COMPONENTS / "queue")
    return start_queue(cluster, "queues: [{name: a}]\n")


def create(cluster: Cluster, name: str, group: str) -> None:
    pod = w.gated(name, 4)
    pod["metadata"]["labels"][GROUP_LABELS[0]] = group
    cluster.create(pod)


def create_group(cluster: Cluster, name: str, members: int) -> None:
    kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
    cluster.api.post(GROUPS, {**kind, "metadata": {"name": name}, "spec": {"minMember": members}})


@pytest.mark.telling
def test_pods_of_a_group_go_together_once_it_says_how_many(
    cluster: Cluster, running: QueueController
) -> None:
    for at in range(2):
        create(cluster, f"g{at}", "train")
    until(
        lambda: ["not known" in pod["message"] for pod in running.status()["pods"]] == [True, True],
        "both wait for their PodGroup",
    )
    create_group(cluster, "train", 3)
    until(
        lambda: (
            [pod["message"] for pod in running.status()["pods"]] == ["2 of 3 pods of its gang are ready"] * 2
        ),
        "both wait for the third",
    )
    create(cluster, "g2", "train")
    for at in range(3):
        cluster.wait_running(f"g{at}")
    until(lambda: not running.status()["pods"], "nobody waits")


def test_the_dashboard_knows_groups_by_the_rights_of_its_manifests(cluster: Cluster) -> None:
    apply_rights(cluster.api, COMPONENTS / "dashboard")
    kubeconfig = cluster.use_account("gpupack-dashboard")
    gates, labels = [{"name": "example.com/held"}], {GROUP_LABELS[0]: "wide"}
    cluster.create(w.pod("wide-0", w.container(gib=4), labels=labels, schedulingGates=gates))
    create_group(cluster, "wide", 9)
    dashboard = Dashboard(kubeconfig, cluster.home, *free_ports(1))
    dashboard.start()
    try:
        pending = lambda: json.loads(dashboard.http("/api/state"))["pending"]["pods"]  # noqa: E731
        until(lambda: [each["gang"] for each in pending()] == ["wide (9)"], "its gang is shown")
        text = "its gang starts together, and 1 of its 9 pods fit at once now"
        until(lambda: text in pending()[0]["text"], "what its gang waits for")
        assert json.loads(dashboard.http("/api/state"))["problems"] == []
    finally:
        dashboard.stop()
