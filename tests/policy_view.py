"""Small clusters for policy tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from allocator.request import PodRequest
from scheduler_plugin.cache.amounts import Amounts, ResourceAmounts
from scheduler_plugin.cache.arrays import BoolArray, RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest
from scheduler_plugin.scheduling.request import SchedulingRequest


def view(nodes: Mapping[str, tuple[Any, ...]]) -> NodeArrays:
    """Arrays of `{name: (cpu capacity, memory capacity, card sizes, cpu used, memory used, cards used)}`.

    The percent of compute used of each card may follow.
    """
    arrays = NodeArrays(rows=1, cards=1)
    for name, (cpu, memory, sizes, cpu_used, memory_used, used, *compute) in nodes.items():
        row = arrays.add_node(name)
        arrays.amounts.set_capacity(row, Amounts(cpu_milli=cpu, memory_bytes=memory))
        arrays.set_cards(
            row, sizes, used, models=["A"] * len(sizes), uuids=[f"{name}-{i}" for i in range(len(sizes))]
        )
        arrays.amounts.set_requested(row, Amounts(cpu_milli=cpu_used, memory_bytes=memory_used))
        arrays.set_assumed(row, [0] * len(sizes), compute[0] if compute else ())
    return arrays


def ask(
    cpu: int = 0, memory: int = 0, *demands: tuple[int, ...], others: ResourceAmounts = (), **more: Any
) -> PolicyRequest:
    amounts = Amounts(1, cpu, memory, others=others)
    return PolicyRequest(amounts, tuple(CardDemand(*demand) for demand in demands), **more)


def place(arrays: NodeArrays, row: int, cards: Sequence[Sequence[int]], wanted: PolicyRequest) -> None:
    assumed = arrays.assumed[row, : arrays.cards[row]].tolist()
    compute = arrays.compute.assumed[row, : arrays.cards[row]].tolist()
    for demand, chosen in zip(wanted.demands, cards, strict=True):
        for card in chosen:
            assumed[card] += demand.units
            compute[card] += demand.compute
    arrays.set_assumed(row, assumed, compute)
    arrays.amounts.add_requested(row, wanted.amounts)


def mask_fitting(arrays: NodeArrays, wanted: PolicyRequest) -> BoolArray:
    """Rows that can take a pod with one demand of units, however many pods they have: bool[R]."""
    rows = np.arange(arrays.row_count)
    fits = filter_nodes(arrays, SchedulingRequest(PodRequest(()), wanted), rows)
    return fits & arrays.amounts.mask_fits(wanted.amounts._replace(pods=0), rows)


def rows_of(arrays: NodeArrays) -> RowArray:
    """All rows, in the order of the nodes' names."""
    return np.array([arrays.rows[name] for name in sorted(arrays.rows)], dtype=np.intp)
