"""Place one pod where the policies say: the step of every kind of run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from allocator.registry import Parameters
from scheduler_plugin.cache.arrays import FloatArray, RowArray
from scheduler_plugin.scheduling.pending_pods import COUNT_INTERVAL_S
from scheduler_plugin.scheduling.placing import compute_scores, score_nodes
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload, WorkloadPolicy
from scheduler_plugin.scheduling.policies.registry import (
    AttemptCounter,
    BacklogReader,
    Learner,
    NodePolicy,
    make_policy,
)
from scheduler_plugin.simulator.cluster import ChosenCards, SimulatedCluster, SimulatedPodKind

HELD: Final = "held back by the policy"


class PlacedPod(NamedTuple):
    """Place of a pod: a row, and its cards there."""

    row: int
    cards: ChosenCards

    @property
    def units(self) -> int:
        return sum(self.cards.units.values())


class Placer:
    """Places pods on a cluster."""

    def __init__(self, cluster: SimulatedCluster, policy: NodePolicy) -> None:
        self._cluster = cluster
        self._policy = policy
        self._counter = policy if isinstance(policy, AttemptCounter) else None
        self._learner = policy if isinstance(policy, Learner) else None
        self._reader = policy if isinstance(policy, BacklogReader) else None
        self._counted_s = float("-inf")

    def count_waiting(
        self, now: float, waiting: Callable[[], Mapping[SimulatedPodKind, Sequence[str]]]
    ) -> None:
        """Tell a policy that wants to know who waits, unless that was a moment ago."""
        if self._reader is None or now < self._counted_s + COUNT_INTERVAL_S:
            return
        self._counted_s = now
        pods = [(kind.request, uids) for kind, uids in waiting().items()]
        self._reader.waiting(self._cluster.arrays, pods)

    def place_pod(self, kind: SimulatedPodKind, uid: str) -> PlacedPod | str:
        """Place a pod; return the reason if that is not possible."""
        row = self.find_row(kind, uid)
        if isinstance(row, str):
            return row
        cards = self._cluster.choose_cards(kind, row, self._policy)
        self._cluster.add_pod(kind, row, cards)
        self.record_placed(kind, uid)
        return PlacedPod(row, cards)

    def find_row(self, kind: SimulatedPodKind, uid: str) -> int | str:
        """Find the row where a pod goes, without taking anything; return the reason if there is none."""
        cluster = self._cluster
        rows = cluster.filter_rows(kind)
        if not rows.size:
            self.record_unplaced(kind, uid)
            return cluster.explain_misfit(kind)
        scores = self._score_rows(kind, uid, rows)
        best = int(scores.argmin())
        is_held_back = not scores[best] < np.inf
        row = int(rows[best])
        if self._counter is not None:
            self._counter.record_attempt(cluster.arrays, uid, None if is_held_back else row)
        return HELD if is_held_back else row

    def record_unplaced(self, kind: SimulatedPodKind, uid: str) -> None:
        """Report a pod that fits nowhere to a policy that learns."""
        if self._learner is not None:
            arrays = self._cluster.arrays
            self._learner.pending(uid, arrays, kind.request, np.arange(arrays.row_count))

    def record_placed(self, kind: SimulatedPodKind, uid: str) -> None:
        if self._learner is not None:
            self._learner.pod_resolved(uid, kind.request)

    def record_gone(self, uid: str) -> None:
        if self._learner is not None:
            self._learner.pod_resolved(uid, None)

    def _score_rows(self, kind: SimulatedPodKind, uid: str, rows: RowArray) -> FloatArray:
        policy_request = kind.request if self._counter is None else replace(kind.request, pod=uid)
        if kind.is_plain or kind.query is None:
            return compute_scores(self._policy, self._cluster.arrays, policy_request, rows)
        return score_nodes(
            self._policy, self._cluster.arrays, replace(kind.query, policy_request=policy_request), rows
        )

    def remove_pod(self, kind: SimulatedPodKind, place: PlacedPod, uid: str) -> None:
        self._cluster.remove_pod(kind, place.row, place.cards)
        self.record_gone(uid)


def make_simulated_policy(name: str, parameters: Parameters, workload: TypicalWorkload | None) -> NodePolicy:
    """Build a node policy; one that knows workloads gets this one, None: it learns its own.

    Raises:
        PolicyError: unknown name or parameters.
    """
    policy = make_policy(name, parameters)
    if workload is None or parameters or not isinstance(policy, WorkloadPolicy):
        return policy
    return policy.with_workload(workload)


def takes_workload(name: str, parameters: Parameters) -> bool:
    """Tell whether a policy can be given a typical workload or left to learn it; its parameters fix that."""
    return not parameters and name in NODE_POLICIES and isinstance(NODE_POLICIES.made(name), WorkloadPolicy)
