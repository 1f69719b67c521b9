"""Loop of the queue: decides whenever something has changed, writes the decisions, and explains waits."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from kubeapi.client import CONNECTIONS
from kubeapi.correlation import EventType, make_pod_ref
from kubeapi.events import BUSY_S
from scheduler_plugin.queue.cache.lending import sort_by_launch_order
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod, Requeue, RequeueWrite
from scheduler_plugin.queue.config.queues import QueueConfig, explain_overcommit
from scheduler_plugin.queue.controller.batch_client import CommitterClient
from scheduler_plugin.queue.controller.batch_handover import Handed, Handover
from scheduler_plugin.queue.controller.explainer import EventSink, Explainer
from scheduler_plugin.queue.controller.writer import PodWriter, WriteOutcome, WriteResult
from scheduler_plugin.queue.scheduler.admission import AdmittedPod, AdmittedWorkload
from scheduler_plugin.queue.scheduler.queue import Queue
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer, ReclaimPlan

BATCH: Final = 64
"""Admissions that are decided before their writes begin; then other work of the process has its turn."""

COMMITS: Final = 2
"""Calls of the committer at once: while it sends the Bindings of one, it chooses the cards of the next."""

TICK_S: Final = 1.0

CHECK_EVERY_S: Final = 5.0
"""How often what follows from time alone is checked while nothing changes and nothing is under way."""

_REQUEUED: Final = {
    RequeueWrite.NOTHING: "its room is given to others",
    RequeueWrite.MARK: "it waits in its queue again",
    RequeueWrite.REMOVE: "it is removed and waits again",
}

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class QueueCounts:
    """Counters since the start, by queue.

    Attributes:
        borrowed: Those of them admitted on borrowed quota or a lent turn.
        requeued: Pods whose room was given to others again.
        reclaimed: Pods that were evicted for a lender.
    """

    admitted: dict[str, int] = field(default_factory=dict)
    borrowed: dict[str, int] = field(default_factory=dict)
    requeued: dict[str, int] = field(default_factory=dict)
    reclaimed: dict[str, int] = field(default_factory=dict)


class Controller:
    """Runs a queue.

    Attributes:
        warning: What the configuration promises that this cluster cannot keep, empty for nothing.
    """

    def __init__(
        self,
        queue: Queue,
        writer: PodWriter,
        recorder: EventSink,
        clock: Callable[[], float],
        ready: Callable[[], bool],
        decided: Callable[[float], None] = lambda _seconds: None,
        batch: CommitterClient | None = None,
    ) -> None:
        self.queue = queue
        self.counts = QueueCounts()
        self.warning = ""
        self._writer = writer
        self._recorder = recorder
        self._clock = clock
        self._ready = ready
        self._decided = decided
        self._news = asyncio.Event()
        self._handover = Handover(queue, batch)
        queue.batch.enabled = batch is not None
        self._commit_turns = asyncio.Semaphore(COMMITS)
        self._writes: set[asyncio.Task[Any]] = set()
        self._doubts: set[asyncio.Task[None]] = set()
        self._wrote = float("-inf")
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self.explainer = Explainer(queue, recorder, clock)
        self._changed = False
        self._reclaimer = Reclaimer(queue)

    def configure(self, config: QueueConfig) -> None:
        self.queue.configure(config)
        self.record_change()

    def record_change(self) -> None:
        self._changed = True
        self._news.set()

    def begin_term(self) -> None:
        """Start to decide: this process leads."""
        self.queue.begin_term(self._clock())
        self.explainer.forget_reports()
        self.record_change()

    @property
    def is_busy(self) -> bool:
        """Whether admissions are being written to the API server, or admitted pods are being bound."""
        return bool(self._writes) or self._clock() - max(self._wrote, self.queue.seen_bound) < BUSY_S

    @property
    def _is_idle(self) -> bool:
        return not (self._changed or self._writes) and self._clock() < self.queue.refusals.next_end_s

    async def run(self) -> None:
        next_tick = next_check = self._clock()
        try:
            while True:
                try:
                    async with asyncio.timeout(TICK_S):
                        await self._news.wait()
                except TimeoutError:
                    pass
                self._news.clear()
                if not self._ready():
                    # Who stands by sees all pods too.
                    self.queue.forget_unused()
                    continue
                if not self._is_idle or self._clock() >= next_check:
                    next_check = self._clock() + CHECK_EVERY_S
                    await self._admit_all()
                    if self._clock() >= next_tick:
                        next_tick = self._clock() + TICK_S
                        self._run_once()
                if self.explainer.continue_round():
                    self._news.set()
                # News may be there already; others of this process have their turn all the same.
                await asyncio.sleep(0)
        finally:
            for task in (*self._writes, *self._doubts):
                task.cancel()

    async def _admit_all(self) -> None:
        """Decide, in batches, until nobody can be admitted."""
        decisions, is_over = self.queue.admit_workloads(self._clock()), False
        while self._ready() and not is_over:
            began = self._clock()
            batch: list[AdmittedWorkload] = []
            for admitted in decisions:
                batch.append(admitted)
                self._handover.record_candidates(admitted)
                self._decided(self._clock() - began)
                began = self._clock()
                if len(batch) == BATCH:
                    break
            else:
                self._decided(self._clock() - began)
                is_over = True
            if not batch:
                return
            by_uid = {admitted.workload.uid: admitted for admitted in batch}
            workloads = [admitted.workload for admitted in batch]
            groups: list[list[Handed]] = []
            for task in sort_by_launch_order(workloads, plain=self.queue.config.plain_launch):
                handed, rest = self._handover.split_admission(by_uid[task.uid])
                groups += [handed] if handed else []
                for member in rest:
                    self._begin_admission(by_uid[task.uid], member)
            if groups:
                self._begin_write(self._commit_groups(groups))
            while len(self._writes) >= CONNECTIONS:
                await asyncio.wait(self._writes, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    async def _commit_groups(self, groups: Sequence[Sequence[Handed]]) -> None:
        async with self._commit_turns:
            answers = await self._handover.commit_groups(groups)
        for handed, answer in answers:
            pod = self.queue.queued_pods.get(handed.member.uid)
            if pod is not None and answer.written is WriteOutcome.UNKNOWN:
                task = asyncio.create_task(self._resolve(handed, pod, answer.why))
                self._doubts.add(task)
                task.add_done_callback(self._doubts.discard)
            elif pod is not None:
                self._record_result(handed.admission, handed.member, pod, answer)

    async def _resolve(self, handed: Handed, pod: QueuedPod, why: str) -> None:
        """Find out what became of a pod that may have been bound; until then it keeps room and quota."""
        log.info("not known whether it was bound", pod=pod.record.full_name, why=why)
        answer = await self._writer.find_node(pod)
        known = self.queue.queued_pods.get(pod.uid)
        if known is not None:
            answer = WriteResult(WriteOutcome.DONE) if known.phase is Phase.BOUND else answer
            self._record_result(
                handed.admission, handed.member, known, answer._replace(why=answer.why or why)
            )

    def _begin_admission(self, admitted: AdmittedWorkload, member: AdmittedPod) -> None:
        self._begin_write(self._write_admission(admitted, member))

    def _begin_write(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    async def _write_admission(self, admitted: AdmittedWorkload, member: AdmittedPod) -> None:
        pod = self.queue.queued_pods.get(member.uid)
        if pod is None:
            return
        names_node = self.queue.config.mode == "batch" and self.queue.may_name_node(pod)
        node = member.node if admitted.names_node or names_node else ""
        async with self._turns:
            cards = self.queue.list_planned_cards(member.uid)
            answer = (
                WriteResult(WriteOutcome.REFUSED)
                if self.queue.is_outdated(pod, node)
                else await self._writer.admit_pod(pod, node, cards, member.others)
            )
        self._record_result(admitted, member, pod, answer)

    def _record_result(
        self, admitted: AdmittedWorkload, member: AdmittedPod, pod: QueuedPod, answer: WriteResult
    ) -> None:
        self._wrote = self._clock()
        if answer.written is not WriteOutcome.DONE:
            outcome = answer.written.name.lower()
            log.info(
                "not admitted",
                pod=pod.record.full_name,
                queue=admitted.queue,
                outcome=outcome,
                why=answer.why,
            )
            self.queue.record_refused_admission(member.uid, self._clock(), answer.why, answer.rejected)
            if answer.why and pod.phase is Phase.GATED:
                self.explainer.explain_pod(pod)
            self.record_change()
            return
        pod.ungated = True
        message = format_decision(admitted, member)
        self.explainer.forget_pod(member.uid)
        counts = self.counts
        counts.admitted[admitted.queue] = counts.admitted.get(admitted.queue, 0) + 1
        if admitted.borrowed or admitted.lender:
            counts.borrowed[admitted.queue] = counts.borrowed.get(admitted.queue, 0) + 1
        self._send_event(pod, "Normal", "Admitted", message)
        log.info("admitted", pod=pod.record.full_name, queue=admitted.queue, node=member.node, why=message)

    def _run_once(self) -> None:
        now = self._clock()
        self._check_quotas()
        self._begin_requeues(self.queue.find_requeues(now))
        for reclaim in self._reclaimer.find_plans(now):
            self._evict_victims(reclaim)
        for pod, node in self.queue.update_reservations(now):
            long = "its gang waits long and finds no room" if pod.gang else "it waits long and fits nowhere"
            message = f"{long}: cards of node {node} are reserved for it"
            self._send_event(pod, "Normal", "CardsReserved", message)
            log.info("cards reserved", pod=pod.record.full_name, queue=pod.queue_info.queue, node=node)
        self.explainer.begin_round(changed=self._changed)
        self._changed = False
        self.queue.forget_unused()

    def _check_quotas(self) -> None:
        warning = explain_overcommit(self.queue.config, int(self.queue.state.nodes.size.sum()))
        if warning and not self.warning:
            log.warning("quotas are over the cluster", why=warning)
        self.warning = warning

    def _evict_victims(self, reclaim: ReclaimPlan) -> None:
        """Evict those who borrowed what a lender needs."""
        for group in reclaim.groups:
            first, *others = group.pods
            evicted = self._begin_reclaiming(first, reclaim.queue)
            if others:
                self._begin_write(self._evict_others(others, reclaim.queue, evicted))

    async def _evict_others(
        self, pods: Sequence[QueuedPod], lender: str, first: asyncio.Task[WriteOutcome]
    ) -> None:
        if await first is not WriteOutcome.REFUSED:
            for pod in pods:
                self._begin_reclaiming(pod, lender)
            return
        for pod in pods:
            self._reclaimer.record_refusal(lender, pod.uid, self._clock())

    def _begin_reclaiming(self, pod: QueuedPod, lender: str) -> asyncio.Task[WriteOutcome]:
        why = f"queue {lender} needs what queue {pod.queue_info.queue} borrowed"
        return self._begin_removing(pod, why, partial(self._report_reclaim, pod, lender, why), lender)

    def _report_reclaim(self, pod: QueuedPod, lender: str, why: str) -> None:
        borrower = pod.queue_info.queue
        goes = "the pod is evicted, with all of its gang" if pod.gang else "the pod is evicted"
        self._send_event(pod, "Warning", "Reclaimed", f"{why}: {goes}")
        self.counts.reclaimed[borrower] = self.counts.reclaimed.get(borrower, 0) + 1
        log.info("reclaimed", pod=pod.record.full_name, queue=borrower, lender=lender)

    def _begin_requeues(self, requeues: Sequence[Requeue]) -> None:
        for requeue in requeues:
            pod, queue = requeue.queued_pod, requeue.queued_pod.queue_info.queue
            if requeue.is_first:
                self.counts.requeued[queue] = self.counts.requeued.get(queue, 0) + 1
            if requeue.removes:
                self._begin_removing(pod, requeue.why, partial(self._report_requeue, requeue))
            elif requeue.write is RequeueWrite.MARK:
                self._begin_write(self._write_requeue(requeue))
            else:
                self._report_requeue(requeue)

    def _report_requeue(self, requeue: Requeue) -> None:
        pod, queue = requeue.queued_pod, requeue.queued_pod.queue_info.queue
        self._send_event(pod, "Warning", "Requeued", f"{requeue.why}: {_REQUEUED[requeue.write]}")
        log.warning(
            "requeued", pod=pod.record.full_name, queue=queue, why=requeue.why, removed=requeue.removes
        )

    def _begin_removing(
        self, pod: QueuedPod, why: str, report: Callable[[], None], lender: str = ""
    ) -> asyncio.Task[WriteOutcome]:
        return self._begin_write(self._write_eviction(pod, why, report, lender, pod.phase))

    async def _write_requeue(self, requeue: Requeue) -> None:
        pod = requeue.queued_pod
        async with self._turns:
            if pod.phase is not Phase.ADMITTED:
                return
            answer = await self._writer.requeue_pod(pod)
        if answer.written is WriteOutcome.DONE:
            self._report_requeue(requeue)
        if answer.why:
            log.warning("not requeued", pod=pod.record.full_name, queue=pod.queue_info.queue, why=answer.why)
            if answer.written is WriteOutcome.REFUSED:
                message = f"{requeue.why}, but the API server refuses to requeue it: {answer.why}"
                self._send_event(pod, "Warning", "NotRequeued", message)

    async def _write_eviction(
        self, pod: QueuedPod, why: str, report: Callable[[], None], lender: str, phase: Phase
    ) -> WriteOutcome:
        """Evict a pod; without an answer it counts as evicted once the pod is seen leaving.

        Args:
            why: Why it is to go.
            report: Says that it goes.
            phase: The pod's when that was decided: a pod without a gang that has got a node since then stays.
        """

        def is_wanted() -> bool:
            return pod.phase is phase or bool(pod.gang)

        async with self._turns:
            if not is_wanted():
                return WriteOutcome.REFUSED
            answer = await self._writer.evict_pod(pod, is_wanted)
        if answer.written in {WriteOutcome.DONE, WriteOutcome.UNKNOWN}:
            report()
        if answer.written in {WriteOutcome.REFUSED, WriteOutcome.UNKNOWN}:
            stays = answer.written is WriteOutcome.REFUSED
            self._reclaimer.record_refusal(lender, pod.uid, self._clock(), stays=stays)
            if stays:
                self.queue.record_refused_removal(pod.uid)
            log.warning("not removed", pod=pod.record.full_name, queue=pod.queue_info.queue, why=answer.why)
            if stays and answer.why:
                message = f"{why}, but the API server refuses to remove it: {answer.why}"
                self._send_event(pod, "Warning", "NotRemoved", message)
        known = self.queue.queued_pods.get(pod.uid)
        return WriteOutcome.DONE if known is None or known.queue_info.ending else answer.written

    def _send_event(self, pod: QueuedPod, type_: EventType, reason: str, message: str) -> None:
        record = pod.record
        self._recorder.event(make_pod_ref(record.namespace, record.name, record.uid), type_, reason, message)


def format_decision(admitted: AdmittedWorkload, member: AdmittedPod) -> str:
    parts = [f"admitted from queue {admitted.queue} for node {member.node}"]
    if admitted.slot_match is not None:
        parts.append(
            f"case {admitted.slot_match.value} ({admitted.slot_match.name.lower().replace('_', ' ')})"
        )
    if admitted.relaxed:
        parts.append("its data is elsewhere")
    if admitted.lender:
        parts.append(f"it was the turn of queue {admitted.lender}, which has no pod that fits here")
    if admitted.borrowed:
        parts.append(f"{admitted.borrowed} units are borrowed")
    return "; ".join(parts)
