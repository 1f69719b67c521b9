"""Small clusters for policy tests."""

from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest


def view(nodes):
    """Arrays of `{name: (cpu capacity, memory capacity, card sizes, cpu used, memory used, cards used)}`."""
    arrays = NodeArrays(rows=1, cards=1)
    for name, (cpu, memory, sizes, cpu_used, memory_used, used) in nodes.items():
        row = arrays.add_node(name)
        arrays.set_capacity(row, cpu, memory)
        arrays.set_cards(
            row, sizes, used, models=["A"] * len(sizes), uuids=[f"{name}-{i}" for i in range(len(sizes))]
        )
        arrays.set_requested(row, cpu_used, memory_used)
    return arrays


def ask(cpu=0, memory=0, *demands, **more):
    return PolicyRequest(cpu, memory, tuple(CardDemand(*demand) for demand in demands), **more)


def place(arrays, row, cards, wanted):
    """Put a pod on cards of a row."""
    assumed = arrays.assumed[row, : arrays.cards[row]].tolist()
    for demand, chosen in zip(wanted.demands, cards, strict=True):
        for card in chosen:
            assumed[card] += demand.units
    arrays.set_assumed(row, assumed)
    arrays.set_requested(
        row, int(arrays.cpu_used[row]) + wanted.cpu_milli, int(arrays.memory_used[row]) + wanted.memory_bytes
    )
