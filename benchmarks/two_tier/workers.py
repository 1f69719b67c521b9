"""Batches through both tiers: pre-schedulers in processes over shared arrays, one committer.

A worker takes a pod's number and brings its copy of the nodes up to date. Then the worker filters, scores and
answers with the best nodes (list 1). The committer, in the calling process, takes the lists as they come.
"""

import multiprocessing
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from allocator.place import Placement
from allocator.request import PodRequest
from benchmarks.two_tier.shared_arrays import SharedRows
from benchmarks.two_tier.turns import PodTurn, TurnQueue
from scheduler_plugin.binding.two_tier import ScoredNode, commit_list
from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy, score_nodes
from scheduler_plugin.scheduling.ranking import rank_best
from scheduler_plugin.scheduling.request import SchedulingRequest, make_learning_request

_START_S: Final = 120.0
_PATIENCE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A pod of a batch: what it asks of cards, and besides."""

    request: PodRequest
    amounts: Amounts = NOTHING


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How a batch is scheduled.

    Attributes:
        workers: Pre-scheduling processes.
        node_policy, card_policy: For pods that name none of their own.
        parameters: Parameters of the node policy, text by name.
        shortlist: Nodes in a list.
        attempts: Turns a pod gets.
        backoff_s: Wait after its first failure, doubled each time.
        mode: `on-epoch` scores nodes anew that were scored with other weights, `on-version` does not.
        prepare_wait_s: Seconds that pre-scheduling a pod waits besides, for measurements.
    """

    workers: int = 2
    node_policy: str = DEFAULT_NODE_POLICY
    card_policy: str = DEFAULT_CARD_POLICY
    parameters: Mapping[str, str] = field(default_factory=dict)
    shortlist: int = 16
    attempts: int = 5
    backoff_s: float = 0.05
    mode: Literal["on-epoch", "on-version"] = "on-epoch"
    prepare_wait_s: float = 0.0


@dataclass(slots=True)
class BatchResult:
    """What became of a batch.

    Attributes:
        placed: Node and cards by the job's number.
        failed: Jobs that had all their turns.
        conflicts: Nodes that had changed between list 1 and its commit.
        lists: Lists committed, retries included.
        wall_s: Seconds from the first pod handed out to the last commit.
    """

    placed: dict[int, tuple[str, Placement]] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    conflicts: int = 0
    lists: int = 0
    wall_s: float = 0.0


Bind = Callable[[int, str, Placement], bool]


def schedule(nodes: NodeArrays, jobs: Sequence[Job], settings: BatchSettings, bind: Bind) -> BatchResult:
    """Schedule a batch. Blocks until every job is placed or has failed.

    Args:
        nodes: The cluster; pods placed are added to `assumed` and to what is requested. Has the further
            resources that policies are to see.
        jobs: The pods.
        settings: How.
        bind: Binds a job to a node's cards, or says no.

    Raises:
        SettingsError: fewer than one worker, or workers that die or do not start.
        PolicyError: an unknown policy or bad parameters.
    """
    if settings.workers < 1:
        raise SettingsError(f"{settings.workers} workers; allowed: 1 or more")
    committer = Committer(nodes, jobs, settings, bind)
    turns = TurnQueue(len(jobs), settings.attempts, settings.backoff_s)
    shared = SharedRows(nodes)
    committer.shared = shared
    pool = _Pool(nodes, jobs, settings, shared.name)
    try:
        pool.wait_until_ready()
        return _run(pool, committer, turns)
    finally:
        pool.stop()
        shared.close()


def _run(pool: "_Pool", committer: "Committer", turns: TurnQueue) -> BatchResult:
    result = BatchResult()
    start = time.monotonic()
    out: dict[int, PodTurn] = {}
    while turns or out:
        now = time.monotonic()
        # Two a worker: one in work, one waiting for it.
        while len(out) < 2 * pool.workers and (turn := turns.pop_due(now)) is not None:
            out[turn.pod] = turn
            pool.hand_out(turn.pod)
        if not out:
            time.sleep(max(0.0, turns.get_next_due_s() - now))
            continue
        number, offered = pool.answer()
        turn = out.pop(number)
        node, placement, conflicts = committer.commit(number, offered)
        result.lists += 1
        result.conflicts += conflicts
        if node is not None and placement is not None:
            result.placed[number] = (node, placement)
        elif not turns.requeue_failed(turn, time.monotonic()):
            result.failed.append(number)
    result.wall_s = time.monotonic() - start
    return result


class Committer:
    """The second tier: re-checks, re-scores and takes cards on the latest records."""

    def __init__(self, nodes: NodeArrays, jobs: Sequence[Job], settings: BatchSettings, bind: Bind) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._settings = settings
        self._bind = bind
        self._policies = ClusterPolicies(settings.node_policy, settings.card_policy, settings.parameters)
        self.shared: SharedRows | None = None

    def commit(self, number: int, offered: list[ScoredNode]) -> tuple[str | None, Placement | None, int]:
        """Commit one list: node, cards and how many nodes had changed."""
        job, nodes = self._jobs[number], self._nodes
        query = _query(self._policies, nodes, job, str(number))
        policy = self._policies.get_policy(job.request)
        placements: dict[str, Placement] = {}
        # No node to score, but weights that depend on the whole cluster are brought up to date.
        policy.score(nodes, make_learning_request(nodes, query, np.arange(0)), np.zeros(0, dtype=np.intp))

        def version(node: str) -> int | None:
            row = nodes.rows.get(node)
            return None if row is None else int(nodes.version[row])

        def rescore(node: str) -> float | None:
            row = np.array([nodes.rows[node]], dtype=np.intp)
            if not _fits(nodes, query, row).size:
                return None
            return float(score_nodes(policy, nodes, query, row)[0])

        def bind(node: str) -> bool:
            placement = place_by_policy(policy, nodes, nodes.rows[node], query)
            if placement is None or not self._bind(number, node, placement):
                return False
            placements[node] = placement
            self._take(nodes.rows[node], job, placement, policy.epoch)
            return True

        conflicts = sum(version(candidate.node) != candidate.version for candidate in offered)
        if self._settings.mode == "on-version":
            offered = [replace(candidate, epoch=policy.epoch) for candidate in offered]
        chosen, _ = commit_list(offered, version, rescore, bind, epoch=policy.epoch)
        if chosen is None:
            self._policies.record_attempt(nodes, query, None)
        for learner in self._policies.learners if chosen is not None else ():
            row = np.array([nodes.rows[chosen or ""]], dtype=np.intp)
            learner.pod_resolved(str(number), make_learning_request(nodes, query, row))
        return chosen, placements.get(chosen or ""), conflicts

    def _take(self, row: int, job: Job, placement: Placement, epoch: int) -> None:
        nodes = self._nodes
        taken = nodes.assumed[row, : nodes.cards[row]].tolist()
        for card, units in placement.charge.items():
            taken[card] += units
        nodes.set_assumed(row, taken)
        nodes.amounts.add_requested(row, job.amounts)
        if self.shared is not None:
            self.shared.publish(row, epoch)


class _Pool:
    """The first tier's processes and their two queues."""

    def __init__(self, nodes: NodeArrays, jobs: Sequence[Job], settings: BatchSettings, shared: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers = settings.workers
        self._tasks: Any = context.Queue()
        self._answers: Any = context.Queue()
        self._processes = [
            context.Process(
                target=_work,
                args=(nodes, list(jobs), settings, shared, self._tasks, self._answers),
                daemon=True,
            )
            for _ in range(settings.workers)
        ]
        for process in self._processes:
            process.start()

    def wait_until_ready(self) -> None:
        """Wait until every worker has joined the shared memory."""
        for _ in self._processes:
            self.answer()

    def hand_out(self, number: int) -> None:
        """Give a pod to whichever worker is free next."""
        self._tasks.put(number)

    def answer(self) -> tuple[int, list[ScoredNode]]:
        """Take the next list.

        Raises:
            SettingsError: a worker has died.
        """
        until = time.monotonic() + _START_S
        while True:
            try:
                answer: tuple[int, list[ScoredNode]] = self._answers.get(timeout=_PATIENCE_S)
            except queue.Empty:
                dead = [process.exitcode for process in self._processes if process.exitcode is not None]
                if dead or time.monotonic() > until:
                    raise SettingsError(
                        f"pre-scheduling workers: {len(dead)} of {self.workers} ended with {dead}; "
                        f"allowed: an answer within {_START_S:g} s"
                    ) from None
            else:
                return answer

    def stop(self) -> None:
        """End all workers."""
        for _ in self._processes:
            self._tasks.put(None)
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        for each in (self._tasks, self._answers):
            each.close()
            each.cancel_join_thread()


def _work(
    nodes: NodeArrays, jobs: list[Job], settings: BatchSettings, shared_name: str, tasks: Any, answers: Any
) -> None:
    """A worker's life: one pod after the other until told to stop."""
    policies = ClusterPolicies(settings.node_policy, settings.card_policy, settings.parameters)
    shared = SharedRows(nodes, shared_name)
    try:
        answers.put((-1, []))
        while (number := tasks.get()) is not None:
            if settings.prepare_wait_s:
                time.sleep(settings.prepare_wait_s)
            epoch = shared.snapshot()
            answers.put(
                (number, prepare(policies, nodes, jobs[number], settings.shortlist, epoch, str(number)))
            )
    finally:
        shared.close()


def prepare(
    policies: ClusterPolicies, nodes: NodeArrays, job: Job, shortlist: int, epoch: int, pod: str = ""
) -> list[ScoredNode]:
    """Tier 1 for one pod: filter, score, and the best nodes with their versions (list 1).

    Args:
        policies: Policies of the batch.
        nodes: A snapshot.
        job: The pod.
        shortlist: Nodes in the list.
        epoch: Weights epoch of the snapshot.
        pod: Names the pod to policies that count attempts.
    """
    query = _query(policies, nodes, job, pod)
    rows = _fits(nodes, query, np.flatnonzero(nodes.usable))
    scores = score_nodes(policies.get_policy(job.request), nodes, query, rows)
    first = rank_best(scores, nodes.name_rank[rows], shortlist)
    if rows.size:
        policies.record_attempt(nodes, query, int(rows[first[0]]) if len(first) else None)
    return [
        ScoredNode(nodes.names[row], score, version, epoch)
        for row, score, version in zip(
            rows[first].tolist(), scores[first].tolist(), nodes.version[rows[first]].tolist(), strict=True
        )
    ]


def _query(policies: ClusterPolicies, nodes: NodeArrays, job: Job, pod: str) -> SchedulingRequest:
    return policies.make_request(nodes, job.request, job.amounts, pod)


def _fits(nodes: NodeArrays, query: SchedulingRequest, rows: RowArray) -> RowArray:
    """Rows that have the cards, and what is asked for beside them."""
    fits = nodes.amounts.mask_fits(query.policy_request.amounts, rows)
    return rows[filter_nodes(nodes, query, rows) & fits]
