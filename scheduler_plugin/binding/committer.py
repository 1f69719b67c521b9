"""The decision of bind: one pod at a time, cards are chosen on the node's latest record and assumed.

kube-scheduler has already chosen the node, so there is no list to merge and nothing to score. All that
matters is whether the pod still fits. Choosing its cards answers that, even if the node has changed since
filter. Lists of nodes are committed by `batch_committer`, with the same `Committer`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from allocator.errors import RequestError
from allocator.place import Placement
from allocator.records import Assignment, dump_assigned
from scheduler_plugin.binding.pod_claims import BoundPodClaim, claim_of
from scheduler_plugin.cache.charges import AssumedPod
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import explain_rejections
from scheduler_plugin.scheduling.placing import POLICY_FAULTS, place_by_policy
from scheduler_plugin.scheduling.reasons import REQUEUED, FilterReason, format_event_text
from scheduler_plugin.scheduling.request import SchedulingRequest


@dataclass(frozen=True, slots=True)
class PendingBinding:
    """Everything that a Binding is made of.

    Attributes:
        assigned: Value of `gpupack.io/assigned`, None for no annotation.
        claim: Claim to write before the Binding if the node serves claims; else None.
        explain_stop: Says why no Binding must be sent for it any more; empty, as `str` gives, where it may.
    """

    pod: PodRecord
    node: str
    assigned: str | None
    assumed: AssumedPod | None
    claim: BoundPodClaim | None = None
    explain_stop: Callable[[], str] = str


class Committer:
    """Assumes cards for pods, one at a time and without waiting in between.

    Invariant: from `assume` to the Binding's answer the cards are counted in the state, so a filter that runs
    meanwhile sees them taken.
    """

    def __init__(self, state: ClusterState, policies: ClusterPolicies) -> None:
        self.state = state
        self.policies = policies

    def assume(
        self, namespace: str, name: str, uid: str, node: str, now: float, cards: Collection[str] = ()
    ) -> PendingBinding:
        """Check that a pod fits on a node now, and assume it there.

        Args:
            cards: UUIDs of the cards that the queue planned for it, preferred if they are free; empty: those
                that the pod's annotation names.

        Raises:
            CommitError: it cannot be bound there, in words.
        """
        pod = self._get_pod(namespace, name, uid)
        if pod.error:
            raise CommitError(f"pod {namespace}/{name}: {pod.error}")
        if pod.request is None:
            return PendingBinding(pod, node, None, None)
        self.state.expire_tombstones(now)
        row = self.state.nodes.rows.get(node)
        if row is None:
            raise CommitError(
                f"node {node} is not known to the gpupack scheduler; allowed: a node it watches"
            )
        try:
            query = self.policies.make_request(self.state.nodes, pod.request, pod.amounts, uid)
            with self.state.reservations.charged_against(self.state.nodes, uid, pod.priority):
                placement = self._place_pod(query, node, row, cards or pod.planned_uuids)
        except (RequestError, *POLICY_FAULTS) as error:
            raise CommitError(f"pod {namespace}/{name}: {error}") from error
        assigned = placement.name_cards(self.state.nodes.uuids[row])
        claim = self._make_claim(pod, node, assigned)
        text = None if assigned is None else dump_assigned(assigned)
        assumed = self.state.assume(uid, node, assigned, now)
        assumed.awaits_claim = claim is not None
        return PendingBinding(pod, node, text, assumed, claim)

    def _make_claim(self, pod: PodRecord, node: str, assigned: Assignment | None) -> BoundPodClaim | None:
        """Make the claim of a pod on a node that serves claims."""
        record = self.state.node_records[node]
        if not record.serves_claims:
            return None
        if assigned is None:
            raise CommitError(
                f"node {node} serves claims, and does not name its cards yet; it is tried again"
            )
        sizes = dict(zip(record.uuids, record.sizes, strict=True))
        return claim_of(pod, node, sizes, assigned, self.state.unit_mib)

    def _get_pod(self, namespace: str, name: str, uid: str) -> PodRecord:
        pod = self.state.pods.get(uid)
        what = f"pod {namespace}/{name} (UID {uid})"
        if pod is None:
            raise CommitError(f"{what} is not in the gpupack scheduler's cache yet; it is tried again")
        if (pod.namespace, pod.name) != (namespace, name):
            raise CommitError(f"{what} is {pod.full_name} in the gpupack scheduler's cache")
        if pod.node:
            raise CommitError(f"{what} is bound to node {pod.node} already")
        if pod.ended:
            raise CommitError(f"{what} has ended")
        if pod.is_requeued:
            raise CommitError(f"{what}: {REQUEUED}")
        assumed = self.state.get_assumed(uid)
        if assumed is not None:
            raise CommitError(
                f"{what} has a Binding to node {assumed.node} under way whose outcome is not known yet"
            )
        return pod

    def _place_pod(
        self, query: SchedulingRequest, node: str, row: int, preferred: Collection[str]
    ) -> Placement:
        """Choose the cards on the node's latest record."""
        policy = self.policies.get_policy(query.request)
        placement = place_by_policy(policy, self.state.nodes, row, query, preferred)
        if placement is None:
            reason = FilterReason.from_code(
                int(explain_rejections(self.state.nodes, query, np.array([row], dtype=np.intp))[0])
            )
            why = format_event_text(reason, query.request.demands, self.state.unit_mib, query.request.rules)
            raise CommitError(f"node {node} changed since the filter and the pod no longer fits: {why}")
        return placement
