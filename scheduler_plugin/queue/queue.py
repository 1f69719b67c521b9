"""The queue: pods, nodes and namespaces come in, releases and what must be taken back come out. Pure.

Nothing here is written anywhere: a pod that wears the gate waits, one that wears it no more and names a queue
was released, one with a node has its slot. So everything is found again after a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allocator.errors import RequestError
from allocator.names import POD_NODE_POLICY
from allocator.request import unknown_policy
from scheduler_plugin.cluster.rules import Rules, Take
from scheduler_plugin.cluster.pods import PodRecord, read_pod
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.placement.cluster_policies import Policies
from scheduler_plugin.placement.policies import NODE_POLICIES
from scheduler_plugin.queue.admission import Admission, Release
from scheduler_plugin.queue.config import QueueConfig
from scheduler_plugin.queue.entries import Entry, Gang, Phase
from scheduler_plugin.queue.locality import Locality
from scheduler_plugin.queue.pods import QueuePod, Ticket, node_rules, read_ticket
from scheduler_plugin.queue.room import NodeFacts, Room
from scheduler_plugin.queue.slots import Slots
from scheduler_plugin.queue.tenants import Tenants
from scheduler_plugin.queue.waiting import Kind, Task
from scheduler_plugin.queue.wants import GangWants, Wants


class QueueRules(Rules):
    """The accounting of a process that releases pods and leaves it to others to bind them."""

    def binding_is_stale(self, take: Take, pod: PodRecord) -> bool:
        """What was released keeps its room whatever changes about the pod; the queue ends it itself."""
        return False


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A released pod whose room and quota others may have again.

    Attributes:
        uid: Of the pod.
        why: In words.
        evict: It, or a part of its gang, is in the way: it is to be deleted, and comes back gated.
    """

    uid: str
    why: str
    evict: bool


class Queue:
    """Everything that the queue knows.

    Args:
        config: The configuration.
        state: The cluster; made with `QueueRules`, and told of every pod and node before the queue is.
        policies: Of the cluster.
    """

    def __init__(self, config: QueueConfig, state: ClusterState, policies: Policies) -> None:
        self.config = config
        self.state = state
        self.tenants = Tenants(config)
        self.room = Room(state, policies)
        self.slots = Slots(config.slots)
        self.locality = Locality(config.locality)
        self.admission = Admission(config, self.tenants, self.room, self.slots, self.locality)
        self.entries: dict[str, Entry] = {}
        self.gangs: dict[str, Gang] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._first_stage: dict[str, tuple[str, str]] = {}
        self._wants: dict[Wants, Wants] = {}

    # What comes in.

    def configure(self, config: QueueConfig) -> None:
        """Take another configuration; every pod is looked at again."""
        self.config = self.admission.config = config
        self.tenants.configure(config)
        self.slots.form = config.slots
        self.locality = self.admission.locality = Locality(config.locality)
        for name, facts in self.room.facts.items():
            self._set_node(name, facts)
        for entry in list(self.entries.values()):
            self._place_in_order(entry)

    def set_node(self, name: str, facts: NodeFacts | None) -> None:
        """Take what is known of a node, None when it is gone; after the state was told of it."""
        self.room.set_facts(name, facts)
        self._set_node(name, facts)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Take a namespace's labels, None when it is gone."""
        if self._namespaces.get(name) == labels:
            return
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = dict(labels)
        for entry in list(self.entries.values()):
            if entry.record.namespace == name:
                self._place_in_order(entry)

    def apply_pod(self, pod: QueuePod, now: float) -> None:
        """Take a pod's newest version; after the state was told of it."""
        record, ticket = read_pod(pod, self.state.resource), read_ticket(pod)
        known = self.entries.get(record.uid)
        if record.charged is None and not record.error:
            return
        if not ticket.gated and not ticket.queue:
            return
        if record.ended:
            self._end(record.uid, succeeded=pod.status.phase == "Succeeded", now=now)
            return
        wants, fault = self._needs(record, ticket, pod)
        phase = Phase.BOUND if record.node else Phase.WAITING if ticket.gated else Phase.RELEASED
        if known is None:
            known = self.entries[record.uid] = Entry(record, ticket, wants, phase, seen=now, released=now)
        elif known.phase is Phase.RELEASED and phase is Phase.WAITING:
            # Released by us a moment ago: the API server has not said so yet.
            phase = Phase.RELEASED
        known.record, known.ticket, known.wants, known.fault = record, ticket, wants, fault
        known.phase = phase
        self._place_in_order(known)
        if phase is Phase.RELEASED and ticket.unschedulable:
            self._give_back(known, now)

    def delete_pod(self, uid: str, now: float) -> None:
        """Forget a pod; after the state was told of it."""
        self._end(uid, succeeded=True, now=now)

    def not_released(self, uid: str, now: float) -> None:
        """A release was refused by the API server: the pod waits again, in its old place."""
        entry = self.entries.get(uid)
        if entry is not None and entry.phase is Phase.RELEASED:
            self._give_back(entry, now)
            entry.phase = Phase.WAITING
            self._place_in_order(entry)

    # What comes out.

    def decide(self, now: float) -> Iterable[Release]:
        """Release what can be released now; what is yielded is taken and counted."""
        for release in self.admission.decide(now):
            for member in release.members:
                entry = self.entries[member.uid]
                entry.phase, entry.released, entry.held = Phase.RELEASED, now, True
            gang = self.gangs.get(release.task.uid)
            if gang is not None:
                gang.released, gang.queued = now, ""
            yield release

    def expire(self, now: float) -> list[TakenBack]:
        """Take back what was released and is not bound in time; keep room for those that waited too long."""
        back = []
        for entry in self.entries.values():
            if entry.phase is not Phase.RELEASED or entry.gang or not entry.held:
                continue
            if now - entry.released >= self.config.bind_within_s:
                back.append(self._take_back(entry, now))
        for uid, gang in self.gangs.items():
            if gang.released and now - gang.released >= self.config.gang_within_s:
                back += self._take_gang_back(uid, gang, now)
        long = [e for e in self.entries.values() if e.phase is Phase.WAITING]
        long = [e for e in long if now - e.seen >= self.config.keep_room_after_s]
        self.admission.keep_room(e.uid for e in sorted(long, key=lambda e: (e.ticket.created, e.uid)))
        return back

    # Pods.

    def _needs(self, record: PodRecord, ticket: Ticket, pod: QueuePod) -> tuple[Wants | None, str]:
        """What a pod needs, and what is wrong with it."""
        if record.request is None:
            return None, record.error
        policy = record.request.node_policy
        if policy is not None and policy not in NODE_POLICIES:
            return None, str(unknown_policy(POD_NODE_POLICY, policy, NODE_POLICIES.names()))
        wants = Wants(record.request, record.cpu_milli, record.memory_bytes, node_rules(pod))
        return self._wants.setdefault(wants, wants), ticket.fault

    def _place_in_order(self, entry: Entry) -> None:
        """Put a pod where its phase says: the tenant's queue, quota and slot, or nowhere."""
        self._leave(entry)
        self._count_stage(entry)
        if entry.phase is Phase.WAITING:
            if not self.refusal(entry):
                self._enter(entry)
            return
        if entry.wants is None:
            return
        if entry.phase is Phase.BOUND:
            self.slots.sit(entry.uid, entry.record.node, entry.kind)
            self._hold(entry)

    def refusal(self, entry: Entry) -> str:
        """Why a gated pod is not in its tenant's queue, in words; empty when it is."""
        if entry.fault:
            return entry.fault
        if not entry.tenant:
            return f"label gpupack.io/queue-name is missing: allowed are {self._names()}"
        form = self.config.queues.get(entry.tenant)
        if form is None:
            return f"queue {entry.tenant!r} does not exist: allowed are {self._names()}"
        if form.namespace_selector is not None:
            labels = self._namespaces.get(entry.record.namespace, {})
            if not form.namespace_selector.matches(labels):
                return f"queue {entry.tenant!r} is not for namespace {entry.record.namespace!r}"
        if entry.ticket.foreign_gates:
            return f"it waits for the scheduling gates {', '.join(entry.ticket.foreign_gates)}"
        if entry.ticket.ending:
            return "it is being deleted"
        return ""

    def _names(self) -> str:
        names = sorted(self.config.queues)
        return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "")

    def _enter(self, entry: Entry) -> None:
        assert entry.wants is not None
        if entry.gang:
            self._enter_gang(entry)
            return
        task = Task(entry.uid, entry.kind, entry.ticket.created, entry.wants, entry.ticket.data, entry.job)
        self.tenants[entry.tenant].waiting.add(task)

    def _leave(self, entry: Entry) -> None:
        """Take a pod out of every queue."""
        for tenant in self.tenants:
            if entry.uid in tenant.waiting:
                tenant.waiting.remove(entry.uid)

    def _hold(self, entry: Entry) -> None:
        if entry.wants is not None and not entry.held:
            entry.held = True
            self.tenants.hold(entry.tenant, entry.uid, entry.wants.units)
