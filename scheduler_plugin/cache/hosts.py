"""What pods request of a node beside cards: cpu, memory, and further resources that somebody counts. Pure."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray, ClusterView, LongArray, RowArray
from scheduler_plugin.cache.pods import Amounts


class Host(NamedTuple):
    """What pods request of a node beside cards.

    Attributes:
        cpu_milli: Thousandths of a core.
        memory_bytes: Bytes of host memory.
        others: Of further resources; those that no node policy names are nobody's business.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    others: Amounts = ()

    def plus(self, other: "Host") -> "Host":
        """Add what somebody else requests."""
        others = self.others or other.others
        if self.others and other.others:
            sums = dict(self.others)
            for name, amount in other.others:
                sums[name] = sums.get(name, 0) + amount
            others = tuple(sorted(sums.items()))
        return Host(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes, others)


NO_HOST: Final = Host()


def host_columns(
    nodes: ClusterView, needs: Host, freed: Host = NO_HOST
) -> Iterator[tuple[int, LongArray, LongArray]]:
    """List what is needed of each resource beside what others free, and capacity and use of all nodes.

    Further resources that no node policy names are left out: the arrays do not have them.

    Args:
        nodes: The arrays.
        needs: How much is needed.
        freed: What pods that go leave behind.

    Yields:
        The amount, capacity int64[R], use int64[R].
    """
    yield needs.cpu_milli - freed.cpu_milli, nodes.cpu_capacity, nodes.cpu_used
    yield needs.memory_bytes - freed.memory_bytes, nodes.memory_capacity, nodes.memory_used
    gone = dict(freed.others)
    for name, amount in needs.others:
        if name in nodes.other_resources:
            at = nodes.other_resources.index(name)
            yield amount - gone.get(name, 0), nodes.other_capacity[at], nodes.other_used[at]


def with_host(nodes: ClusterView, needs: Host, rows: RowArray, *, emptied: bool = False) -> BoolArray:
    """Tell which rows have that left beside cards: bool[m].

    Args:
        nodes: The arrays.
        needs: How much is needed.
        rows: intp[m].
        emptied: As if no pod were there.
    """
    result: BoolArray = np.ones(len(rows), dtype=np.bool_)
    for needed, capacity, used in host_columns(nodes, needs):
        result &= (0 if emptied else used[rows]) + needed <= capacity[rows]
    return result


def has_host(
    nodes: ClusterView, needs: Host, row: int, freed: Host = NO_HOST, *, emptied: bool = False
) -> bool:
    """Tell whether one row has that left beside cards.

    Args:
        nodes: The arrays.
        needs: How much is needed.
        row: Of the node.
        freed: What pods that go leave behind.
        emptied: As if no pod were there.
    """
    return all(
        (0 if emptied else int(used[row])) + needed <= capacity[row]
        for needed, capacity, used in host_columns(nodes, needs, freed)
    )
