"""The sides of `benchmarks.throughput` on which pods get their cards by claims.

With `claims` the nodes serve claims and the pods are those of `extender`, which writes each pod's claim. With
`dra` each pod names a claim of its own, which kube-scheduler allocates from the nodes' slices: DRA without
gpupack.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from allocator.ids import device_names
from allocator.names import DRA_API, DRA_DRIVER, DRA_MEMORY, NODE_SERVES, SERVES_CLAIMS
from tests.cluster.harness import Cluster, dra, workload
from tests.cluster.harness.controlplane import RESOURCE
from tests.cluster.harness.dra import CLAIMS

STEPS: Final = {"min": "1Gi", "step": "1Gi"}
Parallel = Callable[[int, Callable[[int], Any]], None]


def prepare(cluster: Cluster, side: str, in_parallel: Parallel) -> None:
    """Make nodes, slices and kube-scheduler's configuration those of this side."""
    api = cluster.api
    nodes = api.get("/api/v1/nodes")["items"]
    serves = side == "claims"

    def mark(number: int) -> None:
        """Write the node's kind, and the resource as its kubelet would count it."""
        node = nodes[number]
        cards = json.loads(node["metadata"]["annotations"]["gpupack.io/cards"])
        amounts = {RESOURCE: "0" if serves else str(sum(card["mib"] for card in cards) // 1024)}
        note = {"annotations": {NODE_SERVES: SERVES_CLAIMS if serves else None}}
        api.merge(
            f"/api/v1/nodes/{node['metadata']['name']}/status",
            {"metadata": note, "status": {"capacity": amounts, "allocatable": amounts}},
        )

    in_parallel(len(nodes), mark)
    if serves:
        dra.leave_to_extender(cluster)
    if side == "dra" and not api.get(f"{DRA_API}/deviceclasses")["items"]:
        api.post(f"{DRA_API}/deviceclasses", dra.device_class())
        in_parallel(
            len(nodes), lambda number: api.post(f"{DRA_API}/resourceslices", fake_slice(nodes[number]))
        )


def fake_slice(node: dict[str, Any]) -> dict[str, Any]:
    """The slice of a fake node, with what `gpupack node` says of a card that matters here."""
    name = node["metadata"]["name"]
    cards = json.loads(node["metadata"]["annotations"]["gpupack.io/cards"])
    names = device_names([card["uuid"] for card in cards])
    devices = [
        {
            "name": names[card["uuid"]],
            "allowMultipleAllocations": True,
            "attributes": {"model": {"string": card["model"]}},
            "capacity": {
                DRA_MEMORY: {
                    "value": f"{card['mib']}Mi",
                    "requestPolicy": {"default": f"{card['mib']}Mi", "validRange": STEPS},
                }
            },
        }
        for card in cards
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": DRA_DRIVER, "nodeName": name, "pool": pool, "devices": devices},
    }


def claim_pod(cluster: Cluster, name: str, gib: int, limits: dict[str, str | int]) -> dict[str, Any]:
    """A pod of `dra`, whose claim is created first."""
    cluster.api.post(CLAIMS, dra.claim(name, gib))
    pod: dict[str, Any] = dra.claim_pod(name, name, workload.container(limits=limits))
    return pod


def clear(cluster: Cluster, in_parallel: Parallel) -> None:
    """Delete all claims: no controller runs here that would do it."""
    api = cluster.api
    names = api.names(CLAIMS)

    def delete(number: int) -> None:
        api.merge(f"{CLAIMS}/{names[number]}", {"metadata": {"finalizers": None}})
        api.delete(f"{CLAIMS}/{names[number]}", grace_s=0)

    in_parallel(len(names), delete)
