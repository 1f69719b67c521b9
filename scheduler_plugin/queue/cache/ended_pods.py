"""Pods that ended a moment ago, which their nodes still count for a while. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from allocator.cards import CardAmounts, add_amounts, pair_amounts
from scheduler_plugin.cache.charges import NodeRecord
from scheduler_plugin.cache.pod_cards import find_compute, published_pod_units, read_pod_cards
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState

STILL_COUNTED_S: Final = 15.0
"""A node says within this time that the cards of a pod that has ended are free."""


class EndedPods:
    """Remembers the bound pods that ended, for `STILL_COUNTED_S`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._ended: dict[str, tuple[PodRecord, float]] = {}

    def record_end(self, pod: PodRecord, now: float) -> None:
        self._forget_old(now)
        self._ended.pop(pod.uid, None)
        self._ended[pod.uid] = (pod, now)

    def sum_charges(self, now: float) -> dict[str, dict[int, CardAmounts]]:
        """Add up what the nodes have not yet reported as free.

        Returns:
            Units and percent of compute by node and card position.
        """
        self._forget_old(now)
        sums: dict[str, dict[int, CardAmounts]] = {}
        left: dict[str, Counter[int]] = {}
        for pod, _ in self._ended.values():
            record = self._state.node_records.get(pod.node)
            charge = {} if record is None else self._find_charge(record, pod)
            if record is None or pod.charged is None or not charge:
                continue
            compute = find_compute(record, pod, pod.charged, charge)
            if compute and pod.uid in record.holds:
                left_here = left.get(pod.node)
                if left_here is None:
                    left_here = left[pod.node] = self._find_left(record)
                compute = {card: min(percent, left_here[card]) for card, percent in compute.items()}
                left_here.subtract(compute)
            add_amounts(sums.setdefault(pod.node, {}), pair_amounts(charge, compute))
        return sums

    def _find_left(self, record: NodeRecord) -> Counter[int]:
        """Find the percent that the limit leaves of cards beside living pods: the words stop at it."""
        limit = int(self._state.nodes.compute_limit[record.row])
        held = read_pod_cards(record, (), limit).compute_held
        return Counter({card: max(0, limit - held.get(card, 0)) for card in range(len(record.sizes))})

    def _find_charge(self, record: NodeRecord, pod: PodRecord) -> Mapping[int, int]:
        """Find the units that a pod is still charged with; empty if none, or if its cards are unknown."""
        if self._state.rules.is_confirmed(record, pod.uid):
            return published_pod_units(record, pod)
        tombstone = record.tombstones.get(pod.uid)
        charged = (
            None if tombstone is None else self._state.rules.charge_assigned_cards(record, tombstone.charge)
        )
        return charged or {}

    def _forget_old(self, now: float) -> None:
        while self._ended:
            uid = next(iter(self._ended))
            if now - self._ended[uid][1] < STILL_COUNTED_S:
                return
            del self._ended[uid]
