"""What filter answered a moment ago, so that prioritize need not score the same nodes again."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.policies.registry import NodePolicy

MOST_NODES: Final = 256
"""Nodes of an offer; prioritize scores longer lists itself, and 4 096 of all nodes would fill the memory."""

_OFFERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Offer:
    """One answer of filter.

    Attributes:
        policy: What ranked the nodes.
        epoch: Of the policy's weights then.
        versions: Of the records of the nodes returned, by their names, best first.
    """

    policy: NodePolicy
    epoch: int
    versions: Mapping[str, int]

    def holds(self, nodes: NodeArrays, names: Iterable[str]) -> bool:
        """Tell whether neither these nodes nor the weights have changed since."""
        rows = nodes.rows
        return self.epoch == self.policy.epoch and all(
            name in rows and self.versions.get(name) == nodes.version[rows[name]] for name in names
        )


class Offers:
    """The answers by pod UID.

    Args:
        limit: Pods that are remembered.
    """

    def __init__(self, limit: int = _OFFERS) -> None:
        self._limit = limit
        self._offers: OrderedDict[str, Offer] = OrderedDict()

    def put(self, uid: str, offer: Offer) -> None:
        """Remember an answer; it replaces the pod's earlier one."""
        self._offers[uid] = offer
        self._offers.move_to_end(uid)
        if len(self._offers) > self._limit:
            self._offers.popitem(last=False)

    def look(self, uid: str) -> Offer | None:
        """A pod's answer."""
        return self._offers.get(uid)

    def forget(self, uid: str) -> None:
        """Drop a pod's answer: it was bound, or is gone."""
        self._offers.pop(uid, None)
