"""Nodes and pods become rows: words, inventory, holds and conditions, joined."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from allocator.errors import PackingError, QuantityError
from allocator.names import (
    NODE_CORDON_REASONS,
    resource_name,
)
from allocator.packing import NodeWords, read_node
from allocator.quantity import parse_integer
from allocator.records import (
    DETACHED,
    Holds,
    load_cordon_reasons,
)
from deviceplugin.gpus.foreign_resources import count_foreign_gpus
from gpupack.inventory.objects import NodesAndPods, is_chosen_for_daemon, load_nodes, make_unknown_node_error
from gpupack.inventory.pod_cards import PodsByNode, join_pods
from gpupack.inventory.records import CardRow, NodeRow, PodRow
from kubeapi.errors import make_printable
from kubeapi.objects import Node
from scheduler_plugin.cache.claim_charges import serves_claims
from scheduler_plugin.cache.published_nodes import (
    Exclusion,
    NodeAnnotations,
    find_exclusion,
    read_annotations,
)

_NO_WORDS = "publishes no words: no daemon has run here"
_NOT_READ = "the scheduler cannot use its words: they are not in allocatable, or a card's size is impossible"


def build_rows(nodes: object, names: Sequence[str] = ()) -> list[NodeRow]:
    """Decode the cards of all nodes, ordered by node name.

    Nodes that neither publish words nor are labelled for the daemon are left out, unless they are named.

    Args:
        nodes: what `load_nodes` or `fetch` returned, or decoded JSON: a list with `items`, or a node.

    Raises:
        InputError: the value does not hold nodes, or not one of the names. Bad words or annotations of a
            node are not an error: its row says so.
    """
    cluster = nodes if isinstance(nodes, NodesAndPods) else load_nodes(msgspec.json.encode(nodes))
    missing = set(names) - {node.metadata.name for node in cluster.nodes}
    if missing:
        raise make_unknown_node_error(missing)
    pods_by_node = (
        PodsByNode.from_pods(cluster.pods, cluster.claims or ()) if cluster.pods is not None else None
    )
    decoded = (
        _build_row(node, pods_by_node, named=bool(names))
        for node in cluster.nodes
        if not names or node.metadata.name in names
    )
    return sorted((row for row in decoded if row is not None), key=lambda row: row.node)


def _build_row(node: Node, pods_by_node: PodsByNode | None, *, named: bool) -> NodeRow | None:
    bare = NodeRow(
        make_printable(node.metadata.name),
        (),
        None,
        None,
        node.ready,
        node.spec.unschedulable,
        foreign_gpus=count_foreign_gpus(node.status.capacity, node.status.allocatable),
    )
    allocatable, capacity = node.status.allocatable or {}, node.status.capacity or {}
    try:
        offered_words = read_node(allocatable)
        words = offered_words or read_node(capacity)
    except PackingError as error:
        return replace(bare, error=str(error))
    if words is None:
        return replace(bare, error=_NO_WORDS) if named or is_chosen_for_daemon(node) else None
    annotations = node.metadata.annotations or {}
    said = read_annotations(annotations, words)
    exclusion = Exclusion.NO_WORDS if offered_words is None else find_exclusion(node, words, said)
    resource = resource_name(words.layout.unit_mib)
    # Where pods get their cards by claims the kubelet offers none of it, and pods wait for the daemon.
    claims, offered = serves_claims(node), sum(words.sizes)
    problems = list(said.faults.values())
    try:
        reasons = load_cordon_reasons(annotations.get(NODE_CORDON_REASONS, "{}"))
    except PackingError as error:
        problems.append(str(error))
        reasons = {}
    cards = _build_cards(words, said, reasons)
    if exclusion in (Exclusion.NO_WORDS, Exclusion.CORRUPT) and not problems:
        problems.append(_NOT_READ)
    pods: tuple[PodRow, ...] = ()
    if pods_by_node is not None:
        name = node.metadata.name
        allocated = pods_by_node.get_claims(name, words.layout.unit_mib)
        cards, pods = join_pods(cards, said.holds, pods_by_node.get_pods(name), resource, allocated)
    return replace(
        bare,
        cards=cards,
        unit_mib=words.layout.unit_mib,
        error="; ".join(problems) or None,
        resource=resource,
        offered_units=offered if claims else _units(allocatable, resource),
        known_units=offered if claims else _units(capacity, resource),
        usable=exclusion is Exclusion.NONE,
        revision=words.revision,
        pods=pods,
    )


def _build_cards(words: NodeWords, said: NodeAnnotations, reasons: Mapping[str, str]) -> tuple[CardRow, ...]:
    limit, compute_used = words.compute_limit, words.compute_used or [0] * words.layout.cards
    held = _count_held(said.holds)
    if not said.inventory:
        return tuple(
            CardRow(
                *(position, None, None, size, used),
                held_units=None if held is None else held[position],
                compute_limit=limit,
                compute_used=compute,
            )
            for position, (size, used, compute) in enumerate(
                zip(words.sizes, words.used, compute_used, strict=True)
            )
        )
    return tuple(
        CardRow(
            index=record.index,
            uuid=record.uuid,
            model=make_printable(record.model) or None,
            size_units=size,
            used_units=used,
            healthy=record.healthy,
            cordoned=record.uuid in said.cordoned,
            cordon_reason=make_printable(
                reasons.get(record.uuid) or reasons.get(record.parent, "")
                if record.uuid in said.cordoned
                else ""
            ),
            held=make_printable(record.held),
            memory_mode=make_printable(record.memory_mode),
            detached=record.driver == DETACHED,
            held_units=None if held is None else held[position],
            compute_limit=limit,
            compute_used=compute_used[position],
        )
        for position, (record, size, used) in enumerate(
            zip(said.inventory, words.sizes, words.used, strict=True)
        )
    )


def _count_held(holds: Holds | None) -> Counter[int] | None:
    """Count the units of accounted pods by card; None: a daemon of an older version does not write them."""
    if holds is None or (holds.uids and not holds.units):
        return None
    held: Counter[int] = Counter()
    for share in holds.units.values():
        for position, units in share.items():
            held[position] += units
    return held


def _units(resources: Mapping[str, Any], resource: str) -> int:
    try:
        return parse_integer(resources.get(resource, 0))
    except (QuantityError, TypeError):
        return 0
