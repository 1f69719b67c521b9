"""Sums a node's GPU memory as kube-scheduler counts it: one sum for all cards together.

If a pod is on an unhealthy card, the sum is smaller than what the cards have: the kubelet no longer offers
that card's units, but the pod still counts against the units of the other cards. Pure.
"""

from collections.abc import Mapping
from functools import lru_cache

from allocator.errors import QuantityError
from allocator.names import PERCENT_RESOURCE
from allocator.quantity import recall_integer
from scheduler_plugin.cache.charges import NodeRecord


def read_kubelet_sums(allocatable: Mapping[str, str | int], resource: str) -> tuple[int | None, int | None]:
    """Read the units and the percent that a kubelet offers, None if the Node does not say."""
    return _share_sums(_read_sum(allocatable.get(resource)), _read_sum(allocatable.get(PERCENT_RESOURCE)))


@lru_cache(maxsize=1024)
def _share_sums(units: int | None, percent: int | None) -> tuple[int | None, int | None]:
    return units, percent


def _read_sum(value: str | int | None) -> int | None:
    try:
        return None if value is None else recall_integer(value)
    except QuantityError:
        return 0


def compute_sum_left(record: NodeRecord, *, percent: bool) -> int | None:
    """Compute the units or percent that a node's bound and assumed pods leave of its sum.

    A node that does not say how much it offers, as its kubelet has not heard of the daemon yet, offers none.

    Returns:
        None if pods get their cards by claims: no sum is counted there.
    """
    if record.serves_claims:
        return None
    offered = record.kubelet_sums[percent] or 0
    taken = (assumed.pod for uid, assumed in record.assumed.items() if uid not in record.pods)
    requests = (pod.charged for pod in (*record.pods.values(), *taken))
    return offered - sum(
        request.effective_units for request in requests if request is not None and request.percent == percent
    )
