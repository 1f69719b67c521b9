"""The pending pods of a cluster, for policies whose weights depend on them."""

from typing import Final

import numpy as np

from allocator.errors import RequestError
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.policies.registry import PolicyRequest
from scheduler_plugin.scheduling.request import make_learning_request

COUNT_INTERVAL_S: Final = 1.0
"""Seconds between two counts of the pending pods."""

MAX_SHAPES: Final = 256
"""Most kinds of pods that are counted, those with most pods first: each kind is compared with every node."""


class PendingPods:
    """Counts the pods that wait, for the policies that implement `BacklogReader`."""

    def __init__(self, state: ClusterState, policies: ClusterPolicies) -> None:
        self._state = state
        self._policies = policies
        self._counted_at = float("-inf")

    def report_to_policies(self, now: float) -> None:
        """Report the waiting pods to the policies, unless that was done a moment ago."""
        readers = self._policies.backlog_readers
        if not readers or now < self._counted_at + COUNT_INTERVAL_S:
            return
        self._counted_at = now
        # Pods that ask alike were read alike: comparing requests by identity is enough, and fast.
        shapes: dict[tuple[object, ...], list[PodRecord]] = {}
        for pod in self._state.pods.values():
            if pod.is_waiting and not pod.error and self._state.get_assumed(pod.uid) is None:
                asked_for = (id(pod.request), pod.amounts)
                shapes.setdefault(asked_for, []).append(pod)
        most = sorted(shapes.values(), key=len, reverse=True)[:MAX_SHAPES]
        asked = []
        for pods in most:
            ask = self._make_policy_request(pods[0])
            if ask is not None:
                asked.append((ask, [pod.uid for pod in pods]))
        for reader in readers:
            reader.waiting(self._state.nodes, asked)

    def _make_policy_request(self, pod: PodRecord) -> PolicyRequest | None:
        """Make a pod's request; None if it names a policy that does not exist."""
        if pod.request is None:
            return PolicyRequest(pod.amounts, ())
        try:
            query = self._policies.make_request(self._state.nodes, pod.request, pod.amounts)
        except RequestError:
            return None
        return make_learning_request(self._state.nodes, query, np.arange(self._state.nodes.row_count))
