"""Units that a pod is charged against its quota; a percentage depends on the size of the card. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from allocator.records import Assignment
from allocator.request import PodRequest
from scheduler_plugin.cache.arrays import BoolArray, LongArray
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Member, Needs, PodRequirements
from scheduler_plugin.queue.capacity.reservations import QueueReservation

RowFilter = Callable[[PodRequirements], BoolArray]
"""Tells which rows come into question for a pod: bool[R]."""


class QuotaUsage:
    """Computes the units that pods are charged on the nodes of a cluster.

    A pod that asks for percent of cards is charged the units that it gets of the cards chosen for it; until
    they are chosen, what it would get of the largest card of a node. What its node accounts is not charged:
    after a kubelet has lost its checkpoint, that is every card that the pod may have.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def compute_units_by_row(self, requirements: PodRequirements) -> LongArray:
        """Compute the units that a pod is charged on each row: int64[R], whether it fits there or not."""
        nodes = self._state.nodes
        if not requirements.percent:
            return np.full(nodes.row_count, requirements.units, dtype=np.int64)
        largest, at = np.unique(nodes.size.max(axis=1, initial=0), return_inverse=True)
        units = np.array(
            [requirements.request.compute_units(size) for size in largest.tolist()], dtype=np.int64
        )
        return units[at]

    def list_members(self, needs: Needs, uid: str) -> Sequence[Member]:
        """List UID and requirements of every pod of a workload, the hardest to place first."""
        if not isinstance(needs, GangRequirements):
            return ((uid, needs),)
        if not needs.percent:
            return needs.members
        largest = int(self._state.nodes.size.max(initial=0))
        return sorted(needs.members, key=lambda member: member[1].request.make_hardness_key(largest))

    def compute_least_units(self, needs: Needs, rows: BoolArray | None = None) -> int:
        """Compute the smallest charge of a pod or a gang, over all nodes where it may go.

        Args:
            rows: bool[R], where it may go; None: any node whose cards could serve it.
        """
        if isinstance(needs, GangRequirements):
            return sum(self.compute_least_units(requirements) for _, requirements in needs.members)
        if not needs.percent:
            return needs.units
        if rows is None:
            rows = self._state.nodes.mask_offering(needs.request)
        units = self.compute_units_by_row(needs)[rows]
        return int(units.min()) if units.size else 0

    def mask_within(self, requirements: PodRequirements, fits: BoolArray, most: int | None) -> BoolArray:
        """Keep the rows where a pod is charged at most so many units: bool[R]; None: no limit."""
        return (
            fits
            if most is None or not requirements.percent
            else fits & (self.compute_units_by_row(requirements) <= most)
        )

    def make_filter(self, more: int) -> RowFilter:
        """Make a filter of rows: a pod's charge exceeds its smallest one by at most `more` units."""
        everywhere = np.ones(self._state.nodes.row_count, dtype=np.bool_)
        return lambda requirements: self.mask_within(
            requirements, everywhere, more + self.compute_least_units(requirements)
        )

    def sum_reserved(self, pods: Iterable[Member], reservations: Mapping[str, QueueReservation]) -> int:
        """Add up the units that pods are charged on the nodes of their reservations, by UID."""
        return sum(
            self.compute_units_on_node(requirements, reservations[uid].node) or 0
            for uid, requirements in pods
            if uid in reservations
        )

    def compute_units_on_node(
        self, requirements: PodRequirements, node: str, assigned: Assignment | None = None
    ) -> int | None:
        """Compute the units that a pod is charged on a node, by its cards if they are known.

        Returns:
            None if the pod asks for percent and the node does not publish its cards now.
        """
        nodes = self._state.nodes
        if not requirements.percent:
            return requirements.units
        row = nodes.rows.get(node)
        if row is None or not nodes.usable[row]:
            return None
        sizes = dict(zip(nodes.uuids[row], nodes.size[row].tolist(), strict=False))
        found = _count_card_units(requirements.request, assigned or {}, sizes)
        return requirements.request.compute_units(int(nodes.size[row].max())) if found is None else found

    def compute_pod_units(self, record: PodRecord, requirements: PodRequirements) -> int | None:
        """Compute the units that an admitted pod is charged; None while its cards are unknown."""
        if record.node:
            return self.compute_units_on_node(requirements, record.node, record.allocated or record.assigned)
        assumed = self._state.get_assumed(record.uid)
        if assumed is None:
            return None if requirements.percent else requirements.units
        return self.compute_units_on_node(requirements, assumed.node, assumed.assigned)


def _count_card_units(request: PodRequest, assigned: Assignment, sizes: dict[str, int]) -> int | None:
    """Add up the units of assigned cards; None if the sizes of those cards are unknown."""
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
