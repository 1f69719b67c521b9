"""The queue: pods, nodes and namespaces come in, releases and what must be taken back come out. Pure.

Nothing here is written anywhere: a pod that wears the gate waits, one that names a queue and wears it no more
was released, one with a node sits in its slot. So everything is found again after a restart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from allocator.errors import shown
from allocator.names import POD_NODE_POLICY, QUEUE_NAME
from allocator.request import unknown_policy
from scheduler_plugin.cluster.pods import PodRecord, read_pod
from scheduler_plugin.cluster.rules import Rules, Take
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
from scheduler_plugin.queue.wants import Needs, Wants

NAMES_SHOWN: Final = 10

FORGOTTEN_FROM: Final = 256
"""Needs that are remembered in any case: pods that ask alike come again."""


class QueueRules(Rules):
    """The accounting of a process that releases pods and leaves it to others to bind them."""

    def binding_is_stale(self, take: Take, pod: PodRecord) -> bool:  # noqa: ARG002
        """What was released keeps its room whatever changes about the pod; the queue itself ends that."""
        return False


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A released pod whose room and quota others have again.

    Attributes:
        entry: The pod.
        why: In words.
        remove: It is in the way where it is: whoever made it makes it again, with its gate.
    """

    entry: Entry
    why: str
    remove: bool


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
        self._unplaced: set[str] = set()
        self._drained: set[str] = set()
        self._failed: dict[str, tuple[str, str]] = {}
        self._wants: dict[Wants, Wants] = {}

    # What comes in.

    def configure(self, config: QueueConfig) -> None:
        """Take another configuration; every node and pod is looked at again."""
        self.config = self.admission.config = config
        self.tenants.configure(config)
        self.slots.form = config.slots
        self.locality = self.admission.locality = Locality(config.locality)
        for name, facts in self.room.facts.items():
            self._count_node(name, facts)
        for entry in list(self.entries.values()):
            self._enter(entry)

    def set_node(self, name: str, facts: NodeFacts | None) -> None:
        """Take what is known of a node, None when it is gone; after the state was told of it."""
        if facts is not None or name in self.room.facts:
            self.room.set_facts(name, facts)
            self._count_node(name, facts)

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
                self._enter(entry)

    def apply_pod(self, pod: QueuePod, now: float) -> None:
        """Take a pod's newest version; after the state was told of it."""
        uid = pod.metadata.uid
        record, ticket = self.state.pods.get(uid) or read_pod(pod, self.state.resource), read_ticket(pod)
        entry = self.entries.get(record.uid)
        concerns = ticket.gated or (ticket.queue and (record.charged is not None or record.error))
        if not concerns or record.ended:
            self._end(uid, now)
            if record.ended and pod.status.phase != "Succeeded" and ticket.data and ticket.job:
                # Its job waits for whatever is made in its place.
                self._failed[uid] = (ticket.queue, f"{record.namespace}/{ticket.job}")
                self.tenants[ticket.queue].waiting.begun(uid, self._failed[uid][1])
            return
        wants, fault = self._needs(record, ticket, pod)
        phase = Phase.BOUND if record.node else Phase.GATED if ticket.gated else Phase.RELEASED
        if entry is None:
            entry = Entry(record, ticket, wants, fault, phase, seen=now, released=now)
            self.entries[record.uid] = entry
            if phase is Phase.RELEASED:
                self._unplaced.add(uid)
        elif phase is Phase.GATED and entry.phase is Phase.RELEASED:
            # Released by us a moment ago; the API server has not told that yet.
            phase = Phase.RELEASED
        if entry.gang:
            self._leave_gang(entry)
        entry.record, entry.ticket, entry.wants, entry.fault, entry.phase = (
            record,
            ticket,
            wants,
            fault,
            phase,
        )
        self._enter(entry)
        if phase is Phase.RELEASED and ticket.unschedulable and not entry.gang:
            self._give_back(entry, now)

    def delete_pod(self, uid: str, now: float) -> None:
        """Forget a pod; after the state was told of it."""
        self._end(uid, now)

    def not_released(self, uid: str, now: float) -> None:
        """The API server has refused a release: the pod waits again, in its old place."""
        entry = self.entries.get(uid)
        if entry is not None and entry.phase is Phase.RELEASED:
            self._give_back(entry, now)
            entry.phase, entry.given_back = Phase.GATED, False
            self._enter(entry)

    @property
    def known(self) -> Iterator[str]:
        """UIDs of all pods that the queue would forget if they were gone."""
        return chain(self.entries, self._failed)

    # What comes out.

    def decide(self, now: float) -> Iterator[Release]:
        """Release what can be released now; what is yielded is taken and counted.

        Pods that were released before this process began get their room first.
        """
        for uid in self._unplaced:
            self._place_again(uid, now)
        self._unplaced.clear()
        for release in self.admission.decide(now):
            for member in release.members:
                entry = self.entries[member.uid]
                entry.phase, entry.released, entry.given_back = Phase.RELEASED, now, False
                entry.holder, entry.waits_in = release.tenant, ""
            gang = self.gangs.get(release.task.uid)
            if gang is not None:
                gang.released, gang.waits_in = now, ""
            yield release

    def expire(self, now: float) -> list[TakenBack]:
        """Take back what was released and is not bound in time."""
        back = []
        for entry in list(self.entries.values()):
            late = now - entry.released >= self.config.bind_within_s
            if entry.phase is Phase.RELEASED and not entry.gang and late and not entry.given_back:
                self._give_back(entry, now)
                why = f"not bound within {self.config.bind_within_s:g} s of its release"
                back.append(TakenBack(entry, why, remove=self.config.mode == "batch" and entry.ticket.owned))
        drained = [name for name, form in self.config.queues.items() if form.stop == "HoldAndDrain"]
        for entry in [self.entries[uid] for name in drained for uid in self.tenants[name].released]:
            if entry.uid not in self._drained and not entry.ticket.ending:
                self._drained.add(entry.uid)
                back.append(TakenBack(entry, f"queue {entry.ticket.queue} is drained", remove=True))
        for gang in list(self.gangs.values()):
            if gang.released is not None and now - gang.released >= self.config.gang_within_s:
                back += self._take_gang_back(gang, now)
        return back

    def keep_room(self, now: float) -> list[tuple[Entry, str]]:
        """Keep cards free for pods that have waited too long for room; the pods and their nodes."""
        limit = now - self.config.keep_room_after_s
        long = [entry for entry in self.entries.values() if entry.waits_in and entry.seen <= limit]
        long.sort(key=lambda entry: (entry.ticket.created, entry.uid))
        kept = self.admission.keep_room((entry.uid, entry.waits_in) for entry in long)
        return [(self.entries[uid], node) for uid, node in kept]

    def refusal(self, entry: Entry) -> str:
        """Why a gated pod is not in its tenant's queue, in words; empty when nothing is wrong with it."""
        if entry.wants is None:
            return entry.fault or f"it asks for no {self.state.resource}: allowed is 1 or more"
        wrong = entry.fault or self._wrong_queue(entry)
        if wrong:
            return wrong
        if entry.ticket.foreign_gates:
            return f"it waits for the scheduling gates {', '.join(entry.ticket.foreign_gates)}"
        return "it is being deleted" if entry.ticket.ending else ""

    def _wrong_queue(self, entry: Entry) -> str:
        name = entry.ticket.queue
        if not name:
            return f"label {QUEUE_NAME} is missing: allowed are {self._names()}"
        form = self.config.queues.get(name)
        if form is None:
            return f"queue {shown(name)} does not exist: allowed are {self._names()}"
        if form.namespace_selector is None:
            return ""
        labels = self._namespaces.get(entry.record.namespace, {})
        if form.namespace_selector.matches(labels):
            return ""
        return f"queue {shown(name)} is not for namespace {shown(entry.record.namespace)}"

    def _names(self) -> str:
        names = sorted(self.config.queues)
        return ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")

    def forget_unused(self) -> None:
        """Drop what is remembered of needs that no pod has any more, when that is most of it."""
        if len(self._wants) > 2 * len(self.entries) + FORGOTTEN_FROM:
            used = {entry.wants for entry in self.entries.values() if entry.wants is not None}
            self._wants = {wants: wants for wants in used}
            self.room.forget_unused(used)

    # Pods.

    def _needs(self, record: PodRecord, ticket: Ticket, pod: QueuePod) -> tuple[Wants | None, str]:
        """What a pod needs, and what is wrong with it."""
        if record.charged is None:
            return None, record.error
        if record.request is None:
            return Wants(record.charged, record.cpu_milli, record.memory_bytes), record.error
        wants = Wants(record.request, record.cpu_milli, record.memory_bytes, node_rules(pod))
        policy = record.request.node_policy
        if policy is not None and policy not in NODE_POLICIES:
            return wants, str(unknown_policy(POD_NODE_POLICY, policy, NODE_POLICIES.names()))
        return self._wants.setdefault(wants, wants), ticket.fault or wants.fault

    def _enter(self, entry: Entry) -> None:
        """Put a pod where it belongs: a tenant's queue, a quota and a slot, or nowhere."""
        if entry.kind is Kind.LOCAL and entry.job:
            self.tenants[entry.ticket.queue].waiting.begun(entry.uid, entry.job)
        if entry.gang:
            self._enter_gang(entry)
        elif entry.phase is Phase.GATED and entry.wants is not None and not self.refusal(entry):
            self._wait(entry, entry.task(entry.wants))
        else:
            self._wait_no_more(entry)
        if entry.phase is not Phase.GATED and not entry.given_back:
            self._hold(entry)
        if entry.phase is Phase.BOUND:
            entry.given_back = False
            self._hold(entry)
            self.slots.sit(entry.uid, entry.record.node, entry.kind)

    def _wait(self, entry: Entry, task: Task[Needs]) -> None:
        if entry.waits_in != entry.ticket.queue:
            self._wait_no_more(entry)
        elif self.tenants[entry.waits_in].waiting.get(entry.uid) == task:
            return
        self.tenants[entry.ticket.queue].waiting.add(task)
        entry.waits_in = entry.ticket.queue

    def _wait_no_more(self, entry: Entry) -> None:
        if entry.waits_in:
            self.tenants[entry.waits_in].waiting.remove(entry.uid)
            entry.waits_in = ""

    def _hold(self, entry: Entry) -> None:
        """Count a pod in its tenant's quota."""
        if entry.wants is None or entry.holder == entry.ticket.queue:
            return
        self._let_go(entry)
        self.tenants.hold(entry.ticket.queue, entry.uid, entry.wants.units)
        entry.holder = entry.ticket.queue

    def _let_go(self, entry: Entry) -> None:
        if entry.holder:
            self.tenants.let_go(entry.holder, entry.uid)
            entry.holder = ""

    def _give_back(self, entry: Entry, now: float) -> None:
        """Let others have the room, the slot and the quota of a pod that is not bound."""
        take = self.state.taken(entry.uid)
        if take is not None:
            self.state.roll_back(take, now)
        self.slots.leave(entry.uid)
        self._let_go(entry)
        entry.given_back = True

    def _place_again(self, uid: str, now: float) -> None:
        """Take room for a pod that somebody else has released and that is not bound."""
        entry = self.entries.get(uid)
        if entry is None or entry.wants is None or entry.phase is not Phase.RELEASED or entry.fault:
            return
        node = self.admission.place(uid, entry.wants, now)
        if node:
            self.slots.sit(uid, node, entry.kind)

    def _end(self, uid: str, now: float) -> None:
        """Forget a pod that has ended or is gone."""
        self._drained.discard(uid)
        if uid in self._failed:
            tenant, job = self._failed.pop(uid)
            self.tenants[tenant].waiting.finished(uid, job)
        entry = self.entries.get(uid)
        if entry is None:
            return
        if entry.kind is Kind.LOCAL and entry.job:
            self.tenants[entry.ticket.queue].waiting.finished(uid, entry.job)
        self._wait_no_more(entry)
        self._give_back(entry, now)
        if entry.gang:
            self._leave_gang(entry)
        del self.entries[uid]

    def _count_node(self, name: str, facts: NodeFacts | None) -> None:
        row = self.state.nodes.rows.get(name)
        self.slots.set_node(name, facts, 0 if row is None else int(self.state.nodes.cards[row]))
        self.locality.set_node(name, None if facts is None else facts.labels)

    # Gangs.

    def _enter_gang(self, entry: Entry) -> None:
        gang = self.gangs.setdefault(entry.gang, Gang(entry.gang))
        gang.members.add(entry.uid)
        if entry.phase is Phase.GATED and not self.refusal(entry):
            gang.ready.add(entry.uid)
        else:
            gang.ready.discard(entry.uid)
        if entry.phase is not Phase.GATED and gang.released is None:
            gang.released = entry.released
        self._queue_gang(gang)

    def _leave_gang(self, entry: Entry) -> None:
        gang = self.gangs.get(entry.gang)
        if gang is None:
            return
        gang.members.discard(entry.uid)
        gang.ready.discard(entry.uid)
        if not any(self.entries[uid].phase is not Phase.GATED for uid in gang.members):
            gang.released = None
        self._queue_gang(gang)
        if not gang.members:
            del self.gangs[gang.uid]

    def _queue_gang(self, gang: Gang) -> None:
        """Let the gang wait as one task when all of its pods could; a gang that grew by one pod waits too."""
        entries = [self.entries[uid] for uid in gang.members]
        gang.fault = gang.disagreement(entries)
        size = entries[0].ticket.gang_size if entries else 0
        if not gang.fault and len(entries) > size:
            gang.fault = f"it has {len(entries)} pods and gpupack.io/gang-size is {size}"
        complete = entries and not gang.fault and len(gang.ready) == size
        task = gang.task(entries) if complete else None
        if gang.waits_in:
            waiting = self.tenants[gang.waits_in].waiting
            if task is not None and waiting.get(gang.uid) == task:
                return
            waiting.remove(gang.uid)
            gang.waits_in = ""
        if task is not None:
            gang.waits_in = entries[0].ticket.queue
            self.tenants[gang.waits_in].waiting.add(task)

    def _take_gang_back(self, gang: Gang, now: float) -> list[TakenBack]:
        """Take back a gang that was released and is not bound whole."""
        entries = [self.entries[uid] for uid in gang.members]
        bound = [entry for entry in entries if entry.phase is Phase.BOUND]
        if len(bound) == entries[0].ticket.gang_size or len(bound) == len(entries):
            gang.released = now
            return []
        why = (
            f"{len(bound)} of {entries[0].ticket.gang_size} pods of its gang are bound "
            f"{self.config.gang_within_s:g} s after its release"
        )
        back = []
        for entry in entries:
            if entry.phase is Phase.RELEASED and not entry.given_back:
                self._give_back(entry, now)
            if entry.phase is not Phase.GATED:
                back.append(TakenBack(entry, why, remove=entry.ticket.owned))
        gang.released = now
        return back
