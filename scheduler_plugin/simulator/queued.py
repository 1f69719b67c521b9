"""Pods of a trace that go through the borrowing queue, without a cluster: who is released when, and where.

Order, quotas with lending and borrowing, strategies and stops, slots, locality and stages of jobs are the
queue's own code. Pods run as long as in the trace from when they are placed; an evicted one begins anew.
"""

import heapq
import zlib
from bisect import bisect
from collections.abc import Collection, Iterable
from itertools import accumulate, chain
from typing import Final, NamedTuple

import msgspec
import numpy as np

from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.cache.lending import LendingQueue, pick_workload, sort_by_share
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WaitingWorkloads, WorkloadGroup
from scheduler_plugin.queue.capacity.dominant_share import QueueResources, find_dominant
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.config.quota import Cohort, QuotaState, find_cohorts
from scheduler_plugin.queue.scheduler.reservation_delay import compute_delay_s
from scheduler_plugin.simulator.arrivals import Replay
from scheduler_plugin.simulator.cluster import SimulatedCluster, SimulatedPodKind
from scheduler_plugin.simulator.placer import Placer
from scheduler_plugin.simulator.queued_places import SimulatedPlaces
from scheduler_plugin.simulator.queued_room import SimulatedReservations, victims, with_quota
from scheduler_plugin.simulator.replay import ReplayState, Running
from scheduler_plugin.simulator.trace import TracePod

SHOWN: Final = 10

LOOKED_AT: Final = 16
"""Tasks of a queue, of different needs, for which it is looked at one time who could be evicted."""


class QueueShare(NamedTuple):
    """The queues from a moment on, each in the configuration's order: units in use, pods that wait."""

    at_s: float
    used: tuple[int, ...]
    waiting: tuple[int, ...]


class SimulatedQueue:
    """One queue of a replay.

    Attributes:
        name: Its name.
        weight: Its share beside the others.
        has: What its pods have that run.
        cluster: All that there is, where its dominant share counts; else None.
        waiting: Its pods that wait.
    """

    def __init__(
        self,
        name: str,
        weight: float,
        *,
        strict: bool,
        is_open: bool,
        count_slots: bool,
        cluster: QueueResources | None = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.has = QueueResources()
        self.cluster = cluster
        self.pods = 0
        self.waiting: WaitingWorkloads[SimulatedPodKind] = WaitingWorkloads()
        self.strict = strict
        self.is_open = is_open
        self._count_slots = count_slots

    @property
    def allocated(self) -> float:
        """What it has: its dominant share where that counts, pods where there are slots, else units."""
        if self.cluster is not None:
            return find_dominant(self.has, self.cluster)[1]
        return self.pods if self._count_slots else self.units

    @property
    def units(self) -> int:
        """Units of its pods that run."""
        return self.has.units


def without_borrowing(config: QueueConfig) -> QueueConfig:
    """The same queues, each with its own quota only."""
    queues = {name: msgspec.structs.replace(form, borrowing_limit=0) for name, form in config.queues.items()}
    return msgspec.structs.replace(config, queues=queues)


def check(config: QueueConfig, pods: Iterable[TracePod]) -> None:
    """Check that a trace can be replayed through queues.

    Raises:
        SettingsError: a pod names a queue that is not in the configuration.
    """
    unknown = sorted({pod.queue for pod in pods if pod.queue} - set(config.queues))
    if unknown:
        names = ", ".join(sorted(config.queues)[:SHOWN])
        raise SettingsError(f"queue {unknown[0]!r} of the pod list is not configured; allowed: {names}")


def queue_of(pod: TracePod, config: QueueConfig) -> str:
    """The queue of a pod: the one it names, else one by a hash of its name, as often as the weights say."""
    if pod.queue:
        return pod.queue
    names = list(config.queues)
    ends = list(accumulate(form.weight for form in config.queues.values()))
    at = zlib.crc32(pod.name.encode()) / 2**32 * ends[-1]
    return names[min(bisect(ends, at), len(names) - 1)]


class QueuedReplayState(ReplayState):
    """The state of one replay through queues.

    Args:
        cluster: Empty.
        placer: Places pods on it.
        replay: Nodes, in the order of the cluster's rows, and arrivals in order of their times.
        config: The queues; amounts are units of the cluster's cards.

    Attributes:
        evicted: Pods that were evicted for a lender.
        kept: Times that cards were kept free for a pod that waited long.
        cluster_units: Units of all cards.
    """

    def __init__(
        self, cluster: SimulatedCluster, placer: Placer, replay: Replay, config: QueueConfig
    ) -> None:
        super().__init__(cluster, placer, replay.arrivals)
        self.shares: list[QueueShare] = []
        self.evicted = self.kept = 0
        self.cluster_units = cluster.units
        self.queues = [queue_of(arrival.pod, config) for arrival in replay.arrivals]
        self.tenants = {
            name: SimulatedQueue(
                name,
                form.weight,
                strict=form.is_strict,
                is_open=form.stop_policy == "None",
                count_slots=config.slots is not None,
                cluster=cluster.resources if config.fair_sharing == "dominant" else None,
            )
            for name, form in config.queues.items()
        }
        roots = find_cohorts(((name, form.cohort) for name, form in config.queues.items()), config.parents)
        accounts: dict[str, dict[str, QuotaState]] = {}
        for name, root in roots.items():
            accounts.setdefault(root, {})[name] = QuotaState(config.queues[name].quota)
        cohorts = {root: Cohort(members) for root, members in accounts.items()}
        self._cohorts = {name: cohorts[root] for name, root in roots.items()}
        self._config = config
        self._places = SimulatedPlaces(config, replay.nodes)
        self._room = SimulatedReservations(cluster)
        self._runs: dict[int, Running] = {}
        self._began_s: dict[int, float] = {}
        self._began_units = 0.0
        self._waited: dict[int, float] = {}
        self._stuck: set[SimulatedPodKind] = set()
        # A second stage waits for those of its first one, too, that have not arrived yet.
        for number, arrival in enumerate(replay.arrivals):
            if arrival.pod.data:
                self.tenants[self.queues[number]].waiting.begin_first_stage(f"{number:09}", arrival.pod.job)

    def arrive(self, number: int, kind: SimulatedPodKind) -> None:
        """Let a pod wait, and release what can be released."""
        if not self._possible[kind]:
            self.story.impossible.add(number)
            self._finish(number)
            return
        now = self.arrivals[number].at_s
        self._wait(number, kind, now)
        self._backfill(now, set())
        if self.story.placed_s[number] is None:
            self.story.turned_away.append(number)

    def remove_pod(self, ended: Running) -> None:
        """Take a pod away that has ended."""
        super().remove_pod(ended)
        self._leave(ended)
        self._finish(ended.number)

    def sample(self, at: float) -> None:
        """Note how the cluster and the queues are from a moment on."""
        super().sample(at)
        if self.shares and self.shares[-1].at_s == at:
            self.shares.pop()
        tenants = self.tenants.values()
        used = tuple(tenant.units for tenant in tenants)
        self.shares.append(QueueShare(at, used, tuple(len(tenant.waiting) for tenant in tenants)))

    def _wait(self, number: int, kind: SimulatedPodKind, since: float) -> None:
        pod = self.arrivals[number].pod
        task = QueuedWorkload(
            f"{number:09}", SlotType.LOCAL if pod.data else SlotType.FREE, since, kind, pod.data, pod.job
        )
        self.tenants[self.queues[number]].waiting.add(task)
        self._waiting += 1
        self._waiting_milli += kind.asked

    def _finish(self, number: int) -> None:
        """Nobody waits for a pod any more."""
        self.tenants[self.queues[number]].waiting.finish_first_stage(
            f"{number:09}", self.arrivals[number].pod.job
        )

    def _leave(self, pod: Running) -> None:
        """A pod runs no more."""
        del self._runs[pod.number]
        self._began_units -= self._began_s.pop(pod.number) * pod.kind.units
        self._places.vacate(str(pod.number))
        self._use(self.queues[pod.number], pod, -1)

    def _began(self, pod: Running) -> None:
        super()._began(pod)
        self._runs[pod.number] = pod

    # Who is released.

    def _backfill(self, now: float, rows: set[int]) -> None:
        """Release until nobody can be; a kind that fitted nowhere is tried again where something ended."""
        self._placer.count_waiting(now, self._waiting_uids)
        self._room.charge_freed()
        self._unstick(rows)
        while self._release_kept(now) or self._release_next(now) or self._reclaim(now):
            pass
        self._keep_room(now)

    def _waiting_uids(self) -> dict[SimulatedPodKind, list[str]]:
        found: dict[SimulatedPodKind, list[str]] = {}
        for tenant in self.tenants.values():
            for task in tenant.waiting:
                found.setdefault(task.requirements, []).append(str(int(task.uid)))
        return found

    def _unstick(self, rows: set[int]) -> None:
        """Kinds that fitted nowhere are tried again where they fit on one of these rows now."""
        self._stuck = {
            kind
            for kind in self._stuck
            if kind not in self._held and not any(self._cluster.fits(kind, row) for row in rows)
        }

    def _release_kept(self, now: float) -> bool:
        """Release a pod onto what was kept for it."""
        for uid, row in self._room.list_ready():
            name = self.queues[int(uid)]
            task = self.tenants[name].waiting.get(uid)
            if task is None or not self._may(self.tenants[name], task.requirements, row):
                continue
            self._room.remove(uid)
            self._unstick({row})
            if self._release(name, task, now, self._only({row})):
                return True
        return False

    def _release_next(self, now: float) -> bool:
        """Offer the cluster, or an idle slot, to the tenants in their order."""
        order = sort_by_share(each for each in self.tenants.values() if each.is_open and len(each.waiting))
        if not self._places.has_slots:
            return self._offer(None, None, order, now)
        for near_only in (True, False) if self._places.by_data else (False,):
            for row in range(self._cluster.arrays.row_count):
                for slot in self._places.idle(row):
                    if self._offer(slot, row, order, now, near_only=near_only):
                        return True
        return False

    def _offer(
        self,
        slot: SlotType | None,
        row: int | None,
        order: list[SimulatedQueue],
        now: float,
        *,
        near_only: bool = False,
    ) -> bool:
        """Offer a slot of a type on a row, or the whole cluster; whether somebody was released.

        With `near_only` nobody goes whose data is elsewhere.
        """
        unplaced: set[SimulatedPodKind] = set()

        def may(tenant: LendingQueue[SimulatedPodKind], group: WorkloadGroup[SimulatedPodKind]) -> bool:
            kind = group.key.requirements
            if kind in self._stuck or kind in unplaced:
                return False
            return self._may(self.tenants[tenant.name], kind, row, group)

        def near(_tenant: LendingQueue[SimulatedPodKind], group: WorkloadGroup[SimulatedPodKind]) -> bool:
            data = group.key.data
            if row is not None:
                return self._places.is_near(data, row)
            return bool(self._near(data)[self._cluster.filter_rows(group.key.requirements)].any())

        while True:
            choice = pick_workload(slot, order, near=near, may=may, locality=self._places.by_data)
            if choice is None or (near_only and choice.relaxed):
                return False
            among = None if row is None else self._only({row})
            if among is None and choice.workload.data and self._places.by_data and not choice.relaxed:
                among = self._near(choice.workload.data)
            if self._release(choice.queue, choice.workload, now, among):
                return True
            (self._stuck if among is None else unplaced).add(choice.workload.requirements)

    def _may(
        self,
        tenant: SimulatedQueue,
        kind: SimulatedPodKind,
        row: int | None,
        group: WorkloadGroup[SimulatedPodKind] | None = None,
    ) -> bool:
        """Whether quota, order and, where a row is given, slots and room of that row let a pod go."""
        if not tenant.is_open or not self._cohorts[tenant.name].allows_units(tenant.name, kind.units):
            return False
        if row is not None and group is not None and not self._cluster.fits(kind, row):
            return False
        if row is not None and self._places.has_slots and not self._places.idle(row):
            return False
        return group is None or not tenant.strict or _oldest(tenant.waiting) is group

    def _release(
        self, name: str, task: QueuedWorkload[SimulatedPodKind], now: float, among: BoolArray | None
    ) -> bool:
        number, kind = int(task.uid), task.requirements
        if not self._try(number, kind, now, among):
            return False
        self.tenants[name].waiting.remove(task.uid)
        self._room.remove(task.uid)
        self._began_s[number] = now
        self._began_units += now * kind.units
        self._places.occupy(str(number), self._runs[number].place.row, task.kind)
        self._use(name, self._runs[number], 1)
        self._waiting -= 1
        self._waiting_milli -= kind.asked
        # What counts is how long it waited in all; an evicted pod waits more than once.
        waited = self._waited.pop(number, 0.0) + now - task.since
        self.story.placed_s[number] = self.arrivals[number].at_s + waited
        self._waited[number] = waited
        return True

    def _only(self, rows: set[int]) -> BoolArray:
        among = np.zeros(self._cluster.arrays.row_count, dtype=np.bool_)
        among[list(rows)] = True
        return among

    def _near(self, data: frozenset[str]) -> BoolArray:
        return self._places.near(data, self._cluster.arrays.row_count)

    def _use(self, name: str, pod: Running, pods: int) -> None:
        """Count a pod that runs, or with -1 one that runs no more."""
        tenant, ask = self.tenants[name], pod.kind.ask
        tenant.has = tenant.has.plus(QueueResources(pod.place.units, ask.cpu_milli, ask.memory_bytes), pods)
        tenant.pods += pods
        self._cohorts[name].add_units(name, pods * pod.place.units)

    # Who waits long, and lenders.

    def _keep_room(self, now: float) -> None:
        """Keep cards for one pod of each queue that has waited too long and fits nowhere."""
        served = {self.queues[int(uid)] for uid in self._room.uids}
        least_s, most_s = self._config.keep_room_after_s, self._config.keep_room_at_latest_s
        units = sum(tenant.units for tenant in self.tenants.values())
        patience = compute_delay_s(now - self._began_units / units if units else 0.0, least_s, most_s)
        for name, tenant in self.tenants.items():
            group = _oldest(tenant.waiting) if name not in served and tenant.is_open else None
            if group is None or now - group.oldest().since < patience:
                continue
            kind = group.key.requirements
            if not self._cohorts[name].allows_units(name, kind.units) or self._cluster.filter_rows(kind).size:
                continue
            self.kept += self._room.reserve(group.oldest().uid, kind)

    def _reclaim(self, now: float) -> bool:
        """Evict what others borrowed of the oldest pod's queue, so that it fits; whether anybody was."""
        if self._config.reclaim != "evict":
            return False
        for name, tenant in self.tenants.items():
            borrowed = self._borrowed(self._cohorts[name], name) if tenant.is_open else []
            for task in _in_order(tenant) if borrowed else ():
                gone, row = self._who_goes(name, task.requirements, borrowed)
                for pod in gone:
                    self._evict(pod, now)
                self._unstick({pod.place.row for pod in gone})
                if gone and self._release(name, task, now, None if row is None else self._only({row})):
                    return True
                if gone:
                    break
        return False

    def _who_goes(
        self, name: str, kind: SimulatedPodKind, borrowed: list[Running]
    ) -> tuple[list[Running], int | None]:
        """The fewest that must go for a lender's pod, and the row where it fits then; none where in vain."""
        cohort = self._cohorts[name]

        def lacks(gone: Collection[Running]) -> int:
            freed: dict[str, int] = {}
            for pod in gone:
                queue = self.queues[pod.number]
                freed[queue] = freed.get(queue, 0) + pod.place.units
            return cohort.compute_missing(name, kind.units, freed)

        if not cohort.fits_nominal(name, kind.units):
            return [], None
        if self._cluster.filter_rows(kind).size:
            return with_quota([], borrowed, lacks) or [], None
        return victims(self._cluster, kind, borrowed, lacks) or ([], None)

    def _borrowed(self, cohort: Cohort, lender: str) -> list[Running]:
        """The pods with which others exceed their own quota, the youngest first."""
        found = []
        for name in cohort.list_borrowers(lender):
            left = cohort.accounts[name].borrowed
            mine = [pod for number, pod in self._runs.items() if self.queues[number] == name]
            for pod in sorted(mine, key=lambda pod: -pod.number):
                if left <= 0:
                    break
                left -= pod.place.units
                found.append(pod)
        return found

    def _evict(self, pod: Running, now: float) -> None:
        """Take a pod away; it is made again, and waits."""
        self._running.remove(pod)
        heapq.heapify(self._running)
        super().remove_pod(pod)
        self._leave(pod)
        self.evicted += 1
        self._wait(pod.number, pod.kind, now)


def _in_order(tenant: SimulatedQueue) -> list[QueuedWorkload[SimulatedPodKind]]:
    """The oldest task of each kind that order lets go, the oldest first; of a strict queue only that one."""
    groups = chain.from_iterable(tenant.waiting.list_groups(kind) for kind in SlotType)
    tasks = sorted((group.oldest() for group in groups), key=lambda task: task.age_key)
    return tasks[: 1 if tenant.strict else LOOKED_AT]


def _oldest(waiting: WaitingWorkloads[SimulatedPodKind]) -> WorkloadGroup[SimulatedPodKind] | None:
    groups = chain.from_iterable(waiting.list_groups(kind) for kind in SlotType)
    return min(groups, key=lambda group: group.oldest().age_key, default=None)
