"""Pods that ended a moment ago, which their nodes still count for a while. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from allocator.cards import CardAmounts, add_amounts, pair_amounts
from scheduler_plugin.cache.charges import NodeRecord
from scheduler_plugin.cache.pod_cards import (
    count_freed_compute,
    find_compute,
    published_pod_units,
    read_pod_cards,
)
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
        published: dict[str, Counter[int]] = {}
        for pod, _ in self._ended.values():
            record = self._state.node_records.get(pod.node)
            charge = {} if record is None else self._find_charge(record, pod)
            if record is None or pod.charged is None or not charge:
                continue
            compute = find_compute(record, pod, pod.charged, charge)
            if compute and pod.uid in record.holds:
                published.setdefault(pod.node, Counter()).update(compute)
                compute = {}
            add_amounts(sums.setdefault(pod.node, {}), pair_amounts(charge, compute))
        for node, ends in published.items():
            stays = read_pod_cards(self._state.nodes, self._state.node_records[node])
            freed = count_freed_compute(ends, stays.compute_held, stays.compute_limit)
            add_amounts(sums[node], pair_amounts({}, freed))
        return sums

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
