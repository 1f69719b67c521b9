"""A cluster state and what it counts."""

import json

from allocator.names import POD_ASSIGNED
from kubeapi.objects import Pod
from scheduler_plugin.cache.state import ClusterState
from tests.cluster_builders import node, pod, uuid


def state_with(*sizes: int) -> ClusterState:
    state = ClusterState()
    state.apply_node(node("n", sizes or (16, 16)), 0)
    return state


def assigned(card: int, units: int, name: str = "n", container_name: str = "main") -> dict[str, str]:
    return {POD_ASSIGNED: json.dumps({container_name: [[uuid(name, card), units]]})}


def assumed(state: ClusterState, name: str = "n") -> list[int]:
    row = state.nodes.rows[name]
    return state.nodes.assumed[row, : state.nodes.cards[row]].tolist()


def compute_free(state: ClusterState, name: str = "n") -> list[int]:
    row = state.nodes.rows[name]
    return state.nodes.compute_free[row, : state.nodes.cards[row]].tolist()


def free(state: ClusterState, name: str = "n") -> list[int]:
    row = state.nodes.rows[name]
    return state.nodes.free[row, : state.nodes.cards[row]].tolist()


def bound(name: str, units: int, card: int | None = None, *, version: int = 5, **options: object) -> Pod:
    annotations = assigned(card, units) if card is not None else {}
    return pod(name, units, node="n", version=version, annotations=annotations, **options)
