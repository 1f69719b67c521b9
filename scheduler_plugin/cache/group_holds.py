"""Cards that are held for the pods of a PodGroup from filter to bind. Pure.

kube-scheduler asks filter for each pod of a group and assumes it in its own snapshot only, which counts a
node's units as one sum. The Bindings of all pods follow at once, in any order. So filter gives each pod one
node and its cards are held for it: without that, two pods pass on the same card and the group is bound in
part.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.charges import AssumedPod
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.pod_groups import GroupKey, PodGroups
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.reservations import Reservation, Reservations

HOLD_S: Final = 2.0
"""How long cards are held after the last call for the group."""

BINDING_HOLD_S: Final = 30.0
"""How long cards are held after the last call for the group while a Binding of it is under way."""


@dataclass(slots=True)
class _GroupCycle:
    """What kube-scheduler has asked for a group lately.

    Attributes:
        asked: Pods asked about in this pass over the group; there is one pass for each placement.
        refused: Those of them that found no node.
        has_failed: Too few of the group's pods can find a node in this pass.
        held: UID and node of each hold.
    """

    last_call_s: float = 0.0
    last_uid: str = ""
    last_rows: RowArray = field(default_factory=lambda: np.array([], dtype=np.intp))
    asked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    has_failed: bool = False
    held: set[tuple[str, str]] = field(default_factory=set)


class GroupHolds:
    """Keeps the cards of pods whose group is being placed.

    A pod may have a hold on one node for each placement that kube-scheduler tries, as for each zone; its
    Binding tells which of them counts. The life of a hold:

        (none) --filter returns the node--> HELD --bind--> (assumed, see `ClusterState`)
                                             |
                                             +--> (none)  its pod is asked about again, with this node
                                                          the group has failed in this placement
                                                          its pod is bound, has ended or is gone
                                                          HOLD_S after the group's last call, or
                                                          BINDING_HOLD_S while a Binding is under way

    Args:
        reservations: Holds are kept there as reservations that every other pod respects.
    """

    def __init__(
        self, groups: PodGroups[PodRecord], reservations: Reservations, assumed: Mapping[str, AssumedPod]
    ) -> None:
        self._groups = groups
        self._reservations = reservations
        self._assumed = assumed
        self._cycles: dict[GroupKey, _GroupCycle] = {}

    def begin_call(self, key: GroupKey, uid: str, nodes: NodeArrays, rows: RowArray, now: float) -> bool:
        """Note that filter is called for a pod, and end its holds on the nodes of this call.

        Args:
            rows: intp[m], the nodes of the call.

        Returns:
            False if the group has failed in this pass already, so that this pod must be refused too: fewer of
            its pods were known here than kube-scheduler knows.
        """
        cycle = self._cycles.setdefault(key, _GroupCycle())
        is_same_pod = uid == cycle.last_uid
        is_same_pass = is_same_pod or uid not in cycle.asked
        if not is_same_pass or not np.isin(rows, cycle.last_rows).any():
            cycle.asked, cycle.refused, cycle.has_failed = set(), set(), False
        elif is_same_pod:
            # The node that is nominated for it comes in a call of its own.
            cycle.refused.discard(uid)
            cycle.has_failed = False
        cycle.last_call_s, cycle.last_uid, cycle.last_rows = now, uid, rows
        cycle.asked.add(uid)
        self._release(cycle, nodes, rows, uid)
        return not cycle.has_failed

    def hold(self, key: GroupKey, reservation: Reservation) -> None:
        """Hold the cards of a node for a pod, after `begin_call`."""
        place = (reservation.uid, reservation.node)
        self._cycles[key].held.add(place)
        self._reservations.held[place] = reservation

    def record_refusal(self, key: GroupKey, uid: str, nodes: NodeArrays, rows: RowArray) -> None:
        """Note that no node will do for a pod; if its group has failed by that, end its holds there."""
        cycle = self._cycles[key]
        cycle.refused.add(uid)
        if self._can_start(key, cycle):
            return
        cycle.has_failed = True
        self._release(cycle, nodes, rows)

    def _can_start(self, key: GroupKey, cycle: _GroupCycle) -> bool:
        """Return True if enough pods of a group are bound or may find a node in this pass."""
        min_count = self._groups.get_min_count(key)
        if min_count <= 1:
            return True
        placed, waiting = self.split_members(key)
        # Pods that are asked about may not be known here yet.
        may_pass = waiting.union(cycle.asked, (uid for uid, _ in cycle.held)) - placed - cycle.refused
        return len(placed) + len(may_pass) >= min_count

    def is_bound_in_part(self, key: GroupKey) -> bool:
        """Return True if pods of a group are bound, and with those whose Bindings are under way too few."""
        placed, _ = self.split_members(key)
        members = self._groups.get_members(key)
        return len(placed) < self._groups.get_min_count(key) and any(members[uid].node for uid in placed)

    def split_members(self, key: GroupKey) -> tuple[set[str], set[str]]:
        """Split the pods of a group into those with a node, or assumed, and those that wait."""
        members = [pod for pod in self._groups.get_members(key).values() if not pod.ended]
        placed = {pod.uid for pod in members if pod.node or pod.uid in self._assumed}
        return placed, {pod.uid for pod in members if pod.is_waiting} - placed

    def list_held_nodes(self, key: GroupKey) -> list[str]:
        cycle = self._cycles.get(key)
        return sorted({node for _, node in cycle.held}) if cycle is not None else []

    def end_holds(self, key: GroupKey, uid: str) -> None:
        """End all holds of a pod: its cards are assumed, or it is bound, has ended or is gone."""
        cycle = self._cycles.get(key)
        if cycle is not None:
            self._drop(cycle, [place for place in cycle.held if place[0] == uid])

    def expire(self, now: float) -> None:
        """End the holds of groups that kube-scheduler has not asked about for long enough."""
        for key, cycle in list(self._cycles.items()):
            age_s = now - cycle.last_call_s
            if age_s >= HOLD_S and (age_s >= BINDING_HOLD_S or not self._is_binding(key, cycle)):
                self._drop(cycle, [*cycle.held])
                del self._cycles[key]

    def _is_binding(self, key: GroupKey, cycle: _GroupCycle) -> bool:
        """Return True if a Binding of a group is under way.

        kube-scheduler nominates a pod's node before it waits for something else that the Binding needs.
        """
        members = self._groups.get_members(key)
        return any(uid in self._assumed for uid in members) or any(
            uid in members and members[uid].nominated == node for uid, node in cycle.held
        )

    def _release(self, cycle: _GroupCycle, nodes: NodeArrays, rows: RowArray, uid: str = "") -> None:
        self._drop(
            cycle,
            [
                place
                for place in cycle.held
                if (not uid or place[0] == uid) and bool((rows == nodes.rows.get(place[1], -1)).any())
            ],
        )

    def _drop(self, cycle: _GroupCycle, places: list[tuple[str, str]]) -> None:
        for place in places:
            cycle.held.discard(place)
            self._reservations.held.pop(place, None)
