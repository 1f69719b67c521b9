"""Pods of a trace that go through the queue, without a cluster.

The queue is the product's, with its reservations and its reclaim: what its configuration says is obeyed here
because the same code reads it. Pods run as long as in the trace from when they are placed; an evicted one
begins anew. Pods that ask for no card pass the queue by, as in a cluster.
"""

import heapq
import math
import zlib
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from allocator.names import DEFAULT_NODE_POLICY
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import SettingsError, StateError
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.scheduler.queue import Queue
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.policies.registry import NodePolicy
from scheduler_plugin.simulator.arrivals import Replay
from scheduler_plugin.simulator.cluster import ChosenCards, SimulatedCluster, SimulatedPodKind
from scheduler_plugin.simulator.placer import PlacedPod, Placer
from scheduler_plugin.simulator.queued_cluster import UNIT_MIB, PodObjects, ReplayChargeRules, make_node
from scheduler_plugin.simulator.replay import ReplayState, Running
from scheduler_plugin.simulator.trace import TracePod

SHOWN: Final = 10


class QueueShare(NamedTuple):
    """The queues from a moment on, each in the configuration's order: units in use, pods that wait."""

    at_s: float
    used: tuple[int, ...]
    waiting: tuple[int, ...]


def remove_borrowing(config: QueueConfig) -> QueueConfig:
    queues = {name: msgspec.structs.replace(form, borrowing_limit=0) for name, form in config.queues.items()}
    return msgspec.structs.replace(config, queues=queues)


def check_trace(config: QueueConfig, pods: Iterable[TracePod]) -> None:
    """Check that a trace can be replayed through queues.

    Raises:
        SettingsError: a pod names a queue that is not in the configuration.
    """
    unknown = sorted({pod.queue for pod in pods if pod.queue} - set(config.queues))
    if unknown:
        names = ", ".join(sorted(config.queues)[:SHOWN])
        raise SettingsError(f"queue {unknown[0]!r} of the pod list is not configured; allowed: {names}")


def choose_queue(pod: TracePod, config: QueueConfig) -> str:
    """Choose the queue of a pod: the one it names, else one by a hash of its name and the weights."""
    if pod.queue:
        return pod.queue
    names = list(config.queues)
    ends = list(accumulate(form.weight for form in config.queues.values()))
    at = zlib.crc32(pod.name.encode()) / 2**32 * ends[-1]
    return names[min(bisect(ends, at), len(names) - 1)]


class QueuedReplayState(ReplayState):
    """The state of one replay through queues, whose amounts are units of the cluster's cards."""

    def __init__(
        self,
        replay: Replay,
        config: QueueConfig,
        card_policy: str,
        card_units: int,
        make: Callable[[str, Mapping[str, str] | None], NodePolicy],
    ) -> None:
        config = _for_every_namespace(config)
        policies = ClusterPolicies(
            config.node_policy or DEFAULT_NODE_POLICY, card_policy_name=card_policy, make=make
        )
        self._state = ClusterState(UNIT_MIB, rules=ReplayChargeRules())
        self.queue = Queue(config, self._state, policies)
        self.queue.job_stages.set_jobs([])
        for row, each in enumerate(replay.nodes):
            node = make_node(each, row, each.card_units or card_units, config.locality)
            self._state.apply_node(node, 0.0)
            self.queue.set_node(each.name, node.traits)
        cluster = SimulatedCluster(replay.nodes, card_units, policies.other_resources, self._state.nodes)
        super().__init__(cluster, Placer(cluster, policies.cluster_policy), replay.arrivals)
        self.cluster = cluster
        self.shares: list[QueueShare] = []
        self.evicted = self.reservation_count = 0
        self.queues = [choose_queue(arrival.pod, config) for arrival in replay.arrivals]
        self.kinds = [cluster.get_kind(arrival.pod, card_policy) for arrival in replay.arrivals]
        self.find_placeable(self.kinds)
        able = (number for number, kind in enumerate(self.kinds) if self._possible[kind])
        self._pods = PodObjects(replay.arrivals, self.queues, able)
        self._reclaimer = Reclaimer(self.queue)
        self._names = tuple(config.queues)
        self._numbers: dict[str, int] = {}
        self._uids: dict[int, str] = {}
        self._runs: dict[str, Running] = {}
        self._made = 0
        self._since: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._without_cards: list[int] = []

    def add_pod(self, number: int, kind: SimulatedPodKind) -> None:
        """Let a pod wait, and admit what can be admitted."""
        if not self._possible[kind]:
            self.record.impossible.add(number)
            return
        now = self.arrivals[number].at_s
        self._add_waiting(number, now)
        if self._could_admit(number):
            self._backfill(now, set())
        else:
            self._reclaim_and_reserve(now)
        if self.record.placed_s[number] is None:
            self.record.turned_away.append(number)
            self._placer.record_unplaced(kind, str(number))

    def _could_admit(self, number: int) -> bool:
        """Tell whether a pod that has come changes anything: nobody else could be admitted before."""
        pod = self.queue.queued_pods.get(self._uids[number])
        capacity = self.queue.capacity
        if pod is None or pod.requirements is None or capacity.held_back or capacity.policies.backlog_readers:
            return True
        return bool(capacity.mask_fits(pod.requirements).any())

    def remove_pod(self, ended: Running) -> None:
        self._remove_running(ended, phase="Succeeded")

    def record_sample(self, at: float) -> None:
        """Note how the cluster and the queues are from a moment on."""
        super().record_sample(at)
        if self.shares and self.shares[-1].at_s == at:
            self.shares.pop()
        queues = [self.queue.queues[name] for name in self._names]
        used = tuple(queue.units for queue in queues)
        self.shares.append(QueueShare(at, used, tuple(len(queue.waiting) for queue in queues)))

    # Pods.

    def _add_waiting(self, number: int, now: float) -> None:
        """Create a pod, or create one again that was evicted."""
        kind = self.kinds[number]
        self._since[number] = now
        self._waiting += 1
        self._waiting_milli += kind.requested_milli
        # Pods wait in the order of their UIDs where nothing else tells them apart.
        self._made += 1
        uid = self._uids[number] = f"{self._made:012}"
        self._numbers[uid] = number
        if kind.query is None:
            self._without_cards.append(number)
            return
        pod = self._pods.make(number, uid, kind)
        self._state.apply_pod(pod, now)
        self.queue.apply_pod(pod, now, live=True)
        queued_pod = self.queue.queued_pods[uid]
        refusal = self.queue.refusals.explain(queued_pod)
        if refusal:
            raise SettingsError(f"pod {self.arrivals[number].pod.name!r} of the pod list: {refusal}")

    def _start_pod(self, number: int, place: PlacedPod, now: float) -> None:
        kind, runs = self.kinds[number], self.arrivals[number].runs_s
        running = Running(math.inf if runs is None else now + runs, number, kind, place)
        self._runs[self._uids[number]] = running
        self._record_start(running)
        self._placer.record_placed(kind, str(number))
        self._used += place.units
        self._waiting -= 1
        self._waiting_milli -= kind.requested_milli
        # What counts is how long it waited in all; an evicted pod waits more than once.
        waited = self._waited[number] = self._waited.get(number, 0.0) + now - self._since[number]
        self.record.placed_s[number] = self.arrivals[number].at_s + waited

    def _remove_running(self, running: Running, phase: str) -> None:
        number = running.number
        uid = self._uids.pop(number)
        now = running.ends_s
        del self._numbers[uid], self._runs[uid]
        if self.arrivals[number].pod.job:
            pod = self._pods.make(number, uid, running.kind, node=self._get_node(running), phase=phase)
            self._state.apply_pod(pod, now)
            self.queue.apply_pod(pod, now)
        else:
            pod = self._pods.make(number, uid, running.kind, node=self._get_node(running))
        self._state.delete_pod(pod, self._pods.version, now)
        self.queue.delete_pod(uid, now)
        self._placer.record_gone(str(number))
        self._used -= running.place.units

    def _get_node(self, running: Running) -> str:
        return self._state.nodes.names[running.place.row]

    # Who is admitted.

    def _backfill(self, now: float, rows: set[int]) -> None:  # noqa: ARG002
        """Admit until nobody can be; then reserve cards for those that have waited too long."""
        self._place_without_cards(now)
        self._admit_workloads(now)
        self._reclaim_and_reserve(now)

    def _reclaim_and_reserve(self, now: float) -> None:
        while self._evict_victims(now):
            self._admit_workloads(now)
        self.reservation_count += len(self.queue.update_reservations(now))

    def _admit_workloads(self, now: float) -> None:
        for workload in list(self.queue.admit_workloads(now)):
            for member in workload.members:
                assumed = self._state.get_assumed(member.uid)
                if assumed is None or assumed.assigned is None:
                    raise StateError(f"pod {member.uid} is admitted without cards; allowed: with some")
                number, row = self._numbers[member.uid], self._state.nodes.rows[assumed.node]
                kind = self.kinds[number]
                pod = self._pods.make(number, member.uid, kind, node=assumed.node, assigned=assumed.assigned)
                charge: dict[int, int] = {}
                positions = {uuid: card for card, uuid in enumerate(self._state.nodes.uuids[row])}
                for shares in assumed.assigned.values():
                    for uuid, units in shares:
                        charge[positions[uuid]] = charge.get(positions[uuid], 0) + units
                self._state.apply_pod(pod, now)
                self.queue.apply_pod(pod, now, live=True)
                self._start_pod(number, PlacedPod(row, ChosenCards(charge)), now)

    def _evict_victims(self, now: float) -> bool:
        """Evict whoever the queue names, and make them again; return True if that was anybody."""
        plans = self._reclaimer.find_plans(now)
        while not plans and self._reclaimer.has_more:
            plans = self._reclaimer.find_plans(now)
        victims = [victim.uid for plan in plans for victim in plan.victims]
        for uid in victims:
            running = self._runs[uid]
            self._running.remove(running)
            self._remove_running(running._replace(ends_s=now), phase="Failed")
            self.evicted += 1
            self._add_waiting(running.number, now)
        heapq.heapify(self._running)
        return bool(victims)

    def _place_without_cards(self, now: float) -> None:
        """Bind the pods that ask for no card, the oldest first."""
        stuck: set[SimulatedPodKind] = set()
        left: list[int] = []
        for number in self._without_cards:
            kind, uid = self.kinds[number], self._uids[number]
            row = "" if kind in stuck else self._placer.find_row(kind, str(number))
            if isinstance(row, str):
                stuck.add(kind)
                left.append(number)
                continue
            self._state.apply_pod(self._pods.make(number, uid, kind, node=self._state.nodes.names[row]), now)
            self._start_pod(number, PlacedPod(row, ChosenCards()), now)
        self._without_cards = left


def _for_every_namespace(config: QueueConfig) -> QueueConfig:
    """Open all queues to every namespace: a trace has none."""
    queues = {
        name: msgspec.structs.replace(form, namespace_selector=None) for name, form in config.queues.items()
    }
    return msgspec.structs.replace(config, queues=queues)
