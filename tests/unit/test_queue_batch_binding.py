"""Pods without a gate that name `gpupack-batch`: they wait, and go to the committer with a list."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER
from scheduler_plugin.binding.batch_protocol import CommitCall, CommitOutcome, PodResult
from scheduler_plugin.queue.cache.batch_pods import NO_COMMITTER, NOT_READ
from scheduler_plugin.queue.cache.queued_pods import Phase
from scheduler_plugin.queue.controller.batch_client import CommitFailedError
from scheduler_plugin.queue.controller.batch_handover import Handed, Handover
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.writer import PodWriter, WriteOutcome
from tests.batch_world import BatchWorld
from tests.queue_world import QueueWorld

BATCH = "mode: batch\nqueues: [{name: a}]"
SPEC: dict[str, Any] = {"schedulerName": BATCH_SCHEDULER, "containers": [{"name": "main"}]}


def batch_pod(world: QueueWorld, name: str, units: int = 1, *, read: bool = True, **more: Any) -> str:
    uid = world.pod(name, units, gates=(), spec={"schedulerName": BATCH_SCHEDULER}, **more)
    if read:
        world.queue.set_batch_spec(uid, SPEC)
    return uid


def batch_world(config: str = BATCH) -> QueueWorld:
    world = QueueWorld(config)
    world.queue.batch.enabled = True
    for name in ("n", "m"):
        world.node(name, (16, 16), allocatable_units=32)
    return world


class Committer:
    """Answers as told, and notes what it was handed."""

    def __init__(self, *outcomes: CommitOutcome | CommitFailedError) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[CommitCall] = []

    async def commit(self, call: CommitCall) -> Sequence[PodResult]:
        self.calls.append(call)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, CommitFailedError):
            raise outcome
        pods = [pod for group in call.groups for pod in group]
        return [PodResult(pod.uid, outcome, pod.nodes[0].node, "why") for pod in pods]


def test_a_pod_waits_until_its_whole_spec_was_read_and_somebody_binds() -> None:
    world = batch_world()
    uid = batch_pod(world, "p", read=False)
    entry = world.queue.queued_pods[uid]
    assert world.queue.explain_refusal(entry) == NOT_READ
    assert not list(world.queue.admit_workloads(0))
    world.queue.set_batch_spec(uid, SPEC)
    assert [release.workload.uid for release in world.queue.admit_workloads(0)] == [uid]
    world.queue.batch.enabled = False
    assert world.queue.explain_refusal(world.queue.queued_pods[batch_pod(world, "q")]) == NO_COMMITTER


def test_a_pod_that_slipped_through_is_told_what_to_change() -> None:
    world = batch_world()
    uid = batch_pod(world, "p")
    world.queue.set_batch_spec(uid, SPEC | {"hostNetwork": True, "resourceClaims": [{"name": "c"}]})
    assert world.queue.explain_refusal(world.queue.queued_pods[uid]) == (
        "batch mode does not know hostNetwork, resourceClaims: create the pod without it, or with"
        " schedulerName gpupack-scheduler and the scheduling gate gpupack.io/queue"
    )
    assert not list(world.queue.admit_workloads(0))


@pytest.mark.parametrize("policy", ["least-requested", "fragmentation", "best-fit"])
async def test_the_committer_finds_the_lists_unchanged_where_nothing_else_happened(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions mean the same in both processes: each pod is bound where the queue placed it."""
    queue = QueueWorld(BATCH, policy)
    queue.queue.batch.enabled = True
    committer = BatchWorld(policy=policy)
    for name in ("n", "m"):
        queue.node(name, (16, 16), allocatable_units=32)
    for number in range(7):
        batch_pod(queue, f"p{number}", 4 + number % 3)
        committer.pod(f"p{number}", 4 + number % 3)

    monkeypatch.setattr(committer.committer, "_rescore", lambda pod, _: pytest.fail(f"{pod.name} changed"))

    class Client:
        async def commit(self, call: CommitCall) -> Sequence[PodResult]:
            pods = [pod for group in call.groups for pod in group]
            assert any(len(pod.nodes) > 1 for pod in pods)
            return await committer.committer.commit(call)

    handover = Handover(queue.queue, Client())
    groups: list[list[Handed]] = []
    for release in queue.queue.admit_workloads(0):
        handover.note(release)
        handed, rest = handover.split(release)
        assert not rest
        groups.append(handed)
    answers = await handover.commit(groups)
    assert len(answers) == 7
    placed = {handed.member.uid: handed.member.node for group in groups for handed in group}
    assert {answer.written for _, answer in answers} == {WriteOutcome.DONE}
    assert committer.api.bound == placed


async def test_pods_of_a_gang_are_handed_over_together_and_gated_ones_are_not() -> None:
    world = batch_world()
    gang = [batch_pod(world, f"g{number}", 8, gang="g", size=2) for number in range(2)]
    gated = world.pod("gated", 4)
    client = Committer(CommitOutcome.BOUND)
    handover = Handover(world.queue, client)
    groups, others = [], []
    for release in world.queue.admit_workloads(0):
        handover.note(release)
        handed, rest = handover.split(release)
        groups += [handed] if handed else []
        others += [member.uid for member in rest]
    await handover.commit(groups)
    assert [[pod.uid for pod in group] for group in client.calls[0].groups] == [gang]
    assert others == [gated]


async def test_a_group_whose_pod_is_gone_is_not_handed_over() -> None:
    world = batch_world()
    gang = [batch_pod(world, f"g{number}", 8, gang="g", size=2) for number in range(2)]
    client = Committer()
    handover = Handover(world.queue, client)
    (release,) = world.queue.admit_workloads(0)
    handover.note(release)
    handed, _ = handover.split(release)
    world.delete(gang[0])
    answers = await handover.commit([handed])
    assert not client.calls
    assert {answer.written for _, answer in answers} == {WriteOutcome.GONE}


@pytest.mark.parametrize(
    ("outcome", "bound"),
    [
        (CommitOutcome.BOUND, True),
        (CommitOutcome.REFUSED, False),
        (CommitOutcome.UNKNOWN, False),
        (CommitFailedError("away", sent=False), False),
        (CommitFailedError("late", sent=True), False),
    ],
)
async def test_what_is_not_bound_waits_again_in_its_old_place(
    outcome: CommitOutcome | CommitFailedError, bound: bool
) -> None:
    world = batch_world()
    uid = batch_pod(world, "p", 8)
    client = Committer(outcome)
    told = asyncio.Event()
    events: list[str] = []

    class Recorder:
        def event(self, ref: Any, type_: str, reason: str, message: str) -> None:
            del ref, type_
            events.append(f"{reason}: {message}")
            told.set()

    writer: Any = PodWriter(None, lambda: True, 1.0)  # type: ignore[arg-type]
    controller = Controller(world.queue, writer, Recorder(), lambda: world.now, lambda: True, batch=client)
    controller.record_change()
    running = asyncio.create_task(controller.run())
    await asyncio.wait_for(told.wait(), 10)
    running.cancel()
    entry = world.queue.queued_pods[uid]
    assert entry.phase is (Phase.ADMITTED if bound else Phase.GATED)
    assert (world.state.get_assumed(uid) is not None) is bound
    assert events[0].startswith("Released" if bound else "Waiting")
    assert controller.counts.released == ({"a": 1} if bound else {})
    if not bound:
        assert world.queue.refusals.is_paused(uid)
