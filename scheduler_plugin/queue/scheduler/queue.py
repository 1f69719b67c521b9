"""The queue: pods, nodes and namespaces come in, releases and what must be taken back come out. Pure.

Nothing here is written anywhere: a pod that wears the gate waits, one that names a queue and wears it no more
was released, one with a node sits in its slot. So everything is found again after a restart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from scheduler_plugin.cache.charges import AssumedPod, ChargeRules
from scheduler_plugin.cache.pods import PodRecord, read_pod
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.batch_pods import BatchPods
from scheduler_plugin.queue.cache.ended_pods import EndedPods
from scheduler_plugin.queue.cache.job_stages import JobStages
from scheduler_plugin.queue.cache.pods import PodQueueInfo, QueuePod, read_queue_info
from scheduler_plugin.queue.cache.queue_clock import QueueClock
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod, Requeue
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.cache.refusals import admits_namespace, explain_refusal, has_no_request
from scheduler_plugin.queue.cache.requirement_pool import RequirementPool
from scheduler_plugin.queue.cache.slots import ClusterSlots
from scheduler_plugin.queue.cache.waiting import QueuedWorkload
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity, NodeFacts
from scheduler_plugin.queue.capacity.locality import Locality
from scheduler_plugin.queue.capacity.requirements import Needs
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.scheduler.admission import AdmissionScheduler, AdmittedWorkload
from scheduler_plugin.queue.scheduler.backoff import KeyedBackoff
from scheduler_plugin.queue.scheduler.equivalence_backoff import EquivalenceBackoff, make_pod_template
from scheduler_plugin.queue.scheduler.gangs import Gangs
from scheduler_plugin.queue.scheduler.lost_reservations import find_displaced_on_node
from scheduler_plugin.queue.scheduler.requeue import RequeueFinder
from scheduler_plugin.queue.scheduler.reservation_delay import ReservationDelay
from scheduler_plugin.queue.scheduler.reservation_manager import ReservationManager
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies

REFUSED_S: Final = (1.0, 300.0)
"""The shortest and the longest pause before a release that the API server has refused is tried again."""

FORGOTTEN_FROM: Final = 256
"""Needs that are remembered in any case: pods that ask alike come again."""


class QueueChargeRules(ChargeRules):
    """The accounting of a process that releases pods and leaves it to others to bind them."""

    def is_binding_stale(self, take: AssumedPod, pod: PodRecord) -> bool:  # noqa: ARG002
        """What was released keeps its room whatever changes about the pod; the queue itself ends that."""
        return False


class Queue:
    """Everything that the queue knows.

    Args:
        config: The configuration.
        state: The cluster; made with `QueueChargeRules`, and given every pod and node before the queue is.
        policies: Of the cluster.
        wall: Seconds since 1970 when its clock was at 0, see `QueueClock`.

    Attributes:
        unplaced: UIDs of released pods for which no room is taken; they get some before others are released.
        job_stages: The stages of all jobs; whoever watches Jobs writes them here.
        refusals: Releases that the API server has refused, by UID, and their pauses.
        ended_pods: Pods that have ended a moment ago.
        batch: Pods that batch mode binds, and why it does not.
        seen_bound: When a pod that was released was last seen bound, seconds.
    """

    def __init__(
        self, config: QueueConfig, state: ClusterState, policies: ClusterPolicies, wall: float | None = None
    ) -> None:
        self.config = config
        self.state = state
        self.queues = Queues(config)
        self.capacity = FreeCapacity(state, policies)
        self.slots = ClusterSlots(config.slots)
        self.locality = Locality(config.locality)
        self.admission = AdmissionScheduler(config, self.queues, self.capacity, self.slots, self.locality)
        self.quota_usage = self.admission.quota_usage
        self.queued_pods: dict[str, QueuedPod] = {}
        self.gangs = Gangs(self.queued_pods, self.queues)
        self.job_stages = JobStages(self.queues)
        self.ended_pods = EndedPods(state)
        self.seen_bound = float("-inf")
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self.unplaced: set[str] = set()
        self.equivalence_backoff: EquivalenceBackoff[QueuedPod] = EquivalenceBackoff()
        self._requeue_finder = RequeueFinder(
            self.queued_pods, self.queues, self.gangs, self._record_unbindable
        )
        self._estimated: set[str] = set()
        self._clock = QueueClock(wall)
        self._reservation_manager = ReservationManager(
            self.admission, ReservationDelay(self.queued_pods, self.gangs)
        )
        self._requirement_pool = RequirementPool()
        self.batch = BatchPods()
        self.refusals: KeyedBackoff[str] = KeyedBackoff(*REFUSED_S)

    # What comes in.

    def configure(self, config: QueueConfig) -> None:
        """Take another configuration; every node and pod is looked at again."""
        self.admission.configure(config)
        self.config = config
        self.queues.configure(config)
        self.slots.form = config.slots
        self.locality = self.admission.locality = Locality(config.locality)
        for name, facts in self.capacity.facts.items():
            self._count_node(name, facts)
        self.job_stages.configure()
        for entry in list(self.queued_pods.values()):
            self._place_in_queue(entry)

    def set_node(self, name: str, facts: NodeFacts | None) -> None:
        """Take what is known of a node, None when it is gone; after the state has it."""
        if facts is not None or name in self.capacity.facts:
            self.capacity.set_facts(name, facts)
            self._count_node(name, facts)
            self._place_displaced(name)

    def set_batch_spec(self, uid: str, spec: Mapping[str, Any]) -> None:
        """Take the whole spec of a pod that batch mode is to bind."""
        self.batch.set_spec(uid, spec)
        entry = self.queued_pods.get(uid)
        if entry is not None:
            self._place_in_queue(entry)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Take a namespace's labels, None when it is gone."""
        if self._namespaces.get(name) == labels:
            return
        self._namespaces.pop(name, None)
        if labels is not None:
            self._namespaces[name] = dict(labels)
        for entry in list(self.queued_pods.values()):
            if entry.record.namespace == name:
                self._place_in_queue(entry)

    def apply_pod(self, pod: QueuePod, now: float, *, live: bool = False) -> None:
        """Take a pod's newest version; after the state has it.

        Args:
            pod: The pod.
            now: Seconds.
            live: It was created after those that came before it, see `QueueClock`.
        """
        uid = pod.metadata.uid
        entry = self.queued_pods.get(uid)
        record, ticket = self.state.pods.get(uid) or read_pod(pod, self.state.resource), read_queue_info(pod)
        if entry is not None and entry.charged_queue in self.config.queues and not ticket.gated:
            # What was released stays with its queue until it ends, whatever its label says then.
            ticket = replace(ticket, queue=entry.charged_queue)
        concerns = ticket.gated or (ticket.queue and (record.charged is not None or record.error))
        if not concerns or record.ended:
            self._forget_pod(uid, now)
            if record.ended:
                self.job_stages.end_pod(record, ticket, succeeded=pod.status.phase == "Succeeded")
            else:
                self.job_stages.forget_pod(uid)
            return
        wants, fault = self._requirement_pool.get_requirements(record, ticket, pod)
        phase = Phase.BOUND if record.node else Phase.GATED if ticket.gated else Phase.ADMITTED
        if entry is None:
            since = self._clock.get_wait_start_wall(ticket.created, now, live=live)
            began = self._clock.get_wait_start_monotonic(ticket.created, now, live=live)
            ran = self._clock.get_run_start_monotonic(record.started_at, ticket.created, now)
            entry = QueuedPod(
                record, ticket, wants, fault, phase, since, began, admitted_at=now, bound_at=ran
            )
            self.queued_pods[uid] = entry
            if phase is Phase.ADMITTED:
                self.unplaced.add(uid)
        else:
            phase = self._find_phase(entry, ticket, phase, now)
        if ticket.has_gate or not entry.template:
            # In batch mode a release changes what a pod says of nodes.
            self.equivalence_backoff.set_template(entry, make_pod_template(record, ticket, wants))
        self.gangs.move_pod(entry, ticket.gang)
        entry.update(record, ticket, wants, fault, phase)
        self._place_in_queue(entry)
        if entry.is_unschedulable() and not entry.capacity_freed:
            (self.gangs if entry.gang else self._requeue_finder).record_unschedulable(entry, now)
        if phase is Phase.BOUND:
            self._place_displaced(record.node)

    def _find_phase(self, entry: QueuedPod, ticket: PodQueueInfo, phase: Phase, now: float) -> Phase:
        """Where a known pod is, by its newest version and by what is on its way."""
        if phase is Phase.GATED:
            requeued = entry.phase is Phase.ADMITTED and ticket.requeued and not entry.queue_info.gated
            if requeued or entry.phase is Phase.BOUND:
                # A bound one: the API server was put back to an older state.
                self._free_capacity(entry, now)
                self._uncharge_pod(entry)
                entry.capacity_freed = False
                return phase
            # Perhaps we admitted it a moment ago, and the API server does not show it; see `find_requeues`.
            return entry.phase if entry.phase is Phase.ADMITTED else phase
        self.refusals.forget(entry.uid)
        entry.ungated = True
        if phase is Phase.ADMITTED and entry.queue_info.gated:
            entry.admitted_at = now
            if entry.phase is Phase.GATED:
                # Another process released it, or this one and was told that it had not.
                self.unplaced.add(entry.uid)
        elif phase is Phase.BOUND and entry.phase is not Phase.BOUND:
            entry.bound_at = self.seen_bound = now
            entry.is_requeued = False
            for other in self.equivalence_backoff.record_binding(entry):
                self._place_in_queue(other)
        return phase

    def delete_pod(self, uid: str, now: float) -> None:
        """Forget a pod; after the state has."""
        self._forget_pod(uid, now)
        self.job_stages.forget_pod(uid)

    def record_refused_admission(self, uid: str, now: float, why: str = "") -> None:
        """The API server has refused a release: after a pause the pod waits again, in its old place.

        Args:
            uid: Of the pod.
            now: Seconds.
            why: The API server's words; empty where the pod had changed.
        """
        entry = self.queued_pods.get(uid)
        if entry is not None and entry.phase is Phase.ADMITTED:
            self._free_capacity(entry, now)
            self._uncharge_pod(entry)
            entry.phase, entry.capacity_freed = Phase.GATED, False
            self.refusals.record_refusal(uid, now, why)
            self._place_in_queue(entry)

    @property
    def known_uids(self) -> Iterator[str]:
        """UIDs of all pods that the queue would forget if they were gone."""
        return chain(
            self.queued_pods, (uid for uid in self.job_stages.pod_uids if uid not in self.queued_pods)
        )

    # What comes out.

    def admit_workloads(self, now: float) -> Iterator[AdmittedWorkload]:
        """Release what can be released now; what is yielded is taken and counted.

        Pods that were released and have no room get theirs first: those released before this process began,
        and those whose room others have taken. Then come the rests of gangs that were released in part.
        """
        self.state.expire_tombstones(now)
        for uid in self.refusals.pop_due(now):
            self._place_in_queue(self.queued_pods[uid])
        for entry in self.equivalence_backoff.pop_due(now):
            self._place_in_queue(entry)
        self.gangs.retry_due(now)
        self.unplaced = {uid for uid in sorted(self.unplaced) if not self._place_again(uid, now)}
        for uid in list(self._estimated):
            if uid in self.queued_pods:
                self._charge_pod(self.queued_pods[uid])
        for release in self.admission.admit_workloads(now, first=self.gangs.list_half_admitted()):
            for member in release.members:
                entry = self.queued_pods[member.uid]
                entry.admit(release.queue, now)
                self.equivalence_backoff.record_admission(entry, now)
            self.gangs.record_admission(release.workload.uid, now)
            yield release

    def find_requeues(self, now: float) -> list[Requeue]:
        """Take back what was released and is not bound in time."""
        again = [entry for entry in self.queued_pods.values() if entry.is_gated_again(now)]
        for entry in again:
            self.record_refused_admission(entry.uid, now)
        gated = [Requeue(each, "its scheduling gate is there again", remove=False) for each in again]
        return gated + self._requeue_finder.find_requeues(self.config, now)

    def update_reservations(self, now: float) -> list[tuple[QueuedPod, str]]:
        """Keep cards free for pods and gangs that have waited too long for room; the pods and their nodes."""
        return [
            (self.queued_pods[uid], node) for uid, node in self._reservation_manager.update_reservations(now)
        ]

    def explain_refusal(self, entry: QueuedPod) -> str:
        """Why a gated pod is not in its tenant's queue, in words; empty when nothing is wrong with it."""
        if entry.requirements is None:
            return entry.fault or has_no_request(self.state.resource)
        wrong = explain_refusal(entry, self.config, self._namespaces.get(entry.record.namespace))
        if not wrong and entry.queue_info.is_batch:
            wrong = self.batch.explain_refusal(entry.uid)
        why = self.refusals.explain_pause(entry.uid)
        return wrong or (f"the API server refuses its release: {why}" if why else "")

    def forget_unused(self) -> None:
        """Drop what is remembered of needs that no pod has any more, when that is most of it."""
        if len(self._requirement_pool) > 2 * len(self.queued_pods) + FORGOTTEN_FROM:
            used = {
                entry.requirements for entry in self.queued_pods.values() if entry.requirements is not None
            }
            self._requirement_pool.forget_unused(used)
            self.capacity.forget_unused(used)

    # Pods.

    def _place_in_queue(self, entry: QueuedPod) -> None:
        """Put a pod where it belongs: a tenant's queue, a quota and a slot, or nowhere."""
        self.job_stages.update_pod(entry)
        ready = (
            entry.phase is Phase.GATED
            and not self.explain_refusal(entry)
            and not self.refusals.is_paused(entry.uid)
            and not self.equivalence_backoff.is_held_back(entry)
        )
        if entry.gang:
            self.gangs.update_pod(entry, ready=ready)
        elif ready and entry.requirements is not None:
            self._add_waiting(entry, entry.make_workload(entry.requirements))
        else:
            self._remove_waiting(entry)
        if entry.phase is not Phase.GATED:
            self._charge_pod(entry)
        if entry.phase is Phase.BOUND:
            entry.capacity_freed = False
            self.slots.occupy(entry.uid, entry.record.node, entry.kind)

    def _add_waiting(self, entry: QueuedPod, task: QueuedWorkload[Needs]) -> None:
        if entry.waiting_queue != entry.queue_info.queue:
            self._remove_waiting(entry)
        elif self.queues[entry.waiting_queue].waiting.get(entry.uid) == task:
            return
        self.queues[entry.queue_info.queue].waiting.add(task)
        entry.waiting_queue = entry.queue_info.queue

    def _remove_waiting(self, entry: QueuedPod) -> None:
        if entry.waiting_queue:
            self.queues[entry.waiting_queue].waiting.remove(entry.uid)
            self.queues.forget_if_unused(entry.waiting_queue)
            entry.waiting_queue = ""

    def _charge_pod(self, entry: QueuedPod) -> None:
        """Count a pod in its tenant's quota, with what it counts for now."""
        form = self.config.queues.get(entry.queue_info.queue)
        labels = self._namespaces.get(entry.record.namespace)
        if entry.requirements is None or not (
            entry.charged_queue or form is None or admits_namespace(form, labels)
        ):
            return
        units = self.quota_usage.compute_pod_units(entry.record, entry.requirements)
        if units is None:
            self._estimated.add(entry.uid)
            if entry.charged_queue == entry.queue_info.queue:
                return
            units = self.quota_usage.compute_least_units(entry.requirements)
        else:
            self._estimated.discard(entry.uid)
        has = entry.requirements.make_resources(units)
        if self.queues[entry.queue_info.queue].get_charge(entry.uid) == has:
            return
        self._uncharge_pod(entry)
        self.queues.charge_pod(entry.queue_info.queue, entry.uid, has)
        entry.charged_queue = entry.queue_info.queue

    def _uncharge_pod(self, entry: QueuedPod) -> None:
        if entry.charged_queue:
            self.queues.uncharge_pod(entry.charged_queue, entry.uid)
            self.queues.forget_if_unused(entry.charged_queue)
            entry.charged_queue = ""

    def _free_capacity(self, entry: QueuedPod, now: float) -> None:
        """Let others have the room and the slot of a pod that is not bound.

        Its quota stays its own until it is requeued: kube-scheduler may bind it at any time.
        """
        if (take := self.state.get_assumed(entry.uid)) is not None:
            self.state.forget(take, now)
        self.slots.vacate(entry.uid)
        entry.capacity_freed = True

    def _record_unbindable(self, entry: QueuedPod, now: float) -> None:
        """Give a released pod's room back, and hold back those that are like it."""
        self._free_capacity(entry, now)
        if self.equivalence_backoff.record_refusal(entry, now):
            for other in self.queued_pods.values():
                if other.phase is Phase.GATED and other.template == entry.template:
                    self._place_in_queue(other)

    def _place_again(self, uid: str, now: float) -> bool:
        """Take room for a released pod that has none and is not bound; whether it needs none any more."""
        entry = self.queued_pods.get(uid)
        if entry is None or entry.requirements is None or entry.phase is not Phase.ADMITTED:
            return True
        if entry.capacity_freed or entry.fault:
            return True
        node = self.admission.place_pod(uid, entry.requirements, now)
        if node:
            self.slots.occupy(uid, node, entry.kind)
            self._charge_pod(entry)
        return bool(node)

    def _place_displaced(self, node: str) -> None:
        """Let released pods whose cards on a node are full now find other ones."""
        for uid in find_displaced_on_node(self.state, node):
            take = self.state.get_assumed(uid)
            if take is not None:
                self.state.forget(take, 0.0)
                self.slots.vacate(uid)
                self.unplaced.add(uid)

    def _forget_pod(self, uid: str, now: float) -> None:
        """Forget a pod that has ended or is gone."""
        self._estimated.discard(uid)
        self.unplaced.discard(uid)
        self.refusals.forget(uid)
        self._requeue_finder.forget_pod(uid)
        entry = self.queued_pods.pop(uid, None)
        if entry is None:
            return
        if entry.phase is Phase.BOUND:
            self.ended_pods.record_end(entry.record, now)
        self._remove_waiting(entry)
        self._free_capacity(entry, now)
        self._uncharge_pod(entry)
        self.equivalence_backoff.remove(entry)
        self.gangs.remove_pod(entry)
        self.queues.forget_if_unused(entry.queue_info.queue)

    def _count_node(self, name: str, facts: NodeFacts | None) -> None:
        row = self.state.nodes.rows.get(name)
        self.slots.set_node(name, facts, 0 if row is None else int(self.state.nodes.cards[row]))
        self.locality.set_node(name, None if facts is None else facts.labels)
