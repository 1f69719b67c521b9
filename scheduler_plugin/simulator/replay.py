"""A replay: pods come and end at the trace's own times; who finds no place waits.

First come, first served, with backfill, as kube-scheduler does it for pods of one priority. Whenever pods
have ended, those that wait are tried in the order in which they came. A pod that still does not fit keeps
none of the later ones back. From the moment at which it is placed a pod runs as long as it did in the trace.
"""

import heapq
import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_plugin.scheduling.policies.registry import NodePolicy
from scheduler_plugin.simulator.arrivals import Arrival
from scheduler_plugin.simulator.cluster import SimulatedCluster, SimulatedPodKind
from scheduler_plugin.simulator.placer import HELD, PlacedPod, Placer


class Sample(NamedTuple):
    """The cluster from a moment on: units in use, pods that wait, cards' thousandths they ask for."""

    at_s: float
    used: int
    waiting: int
    waiting_milli: int


@dataclass(slots=True)
class ReplayRecord:
    """Record of a replay.

    Attributes:
        samples: A sample for each moment at which something changed, in order.
        placed_s: When each arrival was placed; None: never.
        turned_away: Numbers of the arrivals that found no place when they came, and waited.
        impossible: Numbers of those that no node could take even when it is empty; they do not wait.
    """

    samples: list[Sample] = field(default_factory=list)
    placed_s: list[float | None] = field(default_factory=list)
    turned_away: list[int] = field(default_factory=list)
    impossible: set[int] = field(default_factory=set)


class Running(NamedTuple):
    """A pod that ends; sorted by when, then in the order of arrival."""

    ends_s: float
    number: int
    kind: SimulatedPodKind
    place: PlacedPod


class ReplayState:
    """The state of one replay; who waits is tried in the order of arrival."""

    def __init__(self, cluster: SimulatedCluster, placer: Placer, arrivals: Sequence[Arrival]) -> None:
        self.record = ReplayRecord(placed_s=[None] * len(arrivals))
        self._cluster = cluster
        self._placer = placer
        self.arrivals = arrivals
        self._running: list[Running] = []
        self._queues: dict[SimulatedPodKind, deque[int]] = {}
        self._held: set[SimulatedPodKind] = set()
        self._possible: dict[SimulatedPodKind, bool] = {}
        self._used = self._waiting = self._waiting_milli = 0

    def add_pod(self, number: int, kind: SimulatedPodKind) -> None:
        if not self._possible[kind]:
            self.record.impossible.add(number)
            return
        now = self.arrivals[number].at_s
        self._placer.count_waiting(now, self._list_waiting)
        # A pod of the same kind that waits comes first, and it has just found no place.
        if self._queues.get(kind) or not self._place_pod(number, kind, now):
            self._queues.setdefault(kind, deque()).append(number)
            self._waiting += 1
            self._waiting_milli += kind.requested_milli
            self.record.turned_away.append(number)
            if kind in self._held:
                self._backfill(now, set())

    def find_placeable(self, kinds: Iterable[SimulatedPodKind]) -> None:
        """Find out which pods an empty cluster can take, before the first one arrives."""
        for kind in kinds:
            if kind not in self._possible:
                self._possible[kind] = bool(self._cluster.filter_rows(kind).size)

    def run_until(self, now: float) -> None:
        """Let everything end that ends at a time or before."""
        while self._running and self._running[0].ends_s <= now:
            at = self._running[0].ends_s
            rows: set[int] = set()
            while self._running and self._running[0].ends_s == at:
                ended = heapq.heappop(self._running)
                self.remove_pod(ended)
                rows.add(ended.place.row)
            self._backfill(at, rows)
            self.record_sample(at)

    def remove_pod(self, ended: Running) -> None:
        self._placer.remove_pod(ended.kind, ended.place, str(ended.number))
        self._used -= ended.place.units

    def record_sample(self, at: float) -> None:
        sample = Sample(at, self._used, self._waiting, self._waiting_milli)
        if self.record.samples and self.record.samples[-1].at_s == at:
            self.record.samples.pop()
        self.record.samples.append(sample)

    def _backfill(self, now: float, rows: set[int]) -> None:
        """Try those that wait, oldest first; only rows where something ended can have become free enough."""
        self._placer.count_waiting(now, self._list_waiting)
        queues = self._queues
        ready = [
            (queue[0], order, kind)
            for order, (kind, queue) in enumerate(queues.items())
            if kind in self._held or any(self._cluster.can_place(kind, row) for row in rows)
        ]
        heapq.heapify(ready)
        while ready:
            number, order, kind = heapq.heappop(ready)
            if not self._place_pod(number, kind, now):
                continue
            queue = queues[kind]
            queue.popleft()
            self._waiting -= 1
            self._waiting_milli -= kind.requested_milli
            if queue:
                heapq.heappush(ready, (queue[0], order, kind))
            else:
                del queues[kind]

    def _list_waiting(self) -> dict[SimulatedPodKind, list[str]]:
        return {kind: [str(number) for number in queue] for kind, queue in self._queues.items()}

    def _place_pod(self, number: int, kind: SimulatedPodKind, now: float) -> bool:
        placed = self._placer.place_pod(kind, str(number))
        if not isinstance(placed, PlacedPod):
            (self._held.add if placed == HELD else self._held.discard)(kind)
            return False
        self._held.discard(kind)
        self.record.placed_s[number] = now
        self._used += placed.units
        runs = self.arrivals[number].runs_s
        ends = math.inf if runs is None else now + runs
        self._record_start(Running(ends, number, kind, placed))
        return True

    def _record_start(self, pod: Running) -> None:
        heapq.heappush(self._running, pod)


def run_replay(
    cluster: SimulatedCluster,
    policy: NodePolicy,
    card_policy: str,
    arrivals: Sequence[Arrival],
) -> ReplayRecord:
    """Run one replay, until the last pod that waits has been placed or nothing ends any more."""
    kinds = [cluster.get_kind(arrival.pod, card_policy) for arrival in arrivals]
    return run_arrivals(ReplayState(cluster, Placer(cluster, policy), arrivals), kinds)


def run_arrivals(replaying: ReplayState, kinds: Sequence[SimulatedPodKind]) -> ReplayRecord:
    """Let all arrivals come, and wait for what can still be placed."""
    replaying.find_placeable(kinds)
    for number, (arrival, kind) in enumerate(zip(replaying.arrivals, kinds, strict=True)):
        replaying.run_until(arrival.at_s)
        replaying.add_pod(number, kind)
        replaying.record_sample(arrival.at_s)
    replaying.run_until(sys.float_info.max)
    return replaying.record
