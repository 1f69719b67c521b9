"""Recent results of filter, so that prioritize need not score the same nodes again."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.policies.registry import NodePolicy

MAX_NODES: Final = 256
"""Nodes of an offer; prioritize scores longer lists itself, and 4 096 of all nodes would fill the memory."""

_MAX_RESULTS: Final = 4096


@dataclass(frozen=True, slots=True)
class FilterResult:
    """FilterResult is the best nodes of one answer of filter.

    Attributes:
        policy: What ranked the nodes.
        epoch: Epoch of the policy's weights then.
        versions: Versions of the records of the nodes returned, by name, best first.
    """

    policy: NodePolicy
    epoch: int
    versions: Mapping[str, int]

    def is_current(self, nodes: NodeArrays, names: Iterable[str]) -> bool:
        """Return True if neither these nodes nor the weights have changed since."""
        rows = nodes.rows
        return self.epoch == self.policy.epoch and all(
            name in rows and self.versions.get(name) == nodes.version[rows[name]] for name in names
        )


class FilterResultCache:
    """The answers by pod UID.

    Args:
        limit: Pods that are remembered.
    """

    def __init__(self, limit: int = _MAX_RESULTS) -> None:
        self._limit = limit
        self._offers: OrderedDict[str, FilterResult] = OrderedDict()

    def add(self, uid: str, offer: FilterResult) -> None:
        """Remember a result, in place of the pod's earlier one."""
        self._offers[uid] = offer
        self._offers.move_to_end(uid)
        if len(self._offers) > self._limit:
            self._offers.popitem(last=False)

    def get(self, uid: str) -> FilterResult | None:
        return self._offers.get(uid)

    def remove(self, uid: str) -> None:
        """Remove the result of a pod that was bound, or is gone."""
        self._offers.pop(uid, None)
