"""Claims as docs/dra.md installs them: the rights suffice, no more is given, and nothing is left."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from tests.cluster.harness import Cluster, dra, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NAMESPACE
from tests.cluster.harness.controlplane import RESOURCE
from tests.cluster.harness.daemons import run_gpupack
from tests.cluster.harness.installed import SCHEDULER, start_with
from tests.cluster.harness.manifests import MANIFESTS, apply_all, build, path_of
from tests.cluster.harness.rest import ApiError, Json
from tests.cluster.test_chart import CHART, helm

KIND_WRITTEN: Final = "kind of node written"
COMPONENTS = [MANIFESTS / "components" / name for name in ("dra", "dra-scheduler")]
CLUSTER_WIDE: Final = (
    f"{dra.API}/deviceclasses",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
)
"""Lists in which an installation has objects that go with no namespace."""


class Way(NamedTuple):
    """A way to install gpupack and to take it away again."""

    install: Callable[[Cluster], object]
    remove: Callable[[Cluster], object]


def kustomized(cluster: Cluster) -> object:
    return apply_all(cluster.api, build(MANIFESTS / "base", *COMPONENTS))


def delete_kustomized(cluster: Cluster) -> None:
    for one in reversed(build(MANIFESTS / "base", *COMPONENTS)):
        cluster.api.delete(path_of(cluster.api, one))


def with_helm(cluster: Cluster, *arguments: str) -> object:
    there = ("--kubeconfig", str(cluster.control.admin_config), "--namespace", NAMESPACE)
    return helm(*arguments, *there)


WAYS: Final = {
    "kustomize": Way(kustomized, delete_kustomized),
    "helm": Way(
        lambda cluster: with_helm(
            cluster, "install", "gpupack", str(CHART), "--create-namespace", "--set", "dra.enabled=true"
        ),
        lambda cluster: with_helm(cluster, "uninstall", "gpupack"),
    ),
}


def start_as_installed(cluster: Cluster, way: Way) -> None:
    cluster.daemon.flags = claims_flags(cluster)
    start_with(cluster, lambda: way.install(cluster))
    until(lambda: dra.slices(cluster), "slices")


def claims_flags(cluster: Cluster) -> list[str]:
    return ["--serve", "dra", "--cdi-dirs", str(dra.cdi_folder(cluster))]


@pytest.fixture(scope="module", params=["kustomize", pytest.param("helm", marks=pytest.mark.nightly)])
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def cluster(way: Way, make_cluster: Any) -> Cluster:
    dra.skip_without_shares()
    start = partial(start_as_installed, way=way)
    made: Cluster = make_cluster(w.cards(16 << 10, 32 << 10), start=start)
    return made


def test_the_rights_suffice_for_claims_and_for_unchanged_pods(cluster: Cluster) -> None:
    cluster.run(w.pod("ordinary", w.container(gib=20)))
    assert cluster.pod("ordinary")["spec"]["schedulerName"] == SCHEDULER
    # Left free, kube-scheduler takes the first card of a slice, whose order changes when a card is used.
    small = cluster.state().cards[0].uuid
    cluster.api.post(dra.CLAIMS, dra.claim("c4", 4, dra.on_card(small)))
    cluster.run(dra.claim_pod("p4", "c4", schedulerName=SCHEDULER))
    assert sum(cluster.wait_used([4, 20]).used) == 24


def test_the_status_of_a_claim_says_who_has_it_and_a_daemon_changes_nothing_else_of_it(
    cluster: Cluster,
) -> None:
    path = f"{dra.CLAIMS}/c4"
    (said,) = until(lambda: cluster.api.get(path)["status"].get("devices"), "the status of its device")
    (result,) = cluster.api.get(path)["status"]["allocation"]["devices"]["results"]
    assert [said[key] for key in ("driver", "pool", "device", "shareID")] == [
        result[key] for key in ("driver", "pool", "device", "shareID")
    ]
    pod = cluster.pod("p4")["metadata"]
    card = cluster.environment("p4")["NVIDIA_VISIBLE_DEVICES"]
    assert said["data"] == {"card": card, "pod": "p4", "podUID": pod["uid"], "units": {"main": 4}}
    api = cluster.as_account("gpupack-node", bound_node=cluster.node_name)
    found = cluster.api.get(path)
    with pytest.raises(ApiError, match="resourceclaims/binding"):
        api.put(f"{path}/status", {**found, "status": {}})
    foreign = {**said, "driver": "net.example.com"}
    foreign = {**found, "status": {**found["status"], "devices": [said, foreign]}}
    with pytest.raises(ApiError):
        api.put(f"{path}/status", foreign)
    elsewhere = cluster.as_account("gpupack-node")
    with pytest.raises(ApiError, match="resourceclaims/driver"):
        elsewhere.put(f"{path}/status", {**found, "status": {**found["status"], "devices": []}})


def test_a_daemon_writes_no_slices_of_others(cluster: Cluster) -> None:
    api = cluster.as_account("gpupack-node", bound_node=cluster.node_name)
    (mine,) = dra.slices(cluster)
    for change in ({"nodeName": "other"}, {"driver": "gpu.nvidia.com"}):
        spec = {**mine["spec"], **change}
        spec["pool"] = {**spec["pool"], "name": "other"}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        with pytest.raises(ApiError, match="ResourceSlices of"):
            api.post(f"{dra.API}/resourceslices", {**body, "metadata": {"name": "forged"}, "spec": spec})


def test_a_daemon_sets_the_resource_to_nothing_only(cluster: Cluster) -> None:
    api = cluster.as_account("gpupack-node", bound_node=cluster.node_name)
    amounts = {"gpupack.io/gpu-memory-gib": "7"}
    path = f"/api/v1/nodes/{cluster.node_name}/status"
    with pytest.raises(ApiError, match="and change no others"):
        api.merge(path, {"status": {"capacity": amounts, "allocatable": amounts}})


def check_nothing_is_left(cluster: Cluster) -> None:
    """Neither claim, slice, CDI file nor socket."""
    until(lambda: not cluster.api.names(dra.CLAIMS), "claims gone, finalizers and all")
    until(lambda: not dra.cdi_files(cluster), "CDI files gone")
    # The kubelet deletes the slices of a driver that stays away for half a minute.
    until(lambda: not dra.slices(cluster), "slices gone")
    sockets = [path.name for path in cluster.host.kubelet_dir.glob("plugins*/**/*.sock")]
    assert sockets == []


def test_a_node_changes_its_kind_drained_and_leaves_nothing_of_the_other_one(cluster: Cluster) -> None:
    cluster.daemon.stop()
    cluster.daemon.flags = []
    cluster.daemon.start(ready=False)
    until(lambda: not cluster.daemon.alive, "a daemon that does not start beside claims")
    assert "2 pods of this node have their cards by claims" in cluster.daemon.tail()
    cluster.daemon.kill()
    for name in ("ordinary", "p4"):
        cluster.delete(name, wait=False)
    # Their claims are let go by the daemon that gave them.
    cluster.daemon.flags = claims_flags(cluster)
    cluster.daemon.start()
    for name in ("ordinary", "p4"):
        cluster.wait_gone(name)
    cluster.api.delete(f"{dra.CLAIMS}/c4", grace_s=0)
    # The API server may forget a pod before the kubelet has its claim let go.
    until(lambda: not dra.cdi_files(cluster), "claims let go")
    cluster.daemon.stop()
    check_nothing_is_left(cluster)

    cluster.daemon.flags = []
    cluster.daemon.start()
    until(cluster.allocatable, "the kubelet's count of units")
    cluster.run(w.pod("of-devices", w.container(gib=20)))
    assert cluster.api.names(dra.CLAIMS) == []
    assert dra.cdi_files(cluster) == []
    assert dra.slices(cluster) == []
    # Before its units are seen they cannot be seen to be let go.
    cluster.wait_used([0, 20])
    cluster.delete("of-devices")
    cluster.wait_used([0, 0])
    cluster.daemon.stop()

    cluster.daemon.flags = claims_flags(cluster)
    written = cluster.daemon.log.read_text().count(KIND_WRITTEN)
    cluster.daemon.start()
    until(lambda: dra.slices(cluster), "slices")
    cluster.run(w.pod("of-claims", w.container(gib=20)))
    assert len(cluster.api.names(dra.CLAIMS)) == 1
    # Though the kubelet writes the device plugin's capacity for five minutes more.
    status = until(lambda: status_of_capacity(cluster), "the kubelet's capacity of the device plugin")
    assert status["allocatable"][RESOURCE] == "0"
    assert cluster.daemon.log.read_text().count(KIND_WRITTEN) <= written + 2
    cluster.delete("of-claims")


def status_of_capacity(cluster: Cluster) -> Json:
    """The Node's status, where it has a capacity of units; else nothing."""
    status = cluster.node_object()["status"]
    return status if status["capacity"][RESOURCE] != "0" else None


def test_nothing_is_left_of_an_installation(cluster: Cluster, way: Way) -> None:
    """In the order of docs/install.md: pods, manifests, Nodes."""
    until(lambda: not cluster.api.names(dra.CLAIMS), "claims gone with their pods")
    cluster.wait_used([0, 0])
    until(lambda: not dra.cdi_files(cluster), "claims let go")
    cluster.daemon.stop()
    cluster.extender.stop()
    cluster.control.kill("kube-scheduler")
    check_nothing_is_left(cluster)
    way.remove(cluster)
    for path in CLUSTER_WIDE:
        until(lambda path=path: not ours(cluster, path), f"nothing of gpupack in {path}")
    node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")
    assert "gpupack.io/" in json.dumps(node)
    done = run_gpupack(cluster.control.admin_config, "uninstall")
    assert done.returncode == 0, done.stdout + done.stderr
    metadata = {
        key: value for key, value in cluster.node_object()["metadata"].items() if key != "managedFields"
    }
    assert "gpupack.io/" not in json.dumps(metadata)


def ours(cluster: Cluster, path: str) -> list[str]:
    """Names of gpupack's objects in a list."""
    return [name for name in cluster.api.names(path) if name.startswith("gpupack")]
