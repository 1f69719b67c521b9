"""Nodes and pods for the scheduler's tests, in the form in which the API server sends them."""

import zlib
from collections.abc import Mapping, Sequence

import msgspec

from allocator.cards import pair_amounts
from allocator.claims import AllocatedDevice, ClaimObject
from allocator.ids import PERCENT_IDS, device_names
from allocator.names import (
    CLAIM_LABEL,
    COMPUTE_RESOURCE,
    DRA_COMPUTE,
    DRA_DRIVER,
    DRA_MEMORY,
    NODE_CARDS,
    NODE_CORDON,
    NODE_HOLDS,
    PERCENT_RESOURCE,
    resource_name,
)
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, Holds, dump_cards, dump_holds
from kubeapi.objects import Node, Pod

GIB = 1 << 30
MEMORY = resource_name(1024)


OF_HEALTHY_CARDS = -1
"""The kubelet offers what the healthy cards have: units, and percent."""


def uuid(node: str, card: int) -> str:
    """Name a card of a node, in at most the 60 characters that a UUID may have."""
    name = node if len(node) <= 50 else f"{node[:41]}-{zlib.crc32(node.encode()):08x}"
    return f"GPU-{name}-{card}"


def node_object(
    name: str,
    sizes: Sequence[int] | None = (16, 16, 16, 16),
    used: Sequence[int] | None = None,
    *,
    version: int = 1,
    cpu: str = "40",
    memory: str = "100Gi",
    holds: Sequence[str] | Mapping[str, Mapping[int, int]] = (),
    claims: Mapping[str, Mapping[int, int]] | None = None,
    claims_compute: Mapping[str, Mapping[int, int]] | None = None,
    seen: int | None = None,
    models: Sequence[str] | None = None,
    healthy: Sequence[bool] | None = None,
    numa: Sequence[int | None] | None = None,
    uuids: Sequence[str] | None = None,
    parents: Sequence[str] | None = None,
    unit_mib: int = 1024,
    revision: int = 1,
    inventory: bool = True,
    cordon: str | None = None,
    extra: Mapping[str, str] | None = None,
    allocatable_units: int | None = OF_HEALTHY_CARDS,
    resources: Mapping[str, str] | None = None,
    compute: Sequence[int] | None = None,
    compute_limit: int = 100,
) -> dict[str, object]:
    """One Node; sizes None: without our words; seen defaults to the node's own version.

    `compute` is the used compute of each card in percent, None: as a daemon that does not publish it.
    `allocatable_units` is what the kubelet says of the resource itself, None: nothing, nor of percent;
    `resources` is what it says of further ones.
    """
    allocatable: dict[str, str] = {"cpu": cpu, "memory": memory, "pods": "110", **(resources or {})}
    offered = [size for at, size in enumerate(sizes or ()) if healthy is None or healthy[at]]
    if allocatable_units == OF_HEALTHY_CARDS and sizes is not None:
        allocatable.setdefault(PERCENT_RESOURCE, str(PERCENT_IDS * len(offered)))
        allocatable[resource_name(unit_mib)] = str(sum(offered))
    elif allocatable_units not in {None, OF_HEALTHY_CARDS}:
        allocatable[resource_name(unit_mib)] = str(allocatable_units)
    annotations: dict[str, str] = {}
    if sizes is not None:
        limit = 0 if compute is None else compute_limit
        words = NodeWords.of(unit_mib, sizes, used or [0] * len(sizes), revision, limit, compute or ())
        allocatable |= {key: str(value) for key, value in node_resources(words).items()}
        if compute is not None:
            allocatable.setdefault(COMPUTE_RESOURCE, str(limit * len(sizes)))
        compute_of = claims_compute or {}
        held = {uid: pair_amounts(units, compute_of.get(uid, {})) for uid, units in (claims or {}).items()}
        units = holds if isinstance(holds, Mapping) else {}
        annotations[NODE_HOLDS] = dump_holds(
            Holds(version if seen is None else seen, frozenset(holds), units, held)
        )
        if inventory:
            annotations[NODE_CARDS] = dump_cards(
                [
                    CardRecord(
                        uuids[card] if uuids else uuid(name, card),
                        card,
                        models[card] if models else "NVIDIA A100",
                        size * unit_mib,
                        numa[card] if numa else None,
                        healthy[card] if healthy else True,
                        parent=parents[card] if parents else "",
                    )
                    for card, size in enumerate(sizes)
                ]
            )
    if cordon is not None:
        annotations[NODE_CORDON] = cordon
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "annotations": {**annotations, **(extra or {})},
        },
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def container(
    name: str = "main",
    units: int | str = 1,
    cpu: str = "1",
    memory: str = "1Gi",
    resources: Mapping[str, str] | None = None,
    **more: str,
) -> dict[str, object]:
    amounts = {MEMORY: str(units), "cpu": cpu, "memory": memory, **(resources or {})}
    return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}, **more}


def without_cards(**amounts: str) -> list[dict[str, object]]:
    """A container that asks for no card."""
    return [{"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}]


def in_percent(percent: int, name: str = "main") -> dict[str, object]:
    """A container that asks for a share of a card."""
    amounts = {PERCENT_RESOURCE: str(percent)}
    return {"name": name, "resources": {"limits": amounts, "requests": amounts}}


def pod_object(
    name: str,
    units: int = 1,
    *,
    uid: str | None = None,
    node: str = "",
    version: int = 1,
    phase: str = "Pending",
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    containers: Sequence[dict[str, object]] | None = None,
    init: Sequence[dict[str, object]] = (),
    cpu: str = "1",
    memory: str = "1Gi",
    spec: Mapping[str, object] | None = None,
    status: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
    deleted: str | None = None,
) -> dict[str, object]:
    """One Pod with a single container of `units`, unless `containers` are given."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
            **({"deletionTimestamp": deleted} if deleted else {}),
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "initContainers": list(init),
            "containers": list(containers)
            if containers is not None
            else [container("main", units, cpu, memory)],
            **(spec or {}),
        },
        "status": {"phase": phase, **(status or {})},
    }


def claim_object(
    name: str,
    *shares: tuple[int, int | str | None],
    node: str = "n",
    version: int = 5,
    pods: Sequence[str] = (),
    of_pod: str | None = None,
    driver: str = DRA_DRIVER,
    compute: str | int | None = None,
) -> dict[str, object]:
    """A ResourceClaim with shares of a node's cards: (card, GiB or a text as it stands or None for all).

    Each share has `compute` percent of its card's compute.
    """
    names = device_names([uuid(node, card) for card in range(16)])
    results = []
    for card, amount in shares:
        result: dict[str, object]
        result = {"request": "r", "driver": driver, "pool": node, "device": names[uuid(node, card)]}
        given = f"{amount}Gi" if isinstance(amount, int) else amount
        amounts = {DRA_MEMORY: given, DRA_COMPUTE: None if compute is None else str(compute)}
        consumed = {name: amount for name, amount in amounts.items() if amount is not None}
        results.append(result | ({"consumedCapacity": consumed} if consumed else {}))
    metadata: dict[str, object] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
    }
    if of_pod is not None:
        for result in results:
            share = msgspec.convert(result, AllocatedDevice)
            result["shareID"] = share.make_share_id(f"uid-{of_pod}")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": of_pod, "uid": f"uid-{of_pod}"}
        metadata |= {"labels": {CLAIM_LABEL: "true"}, "ownerReferences": [owner]}
    reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if results else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "status": status,
    }


def claim(name: str, *args: object, **options: object) -> ClaimObject:
    return msgspec.json.decode(msgspec.json.encode(claim_object(name, *args, **options)), type=ClaimObject)  # type: ignore[arg-type]


def node(name: str, *args: object, **options: object) -> Node:
    return msgspec.json.decode(msgspec.json.encode(node_object(name, *args, **options)), type=Node)  # type: ignore[arg-type]


def pod(name: str, *args: object, **options: object) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod_object(name, *args, **options)), type=Pod)  # type: ignore[arg-type]
