"""Writes shapes in the formats of their readers: the file of shapes, and node groups without a node."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import yaml

from allocator.errors import shown
from allocator.names import (
    BATCH_POOL,
    NODE_HOST,
    NODE_LABEL,
    PERCENT_RESOURCE,
    STARTUP_TAINT,
    resource_name,
)
from allocator.request import WHOLE
from gpupack.autoscale.shapes import (
    GROUP_LABELS,
    INSTANCE_TYPE,
    Shape,
    learn_shapes,
    leave_out_claims,
    read_card_sets,
    read_shapes,
)
from gpupack.errors import InputError
from gpupack.inventory.objects import make_unknown_node_error
from gpupack.whatif.cluster import Cluster
from kubeapi.selectors import HOSTNAME
from scheduler_plugin.cache.pods import is_other_resource

_CARDS: Final = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,9})(?::(.+))?")
_AWS: Final = "k8s.io/cluster-autoscaler/node-template"
_AZURE: Final = "k8s.io_cluster-autoscaler_node-template"


def find_shapes(cluster: Cluster, nodes: Sequence[str]) -> list[Shape]:
    """Find the shapes of some nodes, or of all nodes that have cards.

    Raises:
        InputError: a node that there is not, that publishes no cards, or that serves claims; or no other
            node publishes cards.
    """
    missing = set(nodes) - cluster.nodes.keys()
    if missing:
        raise make_unknown_node_error(missing)
    card_sets = read_card_sets(cluster)
    without = sorted(set(nodes) - card_sets.keys())
    if without:
        raise InputError(f"node {without[0]} publishes no cards; allowed: a node on which gpupack node runs")
    if not card_sets:
        raise InputError("no node publishes cards: give --name, --cards, --cpu and --memory")
    addable = leave_out_claims(cluster, card_sets)
    of_claims = sorted(set(nodes) - addable.keys())
    if of_claims or not addable:
        first = of_claims[0] if of_claims else min(card_sets)
        raise InputError(
            f"node {first} serves claims: its kubelet offers no GPU memory, so an autoscaler would add nodes "
            "like it in vain; allowed: a node of the device plugin, or --name, --cards, --cpu and --memory"
        )
    found = learn_shapes(cluster, (), addable)
    return [shape for shape in found if not nodes or shape.nodes & set(nodes)]


def read_cards(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Read `COUNTxMIB[:MODEL]` as entries of the file of shapes.

    Raises:
        InputError: one is something else.
    """
    found = []
    for text in texts:
        match = _CARDS.fullmatch(text)
        if match is None:
            raise InputError(f"--cards {shown(text)}; allowed: COUNTxMIB or COUNTxMIB:MODEL, as 8x81559")
        found.append({"count": int(match[1]), "model": match[3] or "", "mib": int(match[2])})
    return found


def make_given_shape(
    *,
    name: str | None,
    cards: Sequence[str],
    cpu: str | None,
    memory: str | None,
    labels: Mapping[str, str],
    taints: Sequence[str],
    unit_mib: int,
) -> Shape:
    """Make the shape that options describe.

    Raises:
        InputError: lists what is missing or wrong, one a line.
    """
    entry: dict[str, Any] = {"name": name, "cards": read_cards(cards), "cpu": cpu, "memory": memory}
    entry |= {"labels": dict(labels), "taints": [_read_taint(text) for text in taints]}
    (shape,) = read_shapes(yaml.safe_dump({"shapes": [entry]}), unit_mib, "the shape given")
    return shape


def _read_taint(text: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


def list_resources(shape: Shape, unit_mib: int) -> dict[str, str]:
    """List what the kubelet of such a node offers of ours."""
    return {
        resource_name(unit_mib): str(sum(size for _, size in shape.card_set)),
        PERCENT_RESOURCE: str(2 * WHOLE * len(shape.card_set)),
    }


def _write_file(shapes: Sequence[Shape], unit_mib: int) -> str:
    return _yaml({"shapes": [_entry(shape, unit_mib) for shape in shapes]})


def _entry(shape: Shape, unit_mib: int) -> dict[str, Any]:
    amounts = shape.node.status.allocatable or {}
    cards: list[dict[str, Any]] = []
    for model, size in dict.fromkeys(shape.card_set):
        cards.append({"count": shape.card_set.count((model, size)), "model": model, "mib": size * unit_mib})
    entry: dict[str, Any] = {
        "name": shape.labels.get(INSTANCE_TYPE, shape.name),
        "cards": cards,
        "cpu": amounts["cpu"],
        "memory": amounts["memory"],
        "pods": int(amounts["pods"]),
    }
    others = {name: value for name, value in amounts.items() if is_other_resource(name)}
    if others:
        entry["resources"] = others
    labels = _group_labels(shape)
    if labels:
        entry["labels"] = labels
    if shape.taints:
        entry["taints"] = [
            {"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in shape.taints
        ]
    return entry


def _group_labels(shape: Shape) -> dict[str, str]:
    """Keep the labels that tell groups apart; of a declared shape all that stand in the file."""
    told = shape.labels if shape.declared else {*GROUP_LABELS, BATCH_POOL}
    return {
        key: value
        for key, value in shape.labels.items()
        if key in told and key not in {HOSTNAME, NODE_LABEL, NODE_HOST}
    }


def _write_aws(shape: Shape, unit_mib: int) -> str:
    lines = [f"{_AWS}/resources/{name}: {value}" for name, value in list_resources(shape, unit_mib).items()]
    lines += [f"{_AWS}/label/{key}: {value}" for key, value in _group_labels(shape).items()]
    lines += [f"{_AWS}/taint/{taint.key}: {taint.value}:{taint.effect}" for taint in shape.taints]
    return "\n".join([*lines, f"{_AWS}/taint/{STARTUP_TAINT}: :NoSchedule"])


def _write_azure(shape: Shape, unit_mib: int) -> str:
    """Write tags of a scale set, which may have no slash.

    Cluster Autoscaler reads `_` as one, and `~2` as `_`.
    """

    def tag(kind: str, key: str, value: str) -> str:
        return f"{_AZURE}_{kind}_{key.replace('_', '~2').replace('/', '_')}: {value}"

    lines = [tag("resources", name, value) for name, value in list_resources(shape, unit_mib).items()]
    lines += [tag("label", key, value) for key, value in _group_labels(shape).items()]
    lines += [tag("taint", taint.key, f"{taint.value}:{taint.effect}") for taint in shape.taints]
    return "\n".join([*lines, tag("taint", STARTUP_TAINT, ":NoSchedule")])


def _write_gce(shape: Shape, unit_mib: int) -> str:
    parts = []
    labels = _group_labels(shape)
    if labels:
        parts.append("node_labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
    taints = [f"{taint.key}={taint.value}:{taint.effect}" for taint in shape.taints]
    parts.append("node_taints=" + ",".join([*taints, f"{STARTUP_TAINT}=:NoSchedule"]))
    offered = list_resources(shape, unit_mib)
    parts.append("extended_resources=" + ",".join(f"{name}={value}" for name, value in offered.items()))
    return f"AUTOSCALER_ENV_VARS: {';'.join(parts)}"


def _write_karpenter(shape: Shape, unit_mib: int) -> str:
    machine = shape.labels.get(INSTANCE_TYPE)
    if machine is None:
        raise InputError(
            f"shape {shape.name} has no label {INSTANCE_TYPE}, by which a NodeOverlay names machine types: "
            f"give --label {INSTANCE_TYPE}=TYPE"
        )
    name = re.sub(r"[^a-z0-9.-]", "-", machine.lower()).strip("-.")
    overlay = {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": f"gpupack-{name}"},
        "spec": {
            "requirements": [{"key": INSTANCE_TYPE, "operator": "In", "values": [machine]}],
            "capacity": list_resources(shape, unit_mib),
        },
    }
    return _yaml(overlay)


def _yaml(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(value), sort_keys=False, default_flow_style=None, width=120).rstrip("\n")


_ONE: Final[Mapping[str, Callable[[Shape, int], str]]] = {
    "aws": _write_aws,
    "azure": _write_azure,
    "gce": _write_gce,
    "karpenter": _write_karpenter,
}
FORMATS: Final = ("file", *_ONE)


def write_shapes(shapes: Sequence[Shape], unit_mib: int, form: str) -> str:
    """Write shapes in one of `FORMATS`; several of a cloud are apart by a line with the name of each.

    Raises:
        InputError: the format needs a label that a shape does not have.
    """
    if form == "file":
        return _write_file(shapes, unit_mib)
    write = _ONE[form]
    if form == "karpenter":
        return "\n---\n".join(write(shape, unit_mib) for shape in shapes)
    return "\n".join(f"# {shape.name}\n{write(shape, unit_mib)}" for shape in shapes)
