"""Cards by ResourceClaims on a real kubelet: `gpupack node --serve dra`, its slices, claims and CDI files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster, workload
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Json
from tests.cluster.harness.versions import picked

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
DRIVER = "gpu.gpupack.io"
PODS = "/api/v1/namespaces/default/pods"
SMALL, LARGE = (f"GPU-00000000-0000-4000-8000-{index:012d}" for index in range(2))


def device_class() -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpupack"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }


def claim(name: str, gib: int, cel: str | None = None) -> Json:
    exactly: Json = {"deviceClassName": "gpupack", "capacity": {"requests": {"memory": f"{gib}Gi"}}}
    if cel is not None:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def claim_pod(name: str, claim_name: str, **spec: Any) -> Json:
    container = workload.container()
    container["resources"] = {"claims": [{"name": "card"}]}
    claims = [{"name": "card", "resourceClaimName": claim_name}]
    return workload.pod(name, container, resourceClaims=claims, **spec)


def start_with_claims(cluster: Cluster) -> None:
    """Start a cluster whose node serves claims, and nothing else."""
    cluster.control.start()
    cluster.host.start()
    until(cluster.node_ready, "node ready", 60)
    cluster.daemon.flags = ["--serve", "dra", "--cdi-dirs", str(cdi_folder(cluster))]
    cluster.daemon.start()
    cluster.extender.start()
    cluster.api.post(f"{API}/deviceclasses", device_class())
    until(lambda: slices(cluster), "slices", 30)
    until(
        lambda: cluster.api.get("/api/v1/namespaces/default/serviceaccounts/default"),
        "default service account",
    )


def cdi_folder(cluster: Cluster) -> Path:
    return cluster.home / "run" / "cdi"


def cdi_files(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in cdi_folder(cluster).glob("*.json"))


def slices(cluster: Cluster) -> list[Json]:
    return [
        one for one in cluster.api.get(f"{API}/resourceslices")["items"] if one["spec"]["driver"] == DRIVER
    ]


def shares(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    results = cluster.api.get(f"{CLAIMS}/{name}")["status"]["allocation"]["devices"]["results"]
    return [(one["device"], one["consumedCapacity"]["memory"]) for one in results]


def clear(cluster: Cluster) -> None:
    cluster.clear()
    for one in cluster.api.get(CLAIMS)["items"]:
        cluster.api.delete(f"{CLAIMS}/{one['metadata']['name']}", grace_s=0)
    until(lambda: not cluster.api.get(CLAIMS)["items"], "claims gone", 30)


@pytest.fixture(scope="module")
def started(make_cluster: Any) -> Cluster:
    if picked().minor in {"1.34", "1.35"}:
        pytest.skip("shares of a device, KEP-5075, are on since 1.36")
    cluster: Cluster = make_cluster(workload.cards(16 << 10, 32 << 10), start=start_with_claims)
    return cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    yield started
    clear(started)


def test_a_pod_with_a_claim_gets_its_share_of_a_card(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c8", 8))
    cluster.create(claim_pod("p8", "c8"))
    cluster.wait_running("p8")

    assert shares(cluster, "c8") == [(SMALL.lower(), "8Gi")]
    found = cluster.environment("p8")
    assert found["GPUPACK_MEMORY_MIB"] == "8192"
    assert found["GPUPACK_CARDS"] == f"{SMALL}:8"
    assert found["NVIDIA_VISIBLE_DEVICES"] == SMALL
    cluster.wait_used([8, 0])
    until(lambda: cluster.allocation("p8"), "the pod's allocation")

    cluster.delete("p8")
    cluster.wait_used([0, 0])
    until(lambda: not cdi_files(cluster), "CDI file gone")


def test_the_daemon_and_the_kubelet_restart_under_a_prepared_claim(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c20", 20))
    cluster.create(claim_pod("p20", "c20"))
    cluster.wait_running("p20")
    cluster.wait_used([0, 20])
    file = cdi_files(cluster)

    cluster.daemon.kill()
    (cdi_folder(cluster) / file[0]).unlink()
    cluster.daemon.start()
    assert cdi_files(cluster) == file
    cluster.wait_used([0, 20])

    before = {one["metadata"]["uid"] for one in slices(cluster)}
    cluster.host.restart_kubelet()
    until(lambda: {one["metadata"]["uid"] for one in slices(cluster)} - before, "slices published again", 60)
    cluster.wait_used([0, 20])
    assert cluster.pod("p20")["status"]["phase"] == "Running"
    # The claim that the kubelet prepares now is another one, on what is left of the same card.
    cluster.api.post(CLAIMS, claim("c12", 12, f'device.attributes["{DRIVER}"].uuid == "{LARGE}"'))
    cluster.create(claim_pod("p12", "c12"))
    cluster.wait_running("p12", 60)
    cluster.wait_used([0, 32])

    cluster.delete("p20")
    cluster.wait_used([0, 12])


def test_a_claim_that_was_allocated_by_hand_waits_for_room_and_then_runs(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c10", 10, f'device.attributes["{DRIVER}"].uuid == "{SMALL}"'))
    cluster.create(claim_pod("p10", "c10"))
    cluster.wait_running("p10")

    made = cluster.api.post(CLAIMS, claim("by-hand", 10))
    pod = cluster.api.post(PODS, claim_pod("late", "by-hand", schedulerName="nobody"))
    share = "6f3c9a52-6a3a-4d0c-8a3c-0f6a3c9a526a"
    made["status"] = {
        "allocation": {
            "allocationTimestamp": "2026-01-01T00:00:00Z",
            "devices": {
                "results": [
                    {
                        "request": "gpu",
                        "driver": DRIVER,
                        "pool": cluster.node_name,
                        "device": SMALL.lower(),
                        "shareID": share,
                        "consumedCapacity": {"memory": "10Gi"},
                    }
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "late", "uid": pod["metadata"]["uid"]}],
    }
    cluster.api.put(f"{CLAIMS}/by-hand/status", made)
    target = {"apiVersion": "v1", "kind": "Node", "name": cluster.node_name}
    binding = {"metadata": {"name": "late", "uid": pod["metadata"]["uid"]}, "target": target}
    cluster.api.post(f"{PODS}/late/binding", {"apiVersion": "v1", "kind": "Binding", **binding})
    event = cluster.wait_event("late", "has 16 units, of which other pods have 10", 60)
    assert "10 more are not there" in event
    assert cluster.pod("late")["status"]["phase"] == "Pending"
    cluster.wait_used([10, 0])

    cluster.delete("p10")
    cluster.wait_running("late", 120)
    cluster.wait_used([10, 0])


def test_cordoned_cards_take_no_claims(cluster: Cluster) -> None:
    cordon = {"metadata": {"annotations": {"gpupack.io/cordon": SMALL}}}
    cluster.api.merge(f"/api/v1/nodes/{cluster.node_name}", cordon)

    def taints() -> list[str]:
        devices = slices(cluster)[0]["spec"]["devices"]
        return [taint["key"] for one in devices for taint in one.get("taints", [])]

    try:
        until(lambda: taints() == ["gpupack.io/cordoned"], "the cordoned card's taint")
        cluster.api.post(CLAIMS, claim("c4", 4))
        cluster.create(claim_pod("p4", "c4"))
        cluster.wait_running("p4")
        assert shares(cluster, "c4") == [(LARGE.lower(), "4Gi")]
    finally:
        uncordon = {"metadata": {"annotations": {"gpupack.io/cordon": None}}}
        cluster.api.merge(f"/api/v1/nodes/{cluster.node_name}", uncordon)
    until(lambda: not taints(), "no taint")


def test_a_claim_that_names_no_amount_has_a_whole_card(cluster: Cluster) -> None:
    whole = claim("whole", 1)
    del whole["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    cluster.api.post(CLAIMS, whole)
    cluster.create(claim_pod("pw", "whole"))
    cluster.wait_running("pw")
    assert shares(cluster, "whole") == [(SMALL.lower(), "16Gi")]
    cluster.wait_used([16, 0])
