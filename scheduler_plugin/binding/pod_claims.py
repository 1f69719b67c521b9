"""The ResourceClaim of a pod that asks by its containers' limits, on a node that serves claims; pure.

Kubernetes defines such claims (KEP-5004): the kubelet serves a container from the claim that the pod's status
names, instead of the device plugin. The kubelet obeys that status whoever wrote it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from allocator.claims import AllocatedDevice, make_claim_path
from allocator.ids import device_names
from allocator.names import (
    CLAIM_LABEL,
    DEVICE_CLASS,
    DRA_COMPUTE,
    DRA_DRIVER,
    DRA_MEMORY,
    PERCENT_RESOURCE,
    resource_name,
)
from allocator.quantity import canonical
from allocator.records import Assignment, charge
from allocator.request import PodRequest
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.errors import CommitError

EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"

MOST_RESULTS: Final = 32
"""Shares of one claim, by the API's rule."""

_MOST_NAME_CHARS: Final = 200
_SHARED_REQUEST: Final = "all-containers"


@dataclass(frozen=True, slots=True)
class BoundPodClaim:
    """The claim to be written for one pod on one node, before its Binding.

    Attributes:
        body: the claim. Its name and spec depend on the pod only, so the same claim serves every node.
        allocation: the allocation for its status, without the time.
        mappings: the request of each container, for the pod's status.
    """

    namespace: str
    pod: str
    pod_uid: str
    body: dict[str, Any]
    allocation: dict[str, Any]
    mappings: list[dict[str, str]]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def path(self) -> str:
        return make_claim_path(self.namespace, self.name)

    @property
    def shares(self) -> frozenset[str]:
        """IDs of its shares, which follow from the pod, the node and the cards."""
        return frozenset(result["shareID"] for result in self.allocation["devices"]["results"])


def claim_of(
    pod: PodRecord, node: str, sizes: Mapping[str, int], assigned: Assignment, unit_mib: int
) -> BoundPodClaim:
    """Write the claim of a pod.

    Each container that asks has a request of its own, with a share of each of its cards. Where an ordinary
    init container asks, all containers have one request: the pod's effective units on its one card.

    Args:
        sizes: units of the node's cards by UUID, in word order.

    Raises:
        CommitError: the pod asks for more shares than a claim can have.
    """
    request = pod.request
    if request is None:
        raise CommitError(f"pod {pod.full_name} asks for no card")
    shares, compute = _shares(request, sizes, assigned), _compute(request)
    results = [
        AllocatedDevice(
            request=name,
            driver=DRA_DRIVER,
            pool=node,
            device=device_names(sizes)[card],
            consumed_capacity={DRA_MEMORY: canonical(f"{units * unit_mib}Mi")} | compute[name],
        )
        for name, cards in shares.items()
        for card, units in cards
    ]
    for result in results:
        result.share_id = result.make_share_id(pod.uid)
    if len(results) > MOST_RESULTS:
        raise CommitError(
            f"pod {pod.full_name} asks for {len(results)} shares of cards: "
            f"allowed on node {node}, which serves claims: {MOST_RESULTS}"
        )
    resource = PERCENT_RESOURCE if request.percent else resource_name(unit_mib)
    return BoundPodClaim(
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.uid,
        body=_body(pod, {name: len(cards) for name, cards in shares.items()}),
        allocation={
            "devices": {"results": msgspec.to_builtins(results)},
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                ]
            },
        },
        mappings=[
            {
                "containerName": container.name,
                "resourceName": resource,
                "requestName": _SHARED_REQUEST if request.shared else _request_name(number),
            }
            for number, container in enumerate(request.containers)
        ],
    )


def _shares(
    request: PodRequest, sizes: Mapping[str, int], assigned: Assignment
) -> dict[str, list[tuple[str, int]]]:
    if request.shared:
        return {_SHARED_REQUEST: list(charge(request, assigned, sizes).items())}
    return {
        _request_name(number): list(assigned[container.name])
        for number, container in enumerate(request.containers)
    }


def _compute(request: PodRequest) -> dict[str, dict[str, str]]:
    """Write what each request has of its cards' compute; nothing where it asks for none."""
    if request.shared:
        percents = {_SHARED_REQUEST: request.demands[0].compute}
    else:
        percents = {
            _request_name(number): container.compute for number, container in enumerate(request.containers)
        }
    return {name: {DRA_COMPUTE: str(percent)} if percent else {} for name, percent in percents.items()}


def _request_name(number: int) -> str:
    return f"container-{number}-request-0"


def _body(pod: PodRecord, counts: Mapping[str, int]) -> dict[str, Any]:
    """Make the claim itself; only the allocation says how much of which card."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{pod.name[:_MOST_NAME_CHARS].rstrip('.-')}-gpupack-{pod.uid[:8].lower()}",
            "namespace": pod.namespace,
            "labels": {CLAIM_LABEL: "true"},
            "annotations": {EXTENDED_CLAIM: "true"},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {
            "devices": {
                "requests": [
                    {"name": name, "exactly": {"deviceClassName": DEVICE_CLASS, "count": count}}
                    for name, count in counts.items()
                ]
            }
        },
    }
