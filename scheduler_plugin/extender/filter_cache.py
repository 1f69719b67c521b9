"""Recent results of filter, so that prioritize need not score the same nodes again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.policies.registry import NodePolicy

MAX_NODES: Final = 256
"""Nodes of an offer; prioritize scores longer lists itself, and 4 096 of all nodes would fill the memory."""

MAX_RESULTS: Final = 4096


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The best nodes of one answer of filter.

    Attributes:
        versions: Versions of the records of the nodes returned, by name, best first.
    """

    policy: NodePolicy
    epoch: int
    versions: Mapping[str, int]

    @classmethod
    def from_rows(cls, policy: NodePolicy, nodes: NodeArrays, rows: RowArray) -> Self:
        names = [nodes.names[row] for row in rows.tolist()]
        versions = dict(zip(names, nodes.version[rows].tolist(), strict=True))
        return cls(policy, policy.epoch, versions)

    def is_current(self, nodes: NodeArrays, names: Iterable[str]) -> bool:
        """Return True if neither these nodes nor the policy's weights have changed since."""
        rows = nodes.rows
        return self.epoch == self.policy.epoch and all(
            name in rows and self.versions.get(name) == nodes.version[rows[name]] for name in names
        )
