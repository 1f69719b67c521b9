"""Waiting workloads of one queue, grouped by requirements, and the stages of their jobs. Pure."""

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from itertools import chain
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class SlotType(StrEnum):
    """The two classes of workloads, which are also the two types of slots."""

    LOCAL = "local"
    """Bound to data: a dataset, an image or a model on some node or rack. The first stage of a job."""
    FREE = "free"
    """Bound to no data. Such a pod runs once the first stage of its job has ended."""

    @property
    def other_type(self) -> "SlotType":
        return SlotType.FREE if self is SlotType.LOCAL else SlotType.LOCAL


@dataclass(frozen=True, slots=True)
class QueuedWorkload(Generic[W]):
    """A pod that waits for its admission.

    Attributes:
        waiting_since: When it began to wait, seconds.
        data: Names of the data that it reads; empty: every node is local.
    """

    uid: str
    kind: SlotType
    waiting_since: float
    requirements: W
    data: frozenset[str] = frozenset()
    job: str = ""

    @property
    def age_key(self) -> tuple[float, str]:
        """Sort key: longest waiting first, ties by UID."""
        return (self.waiting_since, self.uid)


@dataclass(frozen=True, slots=True)
class WorkloadGroupKey(Generic[W]):
    """Key of workloads that differ in nothing but age."""

    kind: SlotType
    requirements: W
    data: frozenset[str]


class WorkloadGroup(Generic[W]):
    """Workloads of one queue that differ in nothing but age; finding the oldest is cheap."""

    def __init__(self, key: WorkloadGroupKey[W]) -> None:
        self.key = key
        self._members: dict[str, QueuedWorkload[W]] = {}
        self._by_age: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[QueuedWorkload[W]]:
        return iter(self._members.values())

    def add(self, workload: QueuedWorkload[W]) -> None:
        self._members[workload.uid] = workload
        heappush(self._by_age, workload.age_key)

    def discard(self, uid: str) -> None:
        self._members.pop(uid, None)
        # The heap drops it when it comes up; so that it does not grow for ever, now and then all of them.
        if len(self._by_age) > 2 * len(self._members) + 16:
            self._by_age = sorted(workload.age_key for workload in self._members.values())

    def get_oldest(self) -> QueuedWorkload[W]:
        """Return the workload that has waited longest; the group must not be empty."""
        while True:
            since, uid = self._by_age[0]
            workload = self._members.get(uid)
            if workload is not None and workload.waiting_since == since:
                return workload
            heappop(self._by_age)


@dataclass(slots=True)
class _WaitingJob(Generic[W]):
    """Stages of a job.

    Attributes:
        unfinished: UIDs of first-stage workloads that have not ended, in the order in which they came.
        second: Waiting workloads of the second stage, eligible when `unfinished` is empty.
    """

    unfinished: dict[str, None] = field(default_factory=dict)
    second: dict[str, QueuedWorkload[W]] = field(default_factory=dict)


class WaitingWorkloads(Generic[W]):
    """The waiting workloads of one queue.

    A second-stage workload is eligible once its job has no unfinished first-stage workload; until then it is
    held. First-stage workloads count from `add` or `begin_first_stage` until `finish_first_stage`, also while
    they run.
    """

    def __init__(self) -> None:
        self._workloads: dict[str, QueuedWorkload[W]] = {}
        self._groups: dict[SlotType, dict[W, dict[frozenset[str], WorkloadGroup[W]]]] = {
            SlotType.LOCAL: {},
            SlotType.FREE: {},
        }
        self._jobs: dict[str, _WaitingJob[W]] = {}
        self._oldest: QueuedWorkload[W] | None = None

    def __len__(self) -> int:
        return len(self._workloads)

    def __contains__(self, uid: str) -> bool:
        return uid in self._workloads

    def __iter__(self) -> Iterator[QueuedWorkload[W]]:
        return iter(self._workloads.values())

    @property
    def has_workloads(self) -> bool:
        """Return True if workloads wait, or jobs have workloads that have not ended."""
        return bool(self._workloads or self._jobs)

    def get(self, uid: str) -> QueuedWorkload[W] | None:
        return self._workloads.get(uid)

    def list_known(self, uids: Collection[str]) -> list[QueuedWorkload[W]]:
        return [self._workloads[uid] for uid in uids if uid in self._workloads]

    def add(self, workload: QueuedWorkload[W]) -> None:
        """Add a waiting workload, replacing an earlier version of it."""
        self.remove(workload.uid)
        self._workloads[workload.uid] = workload
        if workload.kind is SlotType.LOCAL:
            self.begin_first_stage(workload.uid, workload.job)
        elif workload.job:
            job = self._jobs.setdefault(workload.job, _WaitingJob())
            job.second[workload.uid] = workload
            if job.unfinished:
                return
        self._add_to_group(workload)

    def remove(self, uid: str) -> None:
        """Remove a workload that was admitted or deleted; its first stage does not count it as finished."""
        workload = self._workloads.pop(uid, None)
        if workload is None:
            return
        self._remove_from_group(workload)
        job = self._jobs.get(workload.job)
        if job is not None:
            job.second.pop(uid, None)
            self._forget_empty(workload.job, job)

    def begin_first_stage(self, uid: str, job: str) -> None:
        """Count a first-stage workload, waiting or not, as unfinished."""
        if not job:
            return
        known = self._jobs.setdefault(job, _WaitingJob())
        if not known.unfinished:
            for workload in known.second.values():
                self._remove_from_group(workload)
        known.unfinished[uid] = None

    def finish_first_stage(self, uid: str, job: str) -> None:
        """Finish a first-stage workload; the last one of a job makes the second stage eligible."""
        known = self._jobs.get(job)
        if known is None or uid not in known.unfinished:
            return
        del known.unfinished[uid]
        if known.unfinished:
            return
        for workload in known.second.values():
            self._add_to_group(workload)
        self._forget_empty(job, known)

    def list_waiting_for_stage(self) -> Iterator[QueuedWorkload[W]]:
        return chain.from_iterable(job.second.values() for job in self._jobs.values() if job.unfinished)

    def list_unfinished(self, job: str) -> Collection[str]:
        """List the UIDs of the first-stage workloads that a job waits for, in order of arrival."""
        known = self._jobs.get(job)
        return known.unfinished.keys() if known is not None else ()

    def waits_for_stage(self, uid: str) -> bool:
        workload = self._workloads.get(uid)
        return (
            workload is not None
            and workload.kind is SlotType.FREE
            and bool(self.list_unfinished(workload.job))
        )

    def is_first_of_group(self, workload: QueuedWorkload[W]) -> bool:
        """Return True if a workload is the oldest of its group, which is admitted in order of age."""
        group = self._groups[workload.kind].get(workload.requirements, {}).get(workload.data)
        return group is not None and group.get_oldest().uid == workload.uid

    def list_oldest(self) -> Iterator[QueuedWorkload[W]]:
        for kind in SlotType:
            for group in self.list_groups(kind):
                yield group.get_oldest()

    def get_oldest(self) -> QueuedWorkload[W] | None:
        if self._oldest is None:
            self._oldest = min(self.list_oldest(), key=lambda workload: workload.age_key, default=None)
        return self._oldest

    def list_groups(self, kind: SlotType) -> Iterator[WorkloadGroup[W]]:
        return chain.from_iterable(by_data.values() for by_data in self._groups[kind].values())

    def _add_to_group(self, workload: QueuedWorkload[W]) -> None:
        self._oldest = None
        by_data = self._groups[workload.kind].setdefault(workload.requirements, {})
        group = by_data.get(workload.data)
        if group is None:
            group = by_data[workload.data] = WorkloadGroup(
                WorkloadGroupKey(workload.kind, workload.requirements, workload.data)
            )
        group.add(workload)

    def _remove_from_group(self, workload: QueuedWorkload[W]) -> None:
        self._oldest = None
        by_data = self._groups[workload.kind].get(workload.requirements, {})
        group = by_data.get(workload.data)
        if group is None:
            return
        group.discard(workload.uid)
        if not group:
            del by_data[workload.data]
            if not by_data:
                del self._groups[workload.kind][workload.requirements]

    def _forget_empty(self, name: str, job: _WaitingJob[W]) -> None:
        if not job.unfinished and not job.second:
            self._jobs.pop(name, None)
