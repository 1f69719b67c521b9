"""kube-scheduler's count of a node's GPU memory: one sum for all cards, whatever is free on each.

It has less than the cards where a pod is on an unhealthy card: the kubelet no longer offers that card's
units, and the pod counts all the same, against the units of the others. Pure.
"""

from collections.abc import Mapping
from functools import lru_cache

from allocator.errors import QuantityError
from allocator.names import PERCENT_RESOURCE
from allocator.quantity import parse_integer
from scheduler_plugin.cache.charges import NodeRecord


def read_offered(allocatable: Mapping[str, str | int], resource: str) -> tuple[int | None, int | None]:
    """Read the units and the percent that a kubelet offers, None where the Node does not say."""
    return _shared(_amount(allocatable.get(resource)), _amount(allocatable.get(PERCENT_RESOURCE)))


@lru_cache(maxsize=1024)
def _shared(units: int | None, percent: int | None) -> tuple[int | None, int | None]:
    """Write amounts once for all nodes that offer the same."""
    return units, percent


def _amount(value: str | int | None) -> int | None:
    try:
        return None if value is None else parse_integer(value)
    except QuantityError:
        return 0


def sum_left(record: NodeRecord, *, percent: bool) -> int | None:
    """Find what a node's pods, with those that are being bound, leave of its units or percent.

    Returns:
        None where the Node does not say how much it offers: kube-scheduler then offers it to nobody, or has
        not heard of it yet.
    """
    offered = record.offered[percent]
    if offered is None:
        return None
    taken = (take.pod for uid, take in record.takes.items() if uid not in record.pods)
    requests = (pod.charged for pod in (*record.pods.values(), *taken))
    return offered - sum(
        request.effective_units for request in requests if request is not None and request.percent == percent
    )
