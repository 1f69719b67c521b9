"""`gpupack autoscale` on a real API server, with the rights and policies of its manifests."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from allocator.names import NODE_HOST, NODE_KEPT, PLACEHOLDER_FOR, PLACEHOLDER_LABEL, STARTUP_TAINT
from tests.cluster.harness import ApiError, Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import scheduler_of
from tests.cluster.harness.cluster import NAMESPACE, NODES, PODS, publish_node
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import Autoscale
from tests.cluster.harness.manifests import MANIFESTS, apply_all, build_for
from tests.cluster.harness.polling import holds_for
from tests.cluster_builders import node_object

PLACEHOLDERS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AWAY_S = 60
IMAGE = {"name": "c", "image": "i"}
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"


def start_api_server(cluster: Cluster) -> None:
    cluster.control.start_without_controllers()
    apply_all(cluster.api, build_for(cluster.api, MANIFESTS / "overlays/autoscale"))
    asks = w.pod("p", w.container(gib=1))
    until(lambda: scheduler_of(cluster, asks) == "gpupack-scheduler", "the scheduler's name set")


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    return make_cluster(with_node=False, start=start_api_server)


@pytest.fixture(scope="module")
def autoscale(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Autoscale]:
    """It runs as the manifests' account."""
    kubeconfig = cluster.use_account("gpupack-autoscale")
    folder = tmp_path_factory.mktemp("autoscale")
    (port,) = free_ports(1)
    elect = ("--leader-elect", "--lease-namespace", NAMESPACE)
    daemon = Autoscale(kubeconfig, folder, port, "--grace-s", "1", *elect)
    daemon.start()
    yield daemon
    daemon.stop()


def add_node(api: Any, name: str, used: tuple[int, int] = (60, 60), taints: Any = None) -> None:
    made = node_object(name, (80, 80), used, allocatable_units=160)
    publish_node(api, made, labels={"kubernetes.io/hostname": name})
    api.merge(f"{NODES}/{name}", {"spec": {"taints": taints}})


def refuse(api: Any, name: str) -> None:
    """Write what kube-scheduler writes into a pod that no node takes."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no card"}
    api.merge(f"{PODS}/{name}/status", {"status": {"conditions": [condition]}})


def placeholders(cluster: Cluster) -> list[Any]:
    return cluster.api.get(PLACEHOLDERS, labelSelector=PLACEHOLDER_LABEL)["items"]


def test_a_placeholder_comes_with_the_condition_and_goes_with_its_pod(
    cluster: Cluster, autoscale: Autoscale
) -> None:
    add_node(cluster.api, "n1")
    cluster.api.post(PODS, w.pod("waits", w.container(gib=40)))
    refuse(cluster.api, "waits")

    def asks() -> Any:
        found = [
            pod for pod in placeholders(cluster) if pod["status"].get("conditions", [{}])[0].get("reason")
        ]
        return found[0] if len(found) == 1 else None

    made = until(asks, "a placeholder with its condition")
    assert made["status"]["conditions"][0]["reason"] == "Unschedulable"
    assert made["metadata"]["annotations"][PLACEHOLDER_FOR] == "default/waits"
    assert made["spec"]["schedulerName"] == "gpupack-placeholder"
    assert "NodeAskedFor" in until(lambda: cluster.wait_event("waits", "NodeAskedFor"), "an Event")
    status = json.loads(autoscale.http("/status"))
    assert (status["trouble"], status["autoscaler"]) == ("", "cluster-autoscaler")
    cluster.delete("waits")
    until(lambda: not placeholders(cluster), "the placeholder gone")


def asking(cluster: Cluster, *, but: str = "") -> Any:
    """The one placeholder with its condition, and another UID than before; None while it is not there."""
    found = placeholders(cluster)
    marked = [pod for pod in found if pod["status"].get("conditions")]
    return found[0] if len(found) == len(marked) == 1 and found[0]["metadata"]["uid"] != but else None


def test_placeholders_survive_what_happens_to_them_and_nothing_is_doubled(
    cluster: Cluster, autoscale: Autoscale
) -> None:
    """Deleted by hand; the leader killed; quota full in its namespace."""
    cluster.api.post(PODS, w.pod("waits", w.container(gib=40)))
    refuse(cluster.api, "waits")
    made = until(lambda: asking(cluster), "a placeholder")

    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    cluster.api.delete(f"{PLACEHOLDERS}/{name}", grace_s=0)
    again = until(lambda: asking(cluster, but=uid), "it is back")
    assert again["metadata"]["name"] == name

    autoscale.kill()
    autoscale.start(ready=False)
    # The Lease of the killed one has to run out first.
    autoscale.wait_ready()
    holds_for(lambda: asking(cluster)["metadata"]["uid"] == again["metadata"]["uid"], "it stays", 7)

    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    cluster.api.post(quotas, {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}})
    # No controller counts here.
    cluster.api.merge(f"{quotas}/full/status", {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    until(lambda: is_full(cluster), "the quota in force")
    cluster.api.delete(f"{PLACEHOLDERS}/{name}", grace_s=0)
    until(lambda: "exceeded quota" in json.loads(autoscale.http("/status"))["trouble"], "it is told")
    cluster.api.delete(f"{quotas}/full")
    until(lambda: asking(cluster), "it is back")
    cluster.delete("waits")
    until(lambda: not placeholders(cluster), "the placeholder gone")


def is_full(cluster: Cluster) -> bool:
    """Ask whether quota refuses another placeholder: admission has a view of its own of quotas."""
    try:
        cluster.api.post(
            PLACEHOLDERS, {"metadata": {"name": "x"}, "spec": {"containers": [IMAGE]}}, dryRun="All"
        )
    except ApiError as error:
        return "exceeded quota" in error.message
    return False


@pytest.mark.nightly
def test_a_placeholder_stays_while_the_api_server_is_away_for_a_minute(
    cluster: Cluster, autoscale: Autoscale
) -> None:
    cluster.api.post(PODS, w.pod("waits", w.container(gib=40)))
    refuse(cluster.api, "waits")
    made = until(lambda: asking(cluster), "a placeholder")
    cluster.control.kill("kube-apiserver")
    time.sleep(AWAY_S)
    cluster.control.start_api_server()
    until(lambda: json.loads(autoscale.http("/status"))["trouble"] == "", "it leads again")
    holds_for(lambda: asking(cluster)["metadata"]["uid"] == made["metadata"]["uid"], "it stays", 7)

    cluster.delete("waits")
    until(lambda: not placeholders(cluster), "the placeholder gone")


@pytest.mark.nightly
def test_a_node_is_kept_under_its_own_rights(cluster: Cluster, autoscale: Autoscale) -> None:
    assert autoscale.alive
    cluster.api.merge(f"{NODES}/n1", {"metadata": {"annotations": {"gpupack.io/holds": None}}})
    created = cluster.api.post(PODS, w.pod("stays", w.container(gib=60), schedulerName="gpupack-scheduler"))
    binding = {
        "metadata": {"name": "stays", "uid": created["metadata"]["uid"]},
        "target": {"kind": "Node", "name": "n1"},
    }
    cluster.api.post(f"{PODS}/stays/binding", binding)

    def kept() -> bool:
        annotations = cluster.api.get(f"{NODES}/n1")["metadata"]["annotations"]
        return NODE_KEPT in annotations and annotations.get(SCALE_DOWN_DISABLED) == "true"

    until(kept, "the node kept")
    cluster.delete("stays", wait=False)
    until(lambda: not kept(), "the node not kept any more")


def test_it_can_make_nothing_but_placeholders_and_change_nothing_but_annotations(cluster: Cluster) -> None:
    api = cluster.as_account("gpupack-autoscale")
    for spec, labels in (
        ({"containers": [IMAGE]}, {}),
        ({"containers": [IMAGE], "schedulerName": "gpupack-placeholder"}, {}),
        ({"containers": [IMAGE]}, {PLACEHOLDER_LABEL: "true"}),
        (
            {"containers": [IMAGE], "schedulerName": "gpupack-placeholder", "nodeName": "n1"},
            {PLACEHOLDER_LABEL: "true"},
        ),
    ):
        with pytest.raises(ApiError, match="placeholder pods only"):
            api.post(PLACEHOLDERS, {"metadata": {"name": "x", "labels": labels}, "spec": spec}, dryRun="All")
    with pytest.raises(ApiError, match="forbidden"):
        api.post(PODS, {"metadata": {"name": "x"}, "spec": {"containers": [IMAGE]}}, dryRun="All")
    cluster.api.post(PLACEHOLDERS, {"metadata": {"name": "other"}, "spec": {"containers": [IMAGE]}})
    with pytest.raises(ApiError, match="placeholder pods only"):
        api.delete(f"{PLACEHOLDERS}/other")
    for change in (
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"gpupack.io/cards": "x"}}},
        {"spec": {"unschedulable": True}},
    ):
        with pytest.raises(ApiError, match="keep it from scale-down, and the label"):
            api.merge(f"{NODES}/n1", change)
    api.merge(f"{NODES}/n1", {"metadata": {"annotations": {SCALE_DOWN_DISABLED: "true"}}})
    api.merge(f"{NODES}/n1", {"metadata": {"labels": {NODE_HOST: "n1"}}})


def test_a_node_daemon_takes_the_startup_taint_off_its_own_node_and_changes_no_other(
    cluster: Cluster,
) -> None:
    startup = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
    team = {"key": "team", "value": "b", "effect": "NoExecute"}
    for name in ("n2", "n3"):
        add_node(cluster.api, name, taints=[startup, team])
    daemon = cluster.as_account("gpupack-node", bound_node="n2")
    for taints in (
        [startup],
        [],
        [startup, team, {"key": "x", "effect": "NoSchedule"}],
        [{**team, "value": ""}],
    ):
        with pytest.raises(ApiError, match="change no other taint"):
            daemon.merge(f"{NODES}/n2", {"spec": {"taints": taints}})
    with pytest.raises(ApiError, match="annotations and resources of its node only"):
        daemon.merge(f"{NODES}/n2", {"spec": {"unschedulable": True}})
    with pytest.raises(ApiError, match="may not write to node n3"):
        daemon.merge(f"{NODES}/n3", {"spec": {"taints": [team]}})
    daemon.merge(f"{NODES}/n2", {"spec": {"taints": [team]}})
    assert [taint["key"] for taint in cluster.api.get(f"{NODES}/n2")["spec"]["taints"]] == ["team"]
    with pytest.raises(ApiError, match="change no other taint"):
        daemon.merge(f"{NODES}/n2", {"spec": {"taints": [team, startup]}})
