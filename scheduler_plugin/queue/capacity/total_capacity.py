"""Total capacity: pods that the cluster could have with nobody else there. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scheduler_plugin.cache.arrays import LongArray
from scheduler_plugin.cache.host_resources import list_host_resources
from scheduler_plugin.queue.capacity.requirements import PodRequirements
from scheduler_plugin.scheduling.fit_counts import count_most_pods

if TYPE_CHECKING:
    from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity


@dataclass(slots=True)
class _PodCounts:
    """Pods that each row could have, and which version of each row says so."""

    pods: LongArray
    made: LongArray
    facts: int


class TotalCapacity:
    """Counts the pods that could run at once if every other pod ended.

    Args:
        capacity: The cluster.
    """

    def __init__(self, capacity: "FreeCapacity") -> None:
        self._capacity = capacity
        self._known: dict[PodRequirements, _PodCounts] = {}

    def count_pods(self, requirements: PodRequirements) -> int:
        """Count the pods with such needs that the whole cluster could have at most; 0: none, ever."""
        return int(self._count_slots(requirements).sum())

    def count_missing(self, members: Iterable[PodRequirements]) -> int:
        """Count the pods of a gang for which there is no room beside the others, whoever else goes.

        Pods that need the same are counted together, others each by themselves. So a gang that lacks nothing
        may have no room all the same.
        """
        lacks = (count - self.count_pods(requirements) for requirements, count in Counter(members).items())
        return max(0, *lacks, 0)

    def forget_unused(self, used: set[PodRequirements]) -> None:
        """Drop what was remembered of needs that no waiting pod has any more."""
        for requirements in [requirements for requirements in self._known if requirements not in used]:
            del self._known[requirements]

    def _count_slots(self, requirements: PodRequirements) -> LongArray:
        nodes, free_capacity = self._capacity.state.nodes, self._capacity
        known = self._known.get(requirements)
        if known is None or len(known.made) != nodes.row_count or known.facts != free_capacity.facts_version:
            rows = nodes.row_count
            known = _PodCounts(
                np.zeros(rows, np.int64), np.full(rows, -1, np.int64), free_capacity.facts_version
            )
            self._known[requirements] = known
        stale = np.flatnonzero(known.made != nodes.version)
        if stale.size:
            most = count_most_pods(nodes, free_capacity.make_query(requirements), stale, emptied=True)
            for needed, capacity, _ in list_host_resources(nodes, requirements.host):
                if needed:
                    most = np.minimum(most, capacity[stale] // needed)
            known.pods[stale] = np.where(free_capacity.mask_allowed(requirements)[stale], most, 0)
            known.made[stale] = nodes.version[stale]
        return known.pods
