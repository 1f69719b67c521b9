"""Rows for scripts: a list of nodes; keys are only ever added."""

from collections.abc import Sequence
from typing import Any

from gpupack.encodings import as_json
from gpupack.inventory.records import CardRow, NodeRow, PodRow


def format_json(rows: Sequence[NodeRow], *, pods: bool) -> str:
    return as_json(build_records(rows, pods=pods))


def build_records(rows: Sequence[NodeRow], *, pods: bool) -> list[dict[str, Any]]:
    return [_node(row, pods=pods) for row in rows]


def _node(row: NodeRow, *, pods: bool) -> dict[str, Any]:
    return {
        "node": row.node,
        "cards": [_card(card, pods=pods) for card in row.cards],
        "unit_mib": row.unit_mib,
        "error": row.error,
        "ready": row.ready,
        "unschedulable": row.unschedulable,
        "daemon": None if row.resource is None else not row.without_daemon,
        "takes_pods": row.takes_pods,
        "revision": row.revision,
        "foreign_gpus": row.foreign_gpus,
        **({"pods": _pods(row.pods)} if pods else {}),
    }


def _card(card: CardRow, *, pods: bool) -> dict[str, Any]:
    return {
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "size_units": card.size_units,
        "used_units": card.used_units,
        "assumed_units": card.assumed_units,
        "in_use_units": card.in_use_units,
        "held_units": card.held_units,
        "compute_limit": card.compute_limit or None,
        "compute_in_use": card.compute_in_use,
        "healthy": card.healthy,
        "cordoned": card.cordoned,
        "held": card.held or None,
        "memory_mode": card.memory_mode or None,
        "driver_detached": card.detached,
        "cordon_reason": card.cordon_reason or None,
        **({"telemetry": card.telemetry.to_json()} if card.telemetry is not None else {}),
        **({"pods": _pods(card.pods)} if pods else {}),
    }


def _pods(pods: Sequence[PodRow]) -> list[dict[str, Any]]:
    return [
        {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "units": pod.units,
            "compute": pod.compute,
            "used_compute": pod.used_compute,
            "share": pod.share,
            "used_mib": pod.used_mib,
            "held": pod.held or None,
            "compute_held": pod.compute_held or None,
        }
        for pod in pods
    ]
