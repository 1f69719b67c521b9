"""Nodes that are not there yet, as their daemons would publish them. Pure."""

from collections.abc import Mapping, Sequence

from allocator.names import COMPUTE_RESOURCE, NODE_CARDS, PERCENT_RESOURCE, resource_name
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, dump_cards
from allocator.request import WHOLE
from kubeapi.objects import Node, NodeSpec, NodeStatus, ObjectMeta
from kubeapi.selectors import HOSTNAME, Taint
from scheduler_plugin.cache.amounts import Amounts


def make_empty_node(
    name: str,
    cards: Sequence[tuple[str, int]],
    unit_mib: int,
    amounts: Amounts,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    *,
    cards_of: str = "",
    compute_limit: int,
    used: Sequence[tuple[int, int]] = (),
) -> Node:
    """Make a Node on which no pod is, but for those that have `used`; its name is its host name, too.

    Args:
        amounts: What it offers. Where no GPU memory or percent is among it, that is what a daemon offers.
        cards_of: Stands in the UUIDs of its cards; empty: its name.
        compute_limit: Percent of its compute that each card gives away.
        used: Units and percent of compute in use on each card; none where it is empty.
    """
    offered: dict[str, str | int] = {
        "cpu": f"{amounts.cpu_milli}m",
        "memory": str(amounts.memory_bytes),
        "pods": str(amounts.pods),
        **{resource: str(amount) for resource, amount in amounts.others},
    }
    annotations = {}
    if cards:
        sizes = [mib // unit_mib for _, mib in cards]
        units, compute = zip(*(used or [(0, 0)] * len(cards)), strict=True)
        words = NodeWords.of(unit_mib, sizes, units, 1, compute_limit, compute if compute_limit else ())
        offered[resource_name(unit_mib)] = str(amounts.units or sum(sizes))
        offered[PERCENT_RESOURCE] = str(amounts.percent or 2 * WHOLE * len(cards))
        offered[COMPUTE_RESOURCE] = str(compute_limit * len(cards))
        offered |= node_resources(words)
        records = [
            CardRecord(f"GPU-{cards_of or name}-{index}", index, model, mib, None, healthy=True)
            for index, (model, mib) in enumerate(cards)
        ]
        annotations[NODE_CARDS] = dump_cards(records)
    return Node(
        metadata=ObjectMeta(name=name, labels={**(labels or {}), HOSTNAME: name}, annotations=annotations),
        spec=NodeSpec(taints=taints),
        status=NodeStatus(allocatable=offered, capacity=offered),
    )
