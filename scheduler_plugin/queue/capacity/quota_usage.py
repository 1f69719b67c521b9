"""Units that a pod counts for in its quota: for a share, by the size of its card. Pure."""

from collections.abc import Sequence

import numpy as np

from allocator.records import Assignment
from allocator.request import PodRequest
from scheduler_plugin.cache.arrays import BoolArray, LongArray
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements


class QuotaUsage:
    """Computes the units that pods count for on the nodes of a cluster.

    A pod that asks for percent of cards counts for as many units as it has of the cards that were chosen for
    it. Before they are, for what it would have of the largest card of a node.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def compute_units_by_row(self, requirements: PodRequirements) -> LongArray:
        """Units that a pod counts for on each row, int64[R], whether it fits there or not."""
        nodes = self._state.nodes
        if not requirements.percent:
            return np.full(nodes.row_count, requirements.units, dtype=np.int64)
        largest, at = np.unique(nodes.size.max(axis=1, initial=0), return_inverse=True)
        units = np.array([requirements.compute_units(size) for size in largest.tolist()], dtype=np.int64)
        return units[at]

    def list_members(self, needs: Needs, uid: str) -> Sequence[tuple[str, PodRequirements]]:
        """UID and needs of every pod of a workload, the hardest to place first."""
        if not isinstance(needs, GangRequirements):
            return ((uid, needs),)
        if not needs.percent:
            return needs.members
        largest = int(self._state.nodes.size.max(initial=0))
        return sorted(needs.members, key=lambda member: -member[1].compute_hardness(largest))

    def compute_least_units(self, needs: Needs, rows: BoolArray | None = None) -> int:
        """The fewest units that a pod or a gang counts for, wherever it goes.

        Args:
            needs: Needs of the pod or gang.
            rows: bool[R], where it may go; None: on any node whose cards could serve it.
        """
        if isinstance(needs, GangRequirements):
            return sum(self.compute_least_units(requirements) for _, requirements in needs.members)
        if not needs.percent:
            return needs.units
        if rows is None:
            rows = self._state.nodes.usable
        units = self.compute_units_by_row(needs)[rows]
        return int(units.min()) if units.size else 0

    def mask_within(self, requirements: PodRequirements, fits: BoolArray, most: int | None) -> BoolArray:
        """Keep the rows where a pod counts for no more than so many units: bool[R]; None: no limit."""
        return (
            fits
            if most is None or not requirements.percent
            else fits & (self.compute_units_by_row(requirements) <= most)
        )

    def compute_units_on_node(
        self, requirements: PodRequirements, node: str, assigned: Assignment | None = None
    ) -> int | None:
        """Units that a pod counts for on a node, with these cards where they are known.

        Returns:
            None where the node says nothing of its cards now and the pod asks for percent of them.
        """
        nodes = self._state.nodes
        if not requirements.percent:
            return requirements.units
        row = nodes.rows.get(node)
        if row is None or not nodes.usable[row]:
            return None
        sizes = dict(zip(nodes.uuids[row], nodes.size[row].tolist(), strict=False))
        found = _count_card_units(requirements.request, assigned or {}, sizes)
        return requirements.compute_units(int(nodes.size[row].max())) if found is None else found

    def compute_pod_units(self, record: PodRecord, requirements: PodRequirements) -> int | None:
        """Units that an admitted pod counts for; None while its cards are not known."""
        if record.node:
            return self.compute_units_on_node(requirements, record.node, record.allocated or record.assigned)
        assumed = self._state.get_assumed(record.uid)
        if assumed is None:
            return None if requirements.percent else requirements.units
        return self.compute_units_on_node(requirements, assumed.node, assumed.assigned)


def _count_card_units(request: PodRequest, assigned: Assignment, sizes: dict[str, int]) -> int | None:
    """Units of some cards, None where it is not known which cards they are."""
    units = 0
    for demand in request.demands:
        cards = [sizes.get(uuid) for uuid, _ in assigned.get(demand.containers[0], ())]
        if len(cards) != demand.cards:
            return None
        for size in cards:
            if size is None:
                return None
            units += demand.units_on(size)
    return units
