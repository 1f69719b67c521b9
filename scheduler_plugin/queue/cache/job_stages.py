"""Stages of jobs: which pods of first stages have not succeeded, and how many are still to be made. Pure.

A pod of the second stage waits until the first stage has ended. The pods that exist do not say whether it
has: pods of a first stage may still be created, one after the other. So the queue uses three sources: the
annotation gpupack.io/first-stage-size, the Jobs that create the pods, and the pods themselves.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeVar

from allocator.names import POD_FIRST_STAGE_SIZE
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.jobs import PodMaker
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.cache.waiting import SlotType

T = TypeVar("T", bound=Hashable)

TO_COME: Final = "pods to come"
"""Stands among the unfinished pods of a job's first stage while some of them are not known."""


class _StagePart(Enum):
    """The part that a pod plays in its job."""

    FIRST = auto()
    """A pod of the first stage that has not ended."""
    ENDING = auto()
    """A pod of the first stage that is being deleted: another one may be there in its place already."""
    FAILED = auto()
    """A pod of the first stage that has failed: its job waits for whatever is made in its place."""
    DONE = auto()
    """A pod of the first stage that has succeeded."""
    WAITS = auto()
    """A pod of the second stage that waits for its admission."""
    REST = auto()
    """A pod of the second stage that does not wait."""


_UNFINISHED: Final = frozenset({_StagePart.FIRST, _StagePart.ENDING})
_FIRST_STAGE: Final = _UNFINISHED | {_StagePart.FAILED, _StagePart.DONE}


@dataclass(frozen=True, slots=True)
class _StagePod:
    """A pod that names a job.

    Attributes:
        job: Its job, told apart by namespace.
        part: What it is for its job.
        size: Pods of the first stage, as its annotation says; None without one.
    """

    name: str
    job: str
    queue: str
    part: _StagePart
    maker: str
    size: int | None


@dataclass(slots=True)
class _FirstStage:
    """The first stage of one job, and who waits for it.

    Attributes:
        pods: How many pods that name the job exist, of both stages.
        sizes: How many of the existing pods state each size.
        made: Pods of the first stage that exist, by the UID of their Job.
        parts: The same pods by the part they play, and by the UID of their Job.
        done: Pods that have succeeded, by the UID of their Job; also those that are gone.
        needed: Pods that have to succeed, by the UID of their Job: the largest number seen at one time. So a
            pod that was deleted before it succeeded counts as missing until another one replaces it.
        makers: Jobs whose pods name the job, by UID; of both stages.
        lost: UIDs of Jobs that are gone.
        complete: UIDs of those among them that were complete: their other pods need not succeed.
        waiting: Pods of the second stage that wait for their admission, by queue.
        blocked_queues: Queues whose second stage is held because pods of the first are still to be created.
    """

    pods: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    parts: Counter[tuple[_StagePart, str]] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    needed: Counter[str] = field(default_factory=Counter)
    makers: dict[str, PodMaker] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    complete: set[str] = field(default_factory=set)
    waiting: Counter[str] = field(default_factory=Counter)
    blocked_queues: set[str] = field(default_factory=set)

    def count(self, maker: str, *parts: _StagePart) -> int:
        return sum(self.parts[part, maker] for part in parts)

    def record_needed(self, maker: str) -> None:
        """Record how many pods of a Job have to succeed; an empty `maker` stands for pods without a Job."""
        if maker not in self.complete:
            pods = self.done[maker] + self.count(maker, _StagePart.FIRST)
            self.needed[maker] = max(self.needed[maker], pods)

    def explain_uncounted(self, jobs: Collection[str], name: str) -> str:
        """Say which pods are missing that no known Job accounts for; empty if none are."""
        others = {*self.made, *self.needed, *self.done} - set(jobs)
        missing = sum(
            max(
                0,
                self.needed[maker] - self.done[maker] - self.count(maker, *_UNFINISHED, _StagePart.FAILED),
            )
            for maker in others
        )
        if missing:
            pods = "1 pod with data is" if missing == 1 else f"{missing} pods with data are"
            others_in = "another one in its" if missing == 1 else "others in their"
            return (
                f"{pods} gone without success, and {others_in} place must succeed; where none comes,"
                f" {POD_FIRST_STAGE_SIZE} says how many must"
            )
        if jobs or self.made or any(self.done.values()):
            return ""
        none = f"where it has none, {POD_FIRST_STAGE_SIZE}: 0 says so"
        return f"no pod with data of job {name} is known yet; {none}"


class JobStages:
    """The stages of all jobs. A job is remembered while a pod or a Job that names it exists.

    A pod may be moved to another queue, job or data while it waits or runs. So we remember where each pod was
    counted, and uncount it there.

    Attributes:
        failed: Names of failed pods, by UID: a job waits until others replace them.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.failed: dict[str, str] = {}
        self._pods: dict[str, _StagePod] = {}
        self._stages: dict[str, _FirstStage] = {}
        self._counted: dict[str, tuple[str, str]] = {}
        self._ended_badly: set[str] = set()
        self._jobs: dict[str, PodMaker] = {}
        self._jobs_known = False

    @property
    def pod_uids(self) -> Collection[str]:
        return self._pods.keys()

    def update_pod(self, pod: QueuedPod) -> None:
        """Add or update a pod that waits or runs."""
        if pod.kind is SlotType.LOCAL:
            part = _StagePart.ENDING if pod.queue_info.ending else _StagePart.FIRST
        else:
            part = _StagePart.WAITS if pod.phase is Phase.GATED else _StagePart.REST
        self._set_part(pod.record, pod.queue_info, part)

    def end_pod(self, record: PodRecord, queue_info: PodQueueInfo, *, succeeded: bool) -> None:
        part = _StagePart.DONE if succeeded else _StagePart.FAILED
        self._set_part(record, queue_info, part if queue_info.data else _StagePart.REST)

    def forget_pod(self, uid: str) -> None:
        """Forget a deleted pod; its success, if any, stays counted."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._remove_part(uid, pod, gone=True)
            self._update_second_stage(pod.job)

    def set_jobs(self, jobs: Iterable[PodMaker]) -> None:
        """Replace the known Jobs."""
        self._jobs_known = True
        listed = {job.uid: job for job in jobs}
        for uid in [uid for uid in self._jobs if uid not in listed]:
            self.remove_job(uid)
        for job in listed.values():
            self.set_job(job)
        for name in list(self._stages):
            self._update_second_stage(name)

    def set_job(self, job: PodMaker) -> bool:
        """Add or update a Job; return True if a stage depends on it."""
        old = self._jobs.get(job.uid)
        if old == job:
            return False
        if old is not None and old.job != job.job:
            self.remove_job(job.uid)
        self._jobs[job.uid] = job
        if job.job:
            stage = self._stages.setdefault(job.job, _FirstStage())
            stage.makers[job.uid] = job
        return self._update_made_by(job.uid, job.job)

    def remove_job(self, uid: str) -> bool:
        """Forget a deleted Job; return True if a stage depended on it."""
        job = self._jobs.pop(uid, None)
        if job is None:
            return False
        for name, stage in self._stages.items():
            if name == job.job or uid in stage.made:
                stage.makers.pop(uid, None)
                stage.lost.add(uid)
                if job.reads_data:
                    stage.done[uid] = max(stage.done[uid], job.succeeded)
                if not job.missing:
                    stage.complete.add(uid)
                    del stage.needed[uid]
        return self._update_made_by(uid, job.job)

    def configure(self) -> None:
        """Recount all pods after the configuration of the queues has changed."""
        for uid, (queue, job) in self._counted.items():
            self._queues[queue].waiting.begin_first_stage(uid, job)
        for job, stage in self._stages.items():
            for queue in stage.blocked_queues:
                self._queues[queue].waiting.begin_first_stage(TO_COME, job)

    def explain_missing(self, job: str) -> str:
        """Say what a first stage still lacks, apart from its known unfinished pods; empty if nothing."""
        stage = self._stages.get(job, _FirstStage())
        makers = [uid for uid in stage.made if uid] + [
            uid for uid, maker in stage.makers.items() if maker.reads_data and uid not in stage.made
        ]
        known = [self._jobs[uid] for uid in makers if uid in self._jobs]
        size = max(stage.sizes, default=None)
        if size is not None:
            by_jobs = {maker.uid: maker.succeeded for maker in known}
            done = sum(max(by_jobs.get(uid, 0), stage.done[uid]) for uid in {*by_jobs, *stage.done})
            if done < size:
                return f"{done} of {size} pods have succeeded, by {POD_FIRST_STAGE_SIZE}"
        elif not self._jobs_known:
            return "the Jobs of the cluster are not known yet"
        elif unknown := [uid for uid in makers if uid not in self._jobs and uid not in stage.lost]:
            names = (pod.name for pod in self._pods.values() if (pod.job, pod.maker) == (job, unknown[0]))
            return f"the Job that made pod {next(names)} is not known yet"
        elif why := stage.explain_uncounted({maker.uid for maker in known}, job):
            return why
        return next((maker.missing for maker in known if maker.missing), "")

    def _set_part(self, record: PodRecord, queue_info: PodQueueInfo, part: _StagePart) -> None:
        uid = record.uid
        new = None
        if queue_info.job:
            name, job = record.full_name, f"{record.namespace}/{queue_info.job}"
            new = _StagePod(name, job, queue_info.queue, part, queue_info.maker, queue_info.first_stage_size)
        old = self._pods.get(uid)
        if old == new:
            return
        if new is not None:
            # First the new one: what both have in common is not forgotten in between.
            self._pods[uid] = new
            self._add_part(new)
        if old is not None:
            self._remove_part(uid, old)
            if old.part in _FIRST_STAGE and not _is_of_same_stage(old, new):
                # It has left the stage, and is not lost.
                needed = self._stages[old.job].needed
                needed[old.maker] = max(0, needed[old.maker] - 1)
        if new is not None:
            self._stages[new.job].record_needed(new.maker)
        if new is None:
            self._pods.pop(uid, None)
        for job in {pod.job for pod in (old, new) if pod is not None}:
            self._update_second_stage(job)
        self._update_count(uid)

    def _add_part(self, pod: _StagePod) -> None:
        stage = self._stages.setdefault(pod.job, _FirstStage())
        stage.pods += 1
        if pod.size is not None:
            stage.sizes[pod.size] += 1
        if pod.part in _FIRST_STAGE:
            stage.made[pod.maker] += 1
            stage.parts[pod.part, pod.maker] += 1
        if pod.part is _StagePart.DONE:
            stage.done[pod.maker] += 1
        if pod.part is _StagePart.WAITS:
            stage.waiting[pod.queue] += 1

    def _remove_part(self, uid: str, pod: _StagePod, *, gone: bool = False) -> None:
        stage = self._stages[pod.job]
        stage.pods -= 1
        if pod.size is not None:
            _count_down(stage.sizes, pod.size)
        if pod.part in _FIRST_STAGE:
            _count_down(stage.made, pod.maker)
            _count_down(stage.parts, (pod.part, pod.maker))
        if pod.part is _StagePart.DONE and not gone:
            _count_down(stage.done, pod.maker)
        if pod.part is _StagePart.WAITS:
            _count_down(stage.waiting, pod.queue)
        if uid not in self._pods:
            self._update_count(uid)

    def _update_count(self, uid: str) -> None:
        pod = self._pods.get(uid)
        failed = pod is not None and pod.part is _StagePart.FAILED
        (self._ended_badly.add if failed else self._ended_badly.discard)(uid)
        self.failed.pop(uid, None)
        new = None
        # Whatever a Job makes in the place of a failed pod is among its completions.
        if pod is not None and (pod.part in _UNFINISHED or (failed and pod.maker not in self._jobs)):
            new = (pod.queue, pod.job)
            if failed:
                self.failed[uid] = pod.name
        old = self._counted.get(uid)
        if new is not None:
            self._counted[uid] = new
            self._queues[new[0]].waiting.begin_first_stage(uid, new[1])
        if old is not None and old != new:
            if new is None:
                del self._counted[uid]
            self._finish_pod(uid, *old)

    def _finish_pod(self, uid: str, queue: str, job: str) -> None:
        self._queues[queue].waiting.finish_first_stage(uid, job)
        self._queues.forget_if_unused(queue)

    def _update_made_by(self, maker: str, job: str) -> bool:
        for uid in [uid for uid in self._ended_badly if self._pods[uid].maker == maker]:
            self._update_count(uid)
        names = [name for name, stage in self._stages.items() if name == job or maker in stage.made]
        for name in names:
            self._update_second_stage(name)
        return bool(names)

    def _update_second_stage(self, job: str) -> None:
        stage = self._stages.get(job)
        if stage is None:
            return
        lacks = bool(stage.waiting) and bool(self.explain_missing(job))
        blocked = set(stage.waiting) if lacks else set()
        for queue in blocked - stage.blocked_queues:
            self._queues[queue].waiting.begin_first_stage(TO_COME, job)
        before, stage.blocked_queues = stage.blocked_queues, blocked
        for queue in before - blocked:
            self._finish_pod(TO_COME, queue, job)
        if not stage.pods and not stage.makers:
            del self._stages[job]


def _is_of_same_stage(old: _StagePod, new: _StagePod | None) -> bool:
    return new is not None and new.part in _FIRST_STAGE and (new.job, new.maker) == (old.job, old.maker)


def _count_down(counts: Counter[T], key: T) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
