"""Nodes that serve claims: how a cluster starts with one, its slices, claims and CDI files."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.harness import workload
from tests.cluster.harness.binaries import skip_before
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Json

API: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{API}/namespaces/default/resourceclaims"
TEMPLATES: Final = f"{API}/namespaces/default/resourceclaimtemplates"
DRIVER: Final = "gpu.gpupack.io"

NODE_KINDS: Final = ("device-plugin", pytest.param("dra", marks=pytest.mark.nightly))
"""Parameters of a fixture whose tests run on nodes of both kinds."""


def start_as(kind: str, cluster: Cluster) -> None:
    """Start a cluster whose node is of this kind; the flags of its daemon stay."""
    if kind == "dra":
        start_with_claims(cluster)
    else:
        cluster.start()


def skip_without_shares() -> None:
    """Skip where the API server knows no shares of devices."""
    skip_before("1.36", "shares of a device, KEP-5075,")


def start_with_claims(cluster: Cluster) -> None:
    """Start a cluster whose node serves claims, and nothing else."""
    skip_without_shares()
    leave_to_extender(cluster)
    cluster.control.start()
    cluster.host.start()
    until(cluster.node_ready, "node ready")
    cluster.serves_claims = True
    cluster.daemon.flags += ["--serve", "dra", "--cdi-dirs", str(cdi_folder(cluster))]
    cluster.daemon.start()
    cluster.extender.start()
    cluster.api.post(f"{API}/deviceclasses", device_class())
    until(lambda: slices(cluster), "slices")
    cluster.wait_account()


def leave_to_extender(cluster: Cluster) -> None:
    """Configure kube-scheduler for nodes that have none of the resource: the extender says what fits."""
    config = json.loads(cluster.control.scheduler_config.read_text())
    for managed in config["extenders"][0]["managedResources"]:
        managed["ignoredByScheduler"] = True
    cluster.control.use_scheduler_config(config)


def device_class() -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpupack"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }


def claim(name: str, gib: int, cel: str | None = None, *, compute: int | None = None) -> Json:
    amounts = {"memory": f"{gib}Gi"} | ({} if compute is None else {"compute": str(compute)})
    exactly: Json = {"deviceClassName": "gpupack", "capacity": {"requests": amounts}}
    if cel is not None:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def on_card(uuid: str) -> str:
    """A CEL expression for one card."""
    return f'device.attributes["{DRIVER}"].uuid == "{uuid}"'


def claim_pod(
    name: str, claim_name: str, *containers: Json, from_template: bool = False, **spec: Any
) -> Json:
    """A pod whose containers, by default one, use a claim, or one that a template makes for it."""
    own = [
        {**each, "resources": {**each["resources"], "claims": [{"name": "card"}]}}
        for each in containers or (workload.container(),)
    ]
    kind = "resourceClaimTemplateName" if from_template else "resourceClaimName"
    return workload.pod(name, *own, resourceClaims=[{"name": "card", kind: claim_name}], **spec)


def make_template(cluster: Cluster, name: str, gib: int, cel: str | None = None, **metadata: Any) -> str:
    """Make a ResourceClaimTemplate, whose claims have this metadata; returns its path."""
    made = {"metadata": metadata, "spec": claim("x", gib, cel)["spec"]}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    cluster.api.post(TEMPLATES, {**kind, "metadata": {"name": name}, "spec": made})
    return f"{TEMPLATES}/{name}"


def bind_by_hand(cluster: Cluster, name: str, gib: int, device: str) -> None:
    """Bind a pod whose claim is allocated by hand, whatever the card has left."""
    claim_name = f"of-{name}"
    cluster.api.post(CLAIMS, claim(claim_name, gib))
    uid = cluster.create(claim_pod(name, claim_name, schedulerName="nobody"))
    reserved = [{"resource": "pods", "name": name, "uid": uid}]
    allocate(cluster, claim_name, device, gib, reservedFor=reserved)
    cluster.bind(name)


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


def allocate(cluster: Cluster, name: str, device: str, gib: int, **status: Any) -> None:
    made = cluster.api.get(f"{CLAIMS}/{name}")
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": cluster.node_name,
        "device": device,
        "shareID": "6f3c9a52-6a3a-4d0c-8a3c-0f6a3c9a526a",
        "consumedCapacity": {"memory": f"{gib}Gi"},
    }
    allocation = {"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": [result]}}
    cluster.api.put(f"{CLAIMS}/{name}/status", {**made, "status": {"allocation": allocation, **status}})


def prepared_units(cluster: Cluster) -> dict[str, list[str]]:
    """Device IDs of all prepared claims by card, as the daemon's files have them."""
    found: dict[str, list[str]] = {}
    for path in (cluster.host.kubelet_dir / "plugins" / DRIVER / "claims").glob("*.json"):
        try:
            claim_file = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        for identifier in {one for ids in claim_file["ids"].values() for one in ids}:
            found.setdefault(identifier.partition("::")[0], []).append(identifier)
    return found


def clear(cluster: Cluster) -> None:
    """Delete every pod and claim: the start of the next test."""
    cluster.clear()
    for name in cluster.api.names(CLAIMS):
        cluster.api.delete(f"{CLAIMS}/{name}", grace_s=0)
    until(lambda: not cluster.api.names(CLAIMS), "claims gone")
    # The API server may forget pods and claims before the kubelet has let them go.
    until(lambda: not cdi_files(cluster), "claims let go")
