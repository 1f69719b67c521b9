"""A replay through the borrowing queue: who waits is tried in the order that `gpupack queue` has.

Queues, weights, quotas with lending and borrowing, strategies and stops are the queue's own code. A trace
says nothing of data, jobs and gangs, so slots and locality have no part here; nor have evictions and room
that is kept. Pods run as long as in the trace from when they are placed.
"""

import zlib
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.config import QueueConfig
from scheduler_plugin.queue.lending import Tenant, by_share, pick
from scheduler_plugin.queue.quota import Account, Cohort, cohorts_of
from scheduler_plugin.queue.waiting import Group, Kind, Task, Waiting
from scheduler_plugin.simulator.arrivals import Arrival
from scheduler_plugin.simulator.cluster import Cluster, PodKind
from scheduler_plugin.simulator.placer import Placer
from scheduler_plugin.simulator.replay import Replaying, Running
from scheduler_plugin.simulator.trace import TracePod

SHOWN: Final = 10


class Share(NamedTuple):
    """The queues from a moment on, each in the configuration's order: units in use, pods that wait."""

    at_s: float
    used: tuple[int, ...]
    waiting: tuple[int, ...]


class SimTenant:
    """One queue of a replay.

    Attributes:
        name: Its name.
        weight: Its share beside the others.
        allocated: Units of its pods that run.
        waiting: Its pods that wait.
    """

    def __init__(self, name: str, weight: float, *, strict: bool, is_open: bool) -> None:
        self.name = name
        self.weight = weight
        self.allocated = 0.0
        self.waiting: Waiting[PodKind] = Waiting()
        self.strict = strict
        self.is_open = is_open


def without_borrowing(config: QueueConfig) -> QueueConfig:
    """The same queues, each with its own quota only."""
    queues = {name: msgspec.structs.replace(form, borrowing_limit=0) for name, form in config.queues.items()}
    return msgspec.structs.replace(config, queues=queues)


def check(config: QueueConfig, pods: Iterable[TracePod]) -> None:
    """Check that a trace can be replayed through queues.

    Raises:
        SettingsError: the configuration has slots, or a pod names a queue that is not in it.
    """
    if config.slots is not None:
        raise SettingsError(
            "queues with slots cannot be replayed: a trace says nothing of data; allowed is none"
        )
    unknown = sorted({pod.queue for pod in pods if pod.queue} - set(config.queues))
    if unknown:
        names = ", ".join(sorted(config.queues)[:SHOWN])
        raise SettingsError(f"queue {unknown[0]!r} of the pod list is not configured: allowed are {names}")


def queue_of(pod: TracePod, config: QueueConfig) -> str:
    """The queue of a pod: the one it names, else one by a hash of its name, as often as the weights say."""
    if pod.queue:
        return pod.queue
    names = list(config.queues)
    ends = list(accumulate(form.weight for form in config.queues.values()))
    at = zlib.crc32(pod.name.encode()) / 2**32 * ends[-1]
    return names[min(bisect(ends, at), len(names) - 1)]


class QueuedReplaying(Replaying):
    """The state of one replay through queues.

    Args:
        cluster: Empty.
        placer: Places pods on it.
        arrivals: In order of their times.
        config: The queues; amounts are units of the cluster's cards.
    """

    def __init__(
        self, cluster: Cluster, placer: Placer, arrivals: Sequence[Arrival], config: QueueConfig
    ) -> None:
        super().__init__(cluster, placer, arrivals)
        self.shares: list[Share] = []
        self.queues = [queue_of(arrival.pod, config) for arrival in arrivals]
        self.tenants = {
            name: SimTenant(
                name, form.weight, strict=form.strategy == "StrictFIFO", is_open=form.stop == "None"
            )
            for name, form in config.queues.items()
        }
        roots = cohorts_of(((name, form.cohort) for name, form in config.queues.items()), config.parents)
        accounts: dict[str, dict[str, Account]] = {}
        for name, root in roots.items():
            accounts.setdefault(root, {})[name] = Account(config.queues[name].quota)
        cohorts = {root: Cohort(members) for root, members in accounts.items()}
        self._cohorts = {name: cohorts[root] for name, root in roots.items()}
        self._stuck: set[PodKind] = set()

    def arrive(self, number: int, kind: PodKind) -> None:
        """Let a pod wait, and release what can be released."""
        if not self._possible[kind]:
            self.story.impossible.add(number)
            return
        now = self.arrivals[number].at_s
        task = Task(f"{number:09}", Kind.FREE, now, kind)
        self.tenants[self.queues[number]].waiting.add(task)
        self._waiting += 1
        self._waiting_milli += kind.asked
        self._backfill(now, set())
        if self.story.placed_s[number] is None:
            self.story.turned_away.append(number)

    def end(self, ended: Running) -> None:
        """Take a pod away that has ended."""
        super().end(ended)
        self._use(self.queues[ended.number], -ended.kind.units)

    def sample(self, at: float) -> None:
        """Note how the cluster and the queues are from a moment on."""
        super().sample(at)
        if self.shares and self.shares[-1].at_s == at:
            self.shares.pop()
        tenants = self.tenants.values()
        used = tuple(int(tenant.allocated) for tenant in tenants)
        self.shares.append(Share(at, used, tuple(len(tenant.waiting) for tenant in tenants)))

    def _backfill(self, now: float, rows: set[int]) -> None:
        """Release until nobody can be; a kind that fitted nowhere is tried again where something ended."""
        self._stuck = {
            kind
            for kind in self._stuck
            if kind not in self._held and not any(self._cluster.fits(kind, row) for row in rows)
        }

        def may(tenant: Tenant[PodKind], group: Group[PodKind]) -> bool:
            kind = group.key.wants
            if kind in self._stuck or not self._cohorts[tenant.name].allows(tenant.name, kind.units):
                return False
            return not self.tenants[tenant.name].strict or _oldest(tenant.waiting) is group

        while True:
            order = by_share(each for each in self.tenants.values() if each.is_open and len(each.waiting))
            choice = pick(None, order, near=lambda _tenant, _group: True, may=may, locality=False)
            if choice is None:
                return
            kind = choice.task.wants
            if not self._try(int(choice.task.uid), kind, now):
                self._stuck.add(kind)
                continue
            self.tenants[choice.tenant].waiting.remove(choice.task.uid)
            self._use(choice.tenant, kind.units)
            self._waiting -= 1
            self._waiting_milli -= kind.asked

    def _use(self, name: str, units: int) -> None:
        self.tenants[name].allocated += units
        self._cohorts[name].use(name, units)


def _oldest(waiting: Waiting[PodKind]) -> Group[PodKind] | None:
    return min(waiting.groups(Kind.FREE), key=lambda group: group.oldest().age_key, default=None)
