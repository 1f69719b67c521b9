"""Requests of pods beside cards: cpu, memory, and further resources that a node policy counts. Pure."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray, ClusterView, LongArray, RowArray
from scheduler_plugin.cache.pods import ResourceAmounts


class HostRequest(NamedTuple):
    """HostRequest is what pods request of a node beside cards.

    Attributes:
        cpu_milli: Thousandths of a core.
        others: Amounts of further resources; only those that a node policy names are checked.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    others: ResourceAmounts = ()

    def add(self, other: "HostRequest") -> "HostRequest":
        others = self.others or other.others
        if self.others and other.others:
            sums = dict(self.others)
            for name, amount in other.others:
                sums[name] = sums.get(name, 0) + amount
            others = tuple(sorted(sums.items()))
        return HostRequest(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes, others)


NO_HOST_REQUEST: Final = HostRequest()


def list_host_resources(
    nodes: ClusterView, needs: HostRequest, freed: HostRequest = NO_HOST_REQUEST
) -> Iterator[tuple[str, int, LongArray, LongArray]]:
    """List the resources that are needed, with the amount, and capacity and use of all nodes.

    As in kube-scheduler, a pod that needs nothing of a resource may go where the resource is overcommitted.
    Further resources that no node policy names are left out, because the arrays do not have them.

    Yields:
        Its name, the amount less what is freed, capacity int64[R], use int64[R].
    """
    if needs.cpu_milli:
        yield "cpu", needs.cpu_milli - freed.cpu_milli, nodes.cpu_capacity, nodes.cpu_used
    if needs.memory_bytes:
        amount = needs.memory_bytes - freed.memory_bytes
        yield "host memory", amount, nodes.memory_capacity, nodes.memory_used
    gone = dict(freed.others)
    for name, amount in needs.others:
        if amount and name in nodes.other_resources:
            at = nodes.other_resources.index(name)
            yield name, amount - gone.get(name, 0), nodes.other_capacity[at], nodes.other_used[at]


def mask_host_fits(
    nodes: ClusterView, needs: HostRequest, rows: RowArray, *, emptied: bool = False
) -> BoolArray:
    """Return bool[m]: True for the rows with enough cpu, memory and further resources left.

    Args:
        rows: intp[m].
        emptied: Treat the node as empty.
    """
    result: BoolArray = np.ones(len(rows), dtype=np.bool_)
    for _, needed, capacity, used in list_host_resources(nodes, needs):
        result &= (0 if emptied else used[rows]) + needed <= capacity[rows]
    return result


def fits_host(
    nodes: ClusterView,
    needs: HostRequest,
    row: int,
    freed: HostRequest = NO_HOST_REQUEST,
    *,
    emptied: bool = False,
) -> bool:
    """Return True if one row has enough cpu, memory and further resources left.

    Args:
        emptied: Treat the node as empty.
    """
    return all(
        (0 if emptied else int(used[row])) + needed <= capacity[row]
        for _, needed, capacity, used in list_host_resources(nodes, needs, freed)
    )
