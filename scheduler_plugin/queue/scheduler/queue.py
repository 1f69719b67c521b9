"""The queue: pods, nodes and namespaces come in, admissions and requeues come out. Pure.

None of this state is stored. A pod with the gate waits; a pod that belongs to a queue and no longer has the
gate was admitted; a pod with a node occupies its slot. So a restart finds everything again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from kubeapi.objects import Pod
from kubeapi.selectors import NodeTraits
from scheduler_plugin.cache.charges import AssumedPod, ChargeRules
from scheduler_plugin.cache.pod_groups import PodGroups
from scheduler_plugin.cache.pods import PodRecord, read_pod
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.batch_pods import BatchPods
from scheduler_plugin.queue.cache.claimed_units import ClaimedUnits
from scheduler_plugin.queue.cache.ended_pods import EndedPods
from scheduler_plugin.queue.cache.job_stages import JobStages
from scheduler_plugin.queue.cache.membership import QueueMembership
from scheduler_plugin.queue.cache.pods import PodQueueInfo, read_queue_info
from scheduler_plugin.queue.cache.queue_clock import QueueClock
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod, Requeue, make_gang_uid
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.cache.requirement_pool import RequirementPool
from scheduler_plugin.queue.cache.slots import ClusterSlots
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.scheduler.admission import AdmissionScheduler, AdmittedWorkload
from scheduler_plugin.queue.scheduler.equivalence_backoff import EquivalenceBackoff, make_pod_template
from scheduler_plugin.queue.scheduler.gangs import Gangs
from scheduler_plugin.queue.scheduler.pod_charges import PodCharges
from scheduler_plugin.queue.scheduler.refusals import PodRefusals
from scheduler_plugin.queue.scheduler.requeue import RequeueFinder
from scheduler_plugin.queue.scheduler.reservation_delay import ReservationDelay
from scheduler_plugin.queue.scheduler.reservation_manager import ReservationManager
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies

FORGOTTEN_FROM: Final = 256
"""Sets of requirements that stay cached in any case: pods that ask alike come again."""


class QueueChargeRules(ChargeRules):
    """The accounting of a process that admits pods and leaves their Bindings to others."""

    def is_binding_stale(self, assumed: AssumedPod, pod: PodRecord) -> bool:  # noqa: ARG002
        return False


class Queue:
    """The state of the queue, and all of its decisions.

    Args:
        state: The cluster; made with `QueueChargeRules`, and given every pod and node before the queue is.
        wall: See `QueueClock`.

    Attributes:
        job_stages: The stages of all jobs; whoever watches Jobs writes them here.
        coscheduling_groups: PodGroups of the coscheduling plugin; whoever watches them writes them here, and
            applies their pods again.
        claimed: Units of claims; the watch of claims reports changes to it after the state has them.
        seen_bound: When a pod that was admitted was last seen bound, seconds.
    """

    def __init__(
        self,
        config: QueueConfig,
        state: ClusterState,
        policies: ClusterPolicies,
        wall: float | None = None,
        coscheduling_groups: PodGroups[Pod] | None = None,
    ) -> None:
        self.config = config
        self.state = state
        if coscheduling_groups is None:
            coscheduling_groups = PodGroups(keeps_deleted=True)
        self.coscheduling_groups = coscheduling_groups
        self.queues = Queues(config)
        self.capacity = FreeCapacity(state, policies)
        self.slots = ClusterSlots(config.slots)
        self.admission = AdmissionScheduler(config, self.queues, self.capacity, self.slots)
        self.quota_usage = self.admission.quota_usage
        self.queued_pods: dict[str, QueuedPod] = {}
        self.gangs = Gangs(self.queued_pods, self.queues, state.pod_groups)
        self.job_stages = JobStages(self.queues)
        self.ended_pods = EndedPods(state)
        self.seen_bound = float("-inf")
        self._membership = QueueMembership(config)
        self._outside: dict[str, tuple[Pod, float]] = {}
        self.charges = PodCharges(self.queued_pods, self.admission, self._membership)
        self.claimed = ClaimedUnits(state, self.queues, self._membership)
        self.equivalence_backoff: EquivalenceBackoff[QueuedPod] = EquivalenceBackoff()
        self._requeue_finder = RequeueFinder(
            self.queued_pods, self.queues, self.gangs, self._record_unbindable
        )
        self._clock = QueueClock(wall)
        self._reservation_manager = ReservationManager(
            self.admission, ReservationDelay(self.queued_pods, self.gangs)
        )
        self._requirement_pool = RequirementPool()
        self.batch = BatchPods()
        self.refusals = PodRefusals(self._membership, self.batch, self.admission)

    # What comes in.

    def configure(self, config: QueueConfig) -> None:
        """Apply another configuration; every node and pod is processed again."""
        self.admission.configure(config)
        self.config = config
        self.queues.configure(config)
        self._membership.configure(config)
        self.job_stages.configure()
        self.claimed.update_all()
        self._find_queues_again()

    def set_node(self, name: str, facts: NodeTraits | None) -> None:
        """Set the facts of a node, None once it is deleted; call it after the state has the change."""
        if facts is not None or name in self.capacity.facts:
            self.capacity.set_facts(name, facts)
            self.admission.set_node(name, facts)
            self.claimed.update_node(name)
            self.charges.displace_pods(name)

    def set_batch_spec(self, uid: str, spec: Mapping[str, Any]) -> None:
        self.batch.set_spec(uid, spec)
        pod = self.queued_pods.get(uid)
        if pod is not None:
            self._place_in_queue(pod)

    def set_namespaces(self, labels: Mapping[str, Mapping[str, str] | None]) -> None:
        """Set the labels of namespaces by their names, None once one is deleted; others stay as they are."""
        changed = {name for name, each in labels.items() if self._membership.set_namespace(name, each)}
        for name in sorted(changed):
            self.claimed.update_namespace(name)
        if changed:
            self._find_queues_again(changed)

    def apply_pod(self, pod: Pod, now: float, *, live: bool = False) -> None:
        """Apply a pod's newest version; call it after the state has that.

        Args:
            live: The pod was created after those seen before, see `QueueClock`.
        """
        uid = pod.metadata.uid
        queued_pod = self.queued_pods.get(uid)
        record = self.state.pods.get(uid) or read_pod(pod, self.state.resource)
        queue_info = read_queue_info(pod, self.coscheduling_groups)
        queue = self._membership.find_pod_queue(queued_pod, record.namespace, queue_info)
        queue_info = replace(queue_info, queue="" if record.is_placeholder else queue)
        self.claimed.set_pod(uid, queue_info.label if pod.spec.resource_claims else "")
        has_cards = record.asks_for_cards
        concerns = queue_info.gated or (queue_info.queue and has_cards)
        self._outside.pop(uid, None)
        if not concerns or record.ended:
            if has_cards and not record.ended:
                self._outside[uid] = (pod, now)
            succeeded = pod.status.phase == "Succeeded"
            self._forget_pod(uid, now, succeeded=succeeded)
            self.gangs.set_outside(uid, None if record.ended else record.scheduling_group)
            if succeeded and has_cards and queue_info.queue and queue_info.gang:
                gang = make_gang_uid(record.namespace, queue_info.gang)
                self.gangs.record_success(uid, gang, queue_info.owner)
            if record.ended:
                self.job_stages.end_pod(record, queue_info, succeeded=succeeded)
            else:
                self.job_stages.forget_pod(uid)
            return
        requirements, fault = self._requirement_pool.get_requirements(record, queue_info, pod)
        phase = Phase.BOUND if record.node else Phase.GATED if queue_info.gated else Phase.ADMITTED
        deleted_at = self._find_deletion(queued_pod, record, queue_info, now)
        if queued_pod is None:
            since = self._clock.get_wait_start_wall(queue_info.created, now, live=live)
            began = now if live else self._clock.to_monotonic(queue_info.created, now)
            ran = self._clock.to_monotonic(max(record.started_at, queue_info.created), now)
            queued_pod = QueuedPod(
                record, queue_info, requirements, fault, phase, since, began, admitted_at=now, bound_at=ran
            )
            self.queued_pods[uid] = queued_pod
            if phase is Phase.ADMITTED:
                self.charges.unplaced.add(uid)
        else:
            phase = self._find_phase(queued_pod, queue_info, phase, now)
        if queue_info.has_gate or not queued_pod.template:
            # In batch mode an admission changes what a pod says of nodes.
            self.equivalence_backoff.set_template(
                queued_pod, make_pod_template(record, queue_info, requirements)
            )
        self.gangs.move_pod(queued_pod, queue_info.gang)
        self.gangs.set_outside(uid, None)
        queued_pod.deleted_at = deleted_at
        queued_pod.update(record, queue_info, requirements, fault, phase)
        self._membership.remember_queue(queued_pod)
        self._place_in_queue(queued_pod)
        if queued_pod.is_unschedulable() and not queued_pod.capacity_freed:
            (self.gangs if queued_pod.gang else self._requeue_finder).record_unschedulable(queued_pod, now)
        if phase is Phase.BOUND:
            self.charges.displace_pods(record.node)

    def _find_deletion(
        self, known: QueuedPod | None, record: PodRecord, queue_info: PodQueueInfo, now: float
    ) -> float | None:
        """Find when a pod was deleted, see `QueuedPod.deleted_at`."""
        if record.grace_ends_at is None:
            return None
        if known is None:
            return self._clock.to_monotonic(record.grace_ends_at - queue_info.grace_s, now)
        return now if known.deleted_at is None else known.deleted_at

    def _find_phase(self, pod: QueuedPod, queue_info: PodQueueInfo, phase: Phase, now: float) -> Phase:
        if phase is Phase.GATED:
            if pod.waits_again(queue_info):
                self.charges.end(pod, now)
                pod.capacity_freed = False
                return phase
            # Perhaps we admitted it a moment ago, and the API server does not show it; see `find_requeues`.
            return pod.phase if pod.phase is Phase.ADMITTED else phase
        self.refusals.forget(pod.uid)
        pod.ungated = True
        if phase is Phase.ADMITTED and pod.queue_info.gated:
            pod.admitted_at = now
            if pod.phase is Phase.GATED:
                # Another process admitted it, or this one and was told that it had not.
                self.charges.unplaced.add(pod.uid)
        elif phase is Phase.BOUND and pod.phase is not Phase.BOUND:
            pod.bound_at = self.seen_bound = now
            pod.requeue_asked = False
            for other in self.equivalence_backoff.record_binding(pod):
                self._place_in_queue(other)
        return phase

    def delete_pod(self, uid: str, now: float) -> None:
        self._forget_pod(uid, now)
        self.gangs.set_outside(uid, None)
        self.gangs.forget_success(uid)
        self.job_stages.forget_pod(uid)
        self._outside.pop(uid, None)
        self.claimed.set_pod(uid, "")

    def record_refused_admission(
        self, uid: str, now: float, why: str = "", rejected: Collection[str] = ()
    ) -> None:
        """Record a refused admission: after a pause the pod waits again, in its old place.

        Args:
            why: The API server's message; empty if the pod had changed.
            rejected: Nodes that the committer of batch mode did not bind it to. As long as other nodes are
                left, the pauses do not grow.
        """
        pod = self.queued_pods.get(uid)
        if pod is not None and pod.phase is Phase.ADMITTED:
            self.charges.end(pod, now)
            pod.phase, pod.capacity_freed = Phase.GATED, False
            self._membership.update_queue(pod)
            self.refusals.record(pod, now, why, rejected)
            self._place_in_queue(pod)

    def record_refused_removal(self, uid: str) -> None:
        pod = self.queued_pods.get(uid)
        if pod is not None and pod.gang:
            self.gangs.record_refused_removal(pod)

    def begin_term(self, now: float) -> None:
        """Rebuild the state of gangs, because another process may have led meanwhile."""
        self.gangs.find_again(now)

    @property
    def known_uids(self) -> Iterator[str]:
        """Give the UIDs of all pods that the queue remembers anything about."""
        others = {
            *self.job_stages.pod_uids,
            *self.claimed.pod_uids,
            *self.gangs.succeeded_uids,
            *self.gangs.outside_uids,
            *self._outside,
        }
        return chain(self.queued_pods, (uid for uid in others if uid not in self.queued_pods))

    # What comes out.

    def admit_workloads(self, now: float) -> Iterator[AdmittedWorkload]:
        """Admit every workload that can be admitted now; each is charged before it is yielded.

        Admitted pods that are not assumed anywhere are placed first: those admitted before this process
        started, and those whose room others have taken. Then come the remaining pods of partly admitted
        gangs.
        """
        self.state.expire_tombstones(now)
        for uid in self.refusals.pop_due(now):
            self._place_in_queue(self.queued_pods[uid])
        for pod in self.equivalence_backoff.pop_due(now):
            self._place_in_queue(pod)
        self.gangs.retry_due(now)
        self.charges.complete(now)
        for admitted in self.admission.admit_workloads(now, first=self.gangs.list_half_admitted()):
            for member in admitted.members:
                pod = self.queued_pods[member.uid]
                pod.admit(admitted.queue, now)
                # A gang with data waits as local; of its pods those without data are free.
                self.slots.occupy(member.uid, member.node, pod.kind)
                self.equivalence_backoff.record_admission(pod, now)
            self.gangs.record_admission(admitted.workload.uid, now)
            yield admitted

    def list_planned_cards(self, uid: str) -> list[str]:
        """List the UUIDs of the cards that an admitted pod is to have, sorted; none where none are named."""
        pod = self.queued_pods.get(uid)
        if pod is not None and not self.may_name_node(pod):
            return []
        assumed = self.state.get_assumed(uid)
        assigned = assumed.assigned if assumed is not None else None
        return sorted({uuid for uuid, _ in chain.from_iterable((assigned or {}).values())})

    def is_outdated(self, pod: QueuedPod, node: str) -> bool:
        """Return True if an admission must not be written any more.

        The pod names another queue by now, or the cards were taken that it was to have on the node that the
        admission names; empty: it names none.
        """
        assumed = self.state.get_assumed(pod.uid)
        is_displaced = bool(node) and (assumed is None or assumed.node != node)
        return is_displaced or self._membership.has_left_queue(pod)

    def may_name_node(self, pod: QueuedPod) -> bool:
        """Return False for a pod that kube-scheduler places by the topology constraints of its PodGroup."""
        return not self.state.pod_groups.has_topology(pod.record.scheduling_group)

    def find_requeues(self, now: float) -> list[Requeue]:
        again = [pod for pod in self.queued_pods.values() if pod.is_gated_again(now)]
        for pod in again:
            self.record_refused_admission(pod.uid, now)
        gated = [Requeue(each, "its scheduling gate is there again") for each in again]
        return gated + self._requeue_finder.find_requeues(self.config, now)

    def update_reservations(self, now: float) -> list[tuple[QueuedPod, str]]:
        """Reserve cards for pods and gangs that have waited too long; return the pods and their nodes."""
        return [
            (self.queued_pods[uid], node) for uid, node in self._reservation_manager.update_reservations(now)
        ]

    def forget_unused(self) -> None:
        """Drop cached data of requirements that no pod has any more, once most of the cache is such."""
        if len(self._requirement_pool) > 2 * len(self.queued_pods) + FORGOTTEN_FROM:
            used = {pod.requirements for pod in self.queued_pods.values() if pod.requirements is not None}
            self._requirement_pool.forget_unused(used)
            self.capacity.forget_unused(used)

    # Pods.

    def _find_queues_again(self, namespaces: Collection[str] | None = None) -> None:
        """Determine the queues of all pods again, or of those of some namespaces."""
        for pod in list(self.queued_pods.values()):
            if namespaces is None or pod.record.namespace in namespaces:
                self._membership.update_queue(pod)
                self._place_in_queue(pod)
        for outside, seen in list(self._outside.values()):
            if namespaces is None or outside.metadata.namespace in namespaces:
                self.apply_pod(outside, seen)

    def _place_in_queue(self, pod: QueuedPod) -> None:
        """Put a pod where its phase belongs: waiting in a queue, charged to quota and slot, or neither."""
        self.job_stages.update_pod(pod)
        ready = (
            pod.phase is Phase.GATED
            and self.refusals.can_be_queued(pod)
            and not self.equivalence_backoff.is_held_back(pod)
        )
        self.queues.set_waiting(pod, pod.queue_info.queue, pod.make_workload() if ready else None)
        if pod.gang:
            self.gangs.update_pod(pod, ready=ready)
        if pod.phase is not Phase.GATED:
            self.charges.charge_pod(pod)

    def _record_unbindable(self, pod: QueuedPod, now: float) -> None:
        """Give the capacity of an admitted pod to others, and hold back equivalent pods."""
        self.charges.free_capacity(pod, now)
        if self.equivalence_backoff.record_refusal(pod, now):
            for other in self.queued_pods.values():
                if other.phase is Phase.GATED and other.template == pod.template:
                    self._place_in_queue(other)

    def _forget_pod(self, uid: str, now: float, *, succeeded: bool = False) -> None:
        self.charges.unplaced.discard(uid)
        self.refusals.forget(uid)
        self._requeue_finder.forget_pod(uid)
        pod = self.queued_pods.pop(uid, None)
        if pod is None:
            return
        if pod.phase is Phase.BOUND:
            self.ended_pods.record_end(pod.record, now)
        self.queues.set_waiting(pod, "", None)
        self.charges.end(pod, now)
        self.equivalence_backoff.remove(pod)
        self.gangs.remove_pod(pod, succeeded=succeeded)
        self.queues.forget_if_unused(pod.queue_info.queue)
