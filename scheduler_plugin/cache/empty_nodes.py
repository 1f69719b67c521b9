"""Nodes that are not there yet, as their daemons would publish them. Pure."""

from collections.abc import Mapping, Sequence

from allocator.names import COMPUTE_RESOURCE, NODE_CARDS, PERCENT_RESOURCE, resource_name
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, dump_cards
from allocator.request import WHOLE
from kubeapi.objects import Node, NodeSpec, NodeStatus, ObjectMeta
from kubeapi.selectors import Taint


def make_empty_node(
    name: str,
    cards: Sequence[tuple[str, int]],
    unit_mib: int,
    amounts: Mapping[str, str | int],
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    *,
    cards_of: str = "",
    compute_limit: int = WHOLE,
) -> Node:
    """Make a Node on which no pod is.

    Args:
        amounts: What it offers besides; of a resource of ours this counts, and not what a daemon offers.
        cards_of: Stands in the UUIDs of its cards; empty: its name.
        compute_limit: Percent of its compute that each card gives away.
    """
    offered: dict[str, str | int] = {}
    annotations = {}
    if cards:
        sizes, none = [mib // unit_mib for _, mib in cards], [0] * len(cards)
        words = NodeWords.of(unit_mib, sizes, none, 1, compute_limit, none if compute_limit else ())
        offered[resource_name(unit_mib)] = str(sum(sizes))
        offered[PERCENT_RESOURCE] = str(2 * WHOLE * len(cards))
        offered[COMPUTE_RESOURCE] = str(compute_limit * len(cards))
        offered |= node_resources(words)
        records = [
            CardRecord(f"GPU-{cards_of or name}-{index}", index, model, mib, None, healthy=True)
            for index, (model, mib) in enumerate(cards)
        ]
        annotations[NODE_CARDS] = dump_cards(records)
    resources = {**offered, **amounts}
    return Node(
        metadata=ObjectMeta(name=name, labels=dict(labels or {}), annotations=annotations),
        spec=NodeSpec(taints=taints),
        status=NodeStatus(allocatable=resources, capacity=resources),
    )
