"""Claims as docs/dra.md installs them: the rights suffice, no more is given, and nothing is left."""

from typing import Any

import pytest

from tests.cluster.harness import Cluster, dra, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.installed import NAMESPACE, SCHEDULER, shipped_scheduler_config
from tests.cluster.harness.manifests import MANIFESTS, apply_all, build
from tests.cluster.harness.rest import ApiError

COMPONENTS = [MANIFESTS / "components" / name for name in ("dra", "dra-scheduler")]


def start_as_installed(cluster: Cluster) -> None:
    control = cluster.control
    control.start_etcd()
    control.start_api_server()
    control.start_controllers()
    apply_all(cluster.api, build(MANIFESTS / "base", *COMPONENTS))
    cluster.host.start()
    until(cluster.node_ready, "node ready", 60)
    for account in ("gpupack-node", SCHEDULER):
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}"
        until(lambda path=path: cluster.api.get(path), f"service account {account}")
    cluster.use_identity("gpupack-node", cluster.token(NAMESPACE, "gpupack-node", cluster.node_name))
    scheduler = cluster.use_identity(SCHEDULER, cluster.token(NAMESPACE, SCHEDULER))
    control.use_scheduler_config(shipped_scheduler_config(cluster, scheduler))
    control.start_scheduler(scheduler)
    cluster.extender.start()
    cluster.patience_s = dra.PATIENCE_S
    cluster.daemon.flags = ["--serve", "dra", "--cdi-dirs", str(dra.cdi_folder(cluster))]
    cluster.daemon.start()
    until(lambda: dra.slices(cluster), "slices", 60)
    until(
        lambda: cluster.api.get("/api/v1/namespaces/default/serviceaccounts/default"),
        "default service account",
    )


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    dra.skip_without_shares()
    made: Cluster = make_cluster(w.cards(16 << 10, 32 << 10), start=start_as_installed)
    return made


def test_the_rights_suffice_for_claims_and_for_unchanged_pods(cluster: Cluster) -> None:
    cluster.create(w.pod("ordinary", w.container(gib=20)))
    cluster.wait_running("ordinary")
    assert cluster.pod("ordinary")["spec"]["schedulerName"] == SCHEDULER
    cluster.api.post(dra.CLAIMS, dra.claim("c4", 4))
    cluster.create(dra.claim_pod("p4", "c4", schedulerName=SCHEDULER))
    cluster.wait_running("p4")
    assert sum(cluster.wait_used([4, 20], 30).used) == 24


def test_the_status_of_a_claim_says_who_has_it_and_a_daemon_changes_nothing_else_of_it(
    cluster: Cluster,
) -> None:
    path = f"{dra.CLAIMS}/c4"
    (said,) = until(lambda: cluster.api.get(path)["status"].get("devices"), "the status of its device", 30)
    (result,) = cluster.api.get(path)["status"]["allocation"]["devices"]["results"]
    assert [said[key] for key in ("driver", "pool", "device", "shareID")] == [
        result[key] for key in ("driver", "pool", "device", "shareID")
    ]
    pod = cluster.pod("p4")["metadata"]
    card = cluster.environment("p4")["NVIDIA_VISIBLE_DEVICES"]
    assert said["data"] == {"card": card, "pod": "p4", "podUID": pod["uid"], "units": {"main": 4}}
    api = cluster.api.as_user(cluster.token(NAMESPACE, "gpupack-node", cluster.node_name))
    found = cluster.api.get(path)
    with pytest.raises(ApiError, match="resourceclaims/binding"):
        api.put(f"{path}/status", {**found, "status": {}})
    foreign = {**said, "driver": "net.example.com"}
    foreign = {**found, "status": {**found["status"], "devices": [said, foreign]}}
    with pytest.raises(ApiError):
        api.put(f"{path}/status", foreign)
    elsewhere = cluster.api.as_user(cluster.token(NAMESPACE, "gpupack-node"))
    with pytest.raises(ApiError, match="resourceclaims/driver"):
        elsewhere.put(f"{path}/status", {**found, "status": {**found["status"], "devices": []}})


def test_a_daemon_writes_no_slices_of_others(cluster: Cluster) -> None:
    api = cluster.api.as_user(cluster.token(NAMESPACE, "gpupack-node", cluster.node_name))
    (mine,) = dra.slices(cluster)
    for change in ({"nodeName": "other"}, {"driver": "gpu.nvidia.com"}):
        spec = {**mine["spec"], **change}
        spec["pool"] = {**spec["pool"], "name": "other"}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        with pytest.raises(ApiError, match="ResourceSlices of"):
            api.post(f"{dra.API}/resourceslices", {**body, "metadata": {"name": "forged"}, "spec": spec})


def test_a_daemon_sets_the_resource_to_nothing_only(cluster: Cluster) -> None:
    api = cluster.api.as_user(cluster.token(NAMESPACE, "gpupack-node", cluster.node_name))
    amounts = {"gpupack.io/gpu-memory-gib": "7"}
    path = f"/api/v1/nodes/{cluster.node_name}/status"
    with pytest.raises(ApiError, match="and change no others"):
        api.merge(path, {"status": {"capacity": amounts, "allocatable": amounts}})


def test_nothing_is_left_when_pods_and_daemon_are_gone(cluster: Cluster) -> None:
    for name in ("ordinary", "p4"):
        cluster.delete(name)
    cluster.api.delete(f"{dra.CLAIMS}/c4", grace_s=0)
    until(lambda: not cluster.api.get(dra.CLAIMS)["items"], "claims gone", 60)
    until(lambda: not dra.cdi_files(cluster), "CDI files gone", 30)
    cluster.daemon.stop()
    # The kubelet deletes the slices of a driver that stays away for half a minute.
    until(lambda: not dra.slices(cluster), "slices gone", 120)
    sockets = [path.name for path in cluster.host.kubelet_dir.glob("plugins*/**/*.sock")]
    assert sockets == []
