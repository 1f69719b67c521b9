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
        stages: The stages of all jobs; whoever watches Jobs writes them here.
        refusals: Releases that the API server has refused, by UID, and their pauses.
        ended: Pods that have ended a moment ago.
        batch: Pods that batch mode binds, and why it does not.
        seen_bound: When a pod that was released was last seen bound, seconds.
    """

    def __init__(
        self, config: QueueConfig, state: ClusterState, policies: ClusterPolicies, wall: float | None = None
    ) -> None:
        self.config = config
        self.state = state
        self.tenants = Queues(config)
        self.room = FreeCapacity(state, policies)
        self.slots = ClusterSlots(config.slots)
        self.locality = Locality(config.locality)
        self.admission = AdmissionScheduler(config, self.tenants, self.room, self.slots, self.locality)
        self.amounts = self.admission.amounts
        self.entries: dict[str, QueuedPod] = {}
        self.gangs = Gangs(self.entries, self.tenants)
        self.stages = JobStages(self.tenants)
        self.ended = EndedPods(state)
        self.seen_bound = float("-inf")
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self.unplaced: set[str] = set()
        self.alike: EquivalenceBackoff[QueuedPod] = EquivalenceBackoff()
        self._take_backs = RequeueFinder(self.entries, self.tenants, self.gangs, self._could_not_be_bound)
        self._estimated: set[str] = set()
        self._ages = QueueClock(wall)
        self._keeper = ReservationManager(self.admission, ReservationDelay(self.entries, self.gangs))
        self._shapes = RequirementPool()
        self.batch = BatchPods()
        self.refusals: KeyedBackoff[str] = KeyedBackoff(*REFUSED_S)

    # What comes in.

    def configure(self, config: QueueConfig) -> None:
        """Take another configuration; every node and pod is looked at again."""
        self.admission.configure(config)
        self.config = config
        self.tenants.configure(config)
        self.slots.form = config.slots
        self.locality = self.admission.locality = Locality(config.locality)
        for name, facts in self.room.facts.items():
            self._count_node(name, facts)
        self.stages.configure()
        for entry in list(self.entries.values()):
            self._enter(entry)

    def set_node(self, name: str, facts: NodeFacts | None) -> None:
        """Take what is known of a node, None when it is gone; after the state has it."""
        if facts is not None or name in self.room.facts:
            self.room.set_facts(name, facts)
            self._count_node(name, facts)
            self._displace(name)

    def set_batch_spec(self, uid: str, spec: Mapping[str, Any]) -> None:
        """Take the whole spec of a pod that batch mode is to bind."""
        self.batch.set_spec(uid, spec)
        entry = self.entries.get(uid)
        if entry is not None:
            self._enter(entry)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Take a namespace's labels, None when it is gone."""
        if self._namespaces.get(name) == labels:
            return
        self._namespaces.pop(name, None)
        if labels is not None:
            self._namespaces[name] = dict(labels)
        for entry in list(self.entries.values()):
            if entry.record.namespace == name:
                self._enter(entry)

    def apply_pod(self, pod: QueuePod, now: float, *, live: bool = False) -> None:
        """Take a pod's newest version; after the state has it.

        Args:
            pod: The pod.
            now: Seconds.
            live: It was created after those that came before it, see `QueueClock`.
        """
        uid = pod.metadata.uid
        entry = self.entries.get(uid)
        record, ticket = self.state.pods.get(uid) or read_pod(pod, self.state.resource), read_queue_info(pod)
        if entry is not None and entry.holder in self.config.queues and not ticket.gated:
            # What was released stays with its queue until it ends, whatever its label says then.
            ticket = replace(ticket, queue=entry.holder)
        concerns = ticket.gated or (ticket.queue and (record.charged is not None or record.error))
        if not concerns or record.ended:
            self._end(uid, now)
            if record.ended:
                self.stages.end(record, ticket, succeeded=pod.status.phase == "Succeeded")
            else:
                self.stages.forget(uid)
            return
        wants, fault = self._shapes.read(record, ticket, pod)
        phase = Phase.BOUND if record.node else Phase.GATED if ticket.gated else Phase.RELEASED
        if entry is None:
            since = self._ages.since(ticket.created, now, live=live)
            began = self._ages.began(ticket.created, now, live=live)
            ran = self._ages.ran(record.started_at, ticket.created, now)
            entry = QueuedPod(record, ticket, wants, fault, phase, since, began, released=now, bound=ran)
            self.entries[uid] = entry
            if phase is Phase.RELEASED:
                self.unplaced.add(uid)
        else:
            phase = self._moved(entry, ticket, phase, now)
        if ticket.has_gate or not entry.template:
            # In batch mode a release changes what a pod says of nodes.
            self.alike.move(entry, make_pod_template(record, ticket, wants))
        self.gangs.move(entry, ticket.gang)
        entry.update(record, ticket, wants, fault, phase)
        self._enter(entry)
        if entry.is_unschedulable() and not entry.given_back:
            (self.gangs if entry.gang else self._take_backs).unschedulable(entry, now)
        if phase is Phase.BOUND:
            self._displace(record.node)

    def _moved(self, entry: QueuedPod, ticket: PodQueueInfo, phase: Phase, now: float) -> Phase:
        """Where a known pod is, by its newest version and by what is on its way."""
        if phase is Phase.GATED:
            requeued = entry.phase is Phase.RELEASED and ticket.requeued and not entry.ticket.gated
            if requeued or entry.phase is Phase.BOUND:
                # A bound one: the API server was put back to an older state.
                self._give_back(entry, now)
                self._let_go(entry)
                entry.given_back = False
                return phase
            # Released by us a moment ago, perhaps; the API server has not told that yet; else see `expire`.
            return entry.phase if entry.phase is Phase.RELEASED else phase
        self.refusals.forget(entry.uid)
        entry.ungated = True
        if phase is Phase.RELEASED and entry.ticket.gated:
            entry.released = now
            if entry.phase is Phase.GATED:
                # Another process released it, or this one and was told that it had not.
                self.unplaced.add(entry.uid)
        elif phase is Phase.BOUND and entry.phase is not Phase.BOUND:
            entry.bound = self.seen_bound = now
            entry.taken_back = False
            for other in self.alike.bound(entry):
                self._enter(other)
        return phase

    def delete_pod(self, uid: str, now: float) -> None:
        """Forget a pod; after the state has."""
        self._end(uid, now)
        self.stages.forget(uid)

    def not_released(self, uid: str, now: float, why: str = "") -> None:
        """The API server has refused a release: after a pause the pod waits again, in its old place.

        Args:
            uid: Of the pod.
            now: Seconds.
            why: The API server's words; empty where the pod had changed.
        """
        entry = self.entries.get(uid)
        if entry is not None and entry.phase is Phase.RELEASED:
            self._give_back(entry, now)
            self._let_go(entry)
            entry.phase, entry.given_back = Phase.GATED, False
            self.refusals.refused(uid, now, why)
            self._enter(entry)

    @property
    def known(self) -> Iterator[str]:
        """UIDs of all pods that the queue would forget if they were gone."""
        return chain(self.entries, (uid for uid in self.stages.pods if uid not in self.entries))

    # What comes out.

    def decide(self, now: float) -> Iterator[AdmittedWorkload]:
        """Release what can be released now; what is yielded is taken and counted.

        Pods that were released and have no room get theirs first: those released before this process began,
        and those whose room others have taken. Then come the rests of gangs that were released in part.
        """
        self.state.expire_tombstones(now)
        for uid in self.refusals.due(now):
            self._enter(self.entries[uid])
        for entry in self.alike.due(now):
            self._enter(entry)
        self.gangs.try_again(now)
        self.unplaced = {uid for uid in sorted(self.unplaced) if not self._place_again(uid, now)}
        for uid in list(self._estimated):
            if uid in self.entries:
                self._hold(self.entries[uid])
        for release in self.admission.decide(now, first=self.gangs.half_released()):
            for member in release.members:
                entry = self.entries[member.uid]
                entry.release(release.tenant, now)
                self.alike.released(entry, now)
            self.gangs.released(release.task.uid, now)
            yield release

    def expire(self, now: float) -> list[Requeue]:
        """Take back what was released and is not bound in time."""
        again = [entry for entry in self.entries.values() if entry.is_gated_again(now)]
        for entry in again:
            self.not_released(entry.uid, now)
        gated = [Requeue(each, "its scheduling gate is there again", remove=False) for each in again]
        return gated + self._take_backs.find(self.config, now)

    def keep_room(self, now: float) -> list[tuple[QueuedPod, str]]:
        """Keep cards free for pods and gangs that have waited too long for room; the pods and their nodes."""
        return [(self.entries[uid], node) for uid, node in self._keeper.keep(now)]

    def refusal(self, entry: QueuedPod) -> str:
        """Why a gated pod is not in its tenant's queue, in words; empty when nothing is wrong with it."""
        if entry.wants is None:
            return entry.fault or has_no_request(self.state.resource)
        wrong = explain_refusal(entry, self.config, self._namespaces.get(entry.record.namespace))
        if not wrong and entry.ticket.is_batch:
            wrong = self.batch.explain_refusal(entry.uid)
        why = self.refusals.why(entry.uid)
        return wrong or (f"the API server refuses its release: {why}" if why else "")

    def forget_unused(self) -> None:
        """Drop what is remembered of needs that no pod has any more, when that is most of it."""
        if len(self._shapes) > 2 * len(self.entries) + FORGOTTEN_FROM:
            used = {entry.wants for entry in self.entries.values() if entry.wants is not None}
            self._shapes.forget_unused(used)
            self.room.forget_unused(used)

    # Pods.

    def _enter(self, entry: QueuedPod) -> None:
        """Put a pod where it belongs: a tenant's queue, a quota and a slot, or nowhere."""
        self.stages.enter(entry)
        ready = (
            entry.phase is Phase.GATED
            and not self.refusal(entry)
            and not self.refusals.pauses(entry.uid)
            and not self.alike.holds(entry)
        )
        if entry.gang:
            self.gangs.enter(entry, ready=ready)
        elif ready and entry.wants is not None:
            self._wait(entry, entry.task(entry.wants))
        else:
            self._wait_no_more(entry)
        if entry.phase is not Phase.GATED:
            self._hold(entry)
        if entry.phase is Phase.BOUND:
            entry.given_back = False
            self.slots.sit(entry.uid, entry.record.node, entry.kind)

    def _wait(self, entry: QueuedPod, task: QueuedWorkload[Needs]) -> None:
        if entry.waits_in != entry.ticket.queue:
            self._wait_no_more(entry)
        elif self.tenants[entry.waits_in].waiting.get(entry.uid) == task:
            return
        self.tenants[entry.ticket.queue].waiting.add(task)
        entry.waits_in = entry.ticket.queue

    def _wait_no_more(self, entry: QueuedPod) -> None:
        if entry.waits_in:
            self.tenants[entry.waits_in].waiting.remove(entry.uid)
            self.tenants.forget(entry.waits_in)
            entry.waits_in = ""

    def _hold(self, entry: QueuedPod) -> None:
        """Count a pod in its tenant's quota, with what it counts for now."""
        form = self.config.queues.get(entry.ticket.queue)
        labels = self._namespaces.get(entry.record.namespace)
        if entry.wants is None or not (entry.holder or form is None or admits_namespace(form, labels)):
            return
        units = self.amounts.of(entry.record, entry.wants)
        if units is None:
            self._estimated.add(entry.uid)
            if entry.holder == entry.ticket.queue:
                return
            units = self.amounts.least(entry.wants)
        else:
            self._estimated.discard(entry.uid)
        has = entry.wants.resources(units)
        if self.tenants[entry.ticket.queue].counts(entry.uid) == has:
            return
        self._let_go(entry)
        self.tenants.hold(entry.ticket.queue, entry.uid, has)
        entry.holder = entry.ticket.queue

    def _let_go(self, entry: QueuedPod) -> None:
        if entry.holder:
            self.tenants.let_go(entry.holder, entry.uid)
            self.tenants.forget(entry.holder)
            entry.holder = ""

    def _give_back(self, entry: QueuedPod, now: float) -> None:
        """Let others have the room and the slot of a pod that is not bound.

        Its quota stays its own until it is requeued: kube-scheduler may bind it at any time.
        """
        if (take := self.state.get_assumed(entry.uid)) is not None:
            self.state.forget(take, now)
        self.slots.leave(entry.uid)
        entry.given_back = True

    def _could_not_be_bound(self, entry: QueuedPod, now: float) -> None:
        """Give a released pod's room back, and hold back those that are like it."""
        self._give_back(entry, now)
        if self.alike.refused(entry, now):
            for other in self.entries.values():
                if other.phase is Phase.GATED and other.template == entry.template:
                    self._enter(other)

    def _place_again(self, uid: str, now: float) -> bool:
        """Take room for a released pod that has none and is not bound; whether it needs none any more."""
        entry = self.entries.get(uid)
        if entry is None or entry.wants is None or entry.phase is not Phase.RELEASED:
            return True
        if entry.given_back or entry.fault:
            return True
        node = self.admission.place(uid, entry.wants, now)
        if node:
            self.slots.sit(uid, node, entry.kind)
            self._hold(entry)
        return bool(node)

    def _displace(self, node: str) -> None:
        """Let released pods whose cards on a node are full now find other ones."""
        for uid in find_displaced_on_node(self.state, node):
            take = self.state.get_assumed(uid)
            if take is not None:
                self.state.forget(take, 0.0)
                self.slots.leave(uid)
                self.unplaced.add(uid)

    def _end(self, uid: str, now: float) -> None:
        """Forget a pod that has ended or is gone."""
        self._estimated.discard(uid)
        self.unplaced.discard(uid)
        self.refusals.forget(uid)
        self._take_backs.forget(uid)
        entry = self.entries.pop(uid, None)
        if entry is None:
            return
        if entry.phase is Phase.BOUND:
            self.ended.note(entry.record, now)
        self._wait_no_more(entry)
        self._give_back(entry, now)
        self._let_go(entry)
        self.alike.leave(entry)
        self.gangs.leave(entry)
        self.tenants.forget(entry.ticket.queue)

    def _count_node(self, name: str, facts: NodeFacts | None) -> None:
        row = self.state.nodes.rows.get(name)
        self.slots.set_node(name, facts, 0 if row is None else int(self.state.nodes.cards[row]))
        self.locality.set_node(name, None if facts is None else facts.labels)
