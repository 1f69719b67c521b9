"""Pods without a gate that name `gpupack-batch`: they wait, and go to the committer with a list."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER
from kubeapi.errors import Unreachable
from scheduler_plugin.binding.batch_protocol import CommitCall, CommitOutcome, PodResult
from scheduler_plugin.queue.cache.batch_pods import NO_COMMITTER, NOT_READ
from scheduler_plugin.queue.cache.queued_pods import Phase
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.controller.batch_client import CommitFailedError
from scheduler_plugin.queue.controller.batch_conditions import make_condition
from scheduler_plugin.queue.controller.batch_handover import Handed, Handover
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.settings import QueueSettings
from scheduler_plugin.queue.controller.status import WaitReason
from scheduler_plugin.queue.controller.writer import PodWriter, WriteOutcome
from tests.api_requests import ApiRequests
from tests.batch_world import BatchWorld
from tests.queue_world import QueueWorld
from tests.waiting import until

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
        return [PodResult(pod.uid, outcome, pod.nodes[0], "why") for pod in pods]


def test_a_pod_waits_until_its_whole_spec_was_read_and_somebody_binds() -> None:
    world = batch_world()
    uid = batch_pod(world, "p", read=False)
    pod = world.queue.queued_pods[uid]
    assert world.queue.refusals.explain(pod) == NOT_READ
    assert not list(world.queue.admit_workloads(0))
    world.queue.set_batch_spec(uid, SPEC)
    assert [release.workload.uid for release in world.queue.admit_workloads(0)] == [uid]
    world.queue.batch.enabled = False
    assert world.queue.refusals.explain(world.queue.queued_pods[batch_pod(world, "q")]) == NO_COMMITTER


def test_a_pod_that_the_scheduler_does_not_bind_says_who_refuses() -> None:
    world = batch_world()
    uid = batch_pod(world, "p")
    world.queue.set_batch_spec(uid, SPEC)
    assert list(world.queue.admit_workloads(0))
    world.queue.record_refused_admission(uid, 0, "node n has no room")
    refused = world.queue.refusals.explain(world.queue.queued_pods[uid])
    assert refused == "the scheduler does not bind it: node n has no room"


def test_a_pod_that_slipped_through_is_told_what_to_change() -> None:
    world = batch_world()
    uid = batch_pod(world, "p")
    world.queue.set_batch_spec(uid, SPEC | {"hostNetwork": True, "resourceClaims": [{"name": "c"}]})
    assert world.queue.refusals.explain(world.queue.queued_pods[uid]) == (
        "batch mode does not know hostNetwork, resourceClaims: create the pod without it, or with"
        " schedulerName gpupack-scheduler and the scheduling gate gpupack.io/queue"
    )
    assert not list(world.queue.admit_workloads(0))


@pytest.mark.parametrize("policy", ["least-requested", "fragmentation", "best-fit"])
async def test_each_pod_is_bound_where_the_queue_placed_it(policy: str) -> None:
    queue = QueueWorld(BATCH, policy)
    queue.queue.batch.enabled = True
    committer = BatchWorld(policy=policy)
    for name in ("n", "m"):
        queue.node(name, (16, 16), allocatable_units=32)
    for number in range(7):
        batch_pod(queue, f"p{number}", 4 + number % 3)
        committer.pod(f"p{number}", 4 + number % 3)

    class Client:
        async def commit(self, call: CommitCall) -> Sequence[PodResult]:
            pods = [pod for group in call.groups for pod in group]
            assert any(len(pod.nodes) > 1 for pod in pods)
            return await committer.committer.commit(call)

    handover = Handover(queue.queue, Client())
    groups: list[list[Handed]] = []
    for release in queue.queue.admit_workloads(0):
        handover.record_candidates(release)
        handed, rest = handover.split_admission(release)
        assert not rest
        groups.append(handed)
    answers = await handover.commit_groups(groups)
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
        handover.record_candidates(release)
        handed, rest = handover.split_admission(release)
        groups += [handed] if handed else []
        others += [member.uid for member in rest]
    await handover.commit_groups(groups)
    assert [[pod.uid for pod in group] for group in client.calls[0].groups] == [gang]
    planned = [list(pod.cards) for group in client.calls[0].groups for pod in group]
    assert planned == [world.queue.list_planned_cards(uid) for uid in gang]
    assert all(len(cards) == 1 for cards in planned)
    assert others == [gated]


async def test_pods_that_wait_are_served_when_the_mode_is_switched_off() -> None:
    """Their scheduler's name cannot be changed: nobody else would bind them."""
    world = batch_world("mode: gate\nqueues: [{name: a}]")
    uid = batch_pod(world, "p", 8)
    client = Committer(CommitOutcome.BOUND)
    handover = Handover(world.queue, client)
    (release,) = world.queue.admit_workloads(0)
    handover.record_candidates(release)
    handed, rest = handover.split_admission(release)
    assert not rest
    ((_, answer),) = await handover.commit_groups([handed])
    assert answer.written is WriteOutcome.DONE
    assert [pod.uid for pod in client.calls[0].groups[0]] == [uid]


async def test_a_group_whose_pod_is_gone_is_not_handed_over() -> None:
    world = batch_world()
    gang = [batch_pod(world, f"g{number}", 8, gang="g", size=2) for number in range(2)]
    client = Committer()
    handover = Handover(world.queue, client)
    (release,) = world.queue.admit_workloads(0)
    handover.record_candidates(release)
    handed, _ = handover.split_admission(release)
    world.delete(gang[0])
    answers = await handover.commit_groups([handed])
    assert not client.calls
    assert {answer.written for _, answer in answers} == {WriteOutcome.GONE}


class Recorder:
    """Notes Events.

    Attributes:
        told: Set with the first one.
    """

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.events: list[str] = []

    def event(self, ref: Any, type_: str, reason: str, message: str) -> None:
        del ref, type_
        self.events.append(f"{reason}: {message}")
        self.told.set()


class Running:
    """A controller at work, whose committer answers as told.

    Args:
        api: Reads pods.
        outcome: What the committer says of its first pods.
    """

    def __init__(self, api: Any, *outcomes: CommitOutcome | CommitFailedError) -> None:
        self.world = batch_world("mode: batch\nqueues: [{name: a, nominalQuota: 8}]")
        self.uid = batch_pod(self.world, "p", 8)
        self.client, self.recorder = Committer(*outcomes), Recorder()
        self.slept: list[float] = []
        self.wake = asyncio.Event()
        writer = PodWriter(api, lambda: True, 4.0, self.sleep)
        self.controller = Controller(
            self.world.queue,
            writer,
            self.recorder,
            lambda: self.world.now,
            lambda: True,
            batch=self.client,
        )
        self.controller.record_change()
        self.running = asyncio.create_task(self.controller.run())

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.wake.wait()

    @property
    def phase(self) -> Phase:
        return self.world.queue.queued_pods[self.uid].phase

    @property
    def used(self) -> int:
        return self.world.queue.queues["a"].units


@pytest.mark.parametrize(
    ("outcome", "bound"),
    [
        (CommitOutcome.BOUND, True),
        (CommitOutcome.REFUSED, False),
        (CommitFailedError("away", sent=False), False),
    ],
)
async def test_what_is_not_bound_waits_again_in_its_old_place(
    outcome: CommitOutcome | CommitFailedError, bound: bool
) -> None:
    run = Running(None, outcome)
    await asyncio.wait_for(run.recorder.told.wait(), 10)
    run.running.cancel()
    assert run.phase is (Phase.ADMITTED if bound else Phase.GATED)
    assert (run.world.state.get_assumed(run.uid) is not None) is bound
    assert run.recorder.events[0].startswith("Admitted" if bound else "Waiting")
    assert run.controller.counts.admitted == ({"a": 1} if bound else {})
    if not bound:
        assert not run.world.queue.refusals.can_be_queued(run.world.queue.queued_pods[run.uid])


def hand_over(world: QueueWorld) -> list[str]:
    """The nodes of the list with which the one pod that waits is handed over."""
    (release,) = world.queue.admit_workloads(world.now)
    (member,) = release.members
    return [member.node, *member.others]


def test_a_pod_that_its_nodes_reject_goes_on_to_others_and_at_last_begins_again() -> None:
    """The queue does not see the number of pods on a node: the best nodes would be named for ever."""
    world = QueueWorld(BATCH)
    world.queue.batch.enabled = True
    names = [f"n{number:02}" for number in range(40)]
    for name in names:
        world.node(name, (16, 16), allocatable_units=32)
    uid = batch_pod(world, "p", 8)
    pod = world.queue.queued_pods[uid]
    seen: list[str] = []
    while len(seen) < len(names):
        listed = hand_over(world)
        assert not set(listed) & set(seen)
        seen += listed
        world.queue.record_refused_admission(uid, world.now, "too many pods", listed)
        told = status.explain_pod(world.queue, pod, world.now, position=0)
        world.now += 1.0
    assert len(listed) < len(seen) == len(names)
    assert (told.reason, told.message) == (WaitReason.ROOM, "the scheduler does not bind it: too many pods")
    world.now += 1.0
    assert hand_over(world)[0] == seen[0]


def test_while_nodes_are_left_that_have_not_rejected_a_pod_it_does_not_wait_longer_each_time() -> None:
    world = batch_world()
    uid = batch_pod(world, "p", 8)
    pod = world.queue.queued_pods[uid]
    for _ in range(5):
        first, *_ = hand_over(world)
        world.queue.record_refused_admission(uid, world.now, "no", [first])
        world.queue.admission.rejected_nodes.expire(world.now + 1e6)
        reason = status.explain_pod(world.queue, pod, world.now, position=0).reason
        assert reason is WaitReason.REFUSED
        world.now += 1.0


def test_a_gang_goes_on_to_other_nodes_too() -> None:
    world = QueueWorld(BATCH)
    world.queue.batch.enabled = True
    for number in range(8):
        world.node(f"n{number}", (16, 16), allocatable_units=32)
    gang = [batch_pod(world, f"g{number}", 16, gang="g", size=2) for number in range(2)]
    seen: set[str] = set()
    for _ in range(3):
        (release,) = world.queue.admit_workloads(world.now)
        nodes = {member.node for member in release.members}
        assert not nodes & seen
        seen |= nodes
        for uid in gang:
            world.queue.record_refused_admission(uid, world.now, "too many pods", sorted(nodes))
        world.now += 1.0


def test_pods_alike_go_where_none_of_them_was_rejected() -> None:
    world = batch_world()
    uid = batch_pod(world, "p", 8)
    first, *_ = hand_over(world)
    world.queue.record_refused_admission(uid, world.now, "no", [first])
    other = batch_pod(world, "q", 8)
    (release,) = world.queue.admit_workloads(world.now)
    assert (release.members[0].uid, release.members[0].node) == (other, "m" if first == "n" else "n")


async def test_an_event_and_the_status_name_the_field_of_a_pod_that_slipped_through() -> None:
    """The condition that an autoscaler reads does not say `Unschedulable`: more nodes would not help."""
    run = Running(None, CommitOutcome.BOUND)
    uid = batch_pod(run.world, "odd", read=False)
    run.world.queue.set_batch_spec(uid, SPEC | {"hostNetwork": True})
    run.controller.record_change()
    await until(lambda: any("hostNetwork" in event for event in run.recorder.events))
    run.running.cancel()
    (why,) = [each for each in status.explain_waiting(run.world.queue, run.world.now) if each.name == "odd"]
    assert "create the pod without it, or with schedulerName gpupack-scheduler" in why.message
    assert why.reason is WaitReason.REFUSED
    assert [len(call.groups) for call in run.client.calls] == [1]
    condition = make_condition(why.reason, why.message, datetime(2026, 1, 1, tzinfo=UTC))
    assert condition["reason"] != "Unschedulable"
    assert "hostNetwork" in condition["message"]


class ReadApi(ApiRequests):
    """Has one pod, which is bound or not, and is away at first."""

    def __init__(self, uid: str, *, bound: bool) -> None:
        super().__init__()
        self.pod = {"metadata": {"name": "p", "uid": uid}, "spec": {"nodeName": "n"} if bound else {}}

    def answer(self, verb: str, path: str, body: Any) -> Any:
        if len(self.asked) == 1:
            raise Unreachable("away")
        return self.pod


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("outcome", [CommitOutcome.UNKNOWN, CommitFailedError("late", sent=True)])
async def test_a_pod_that_may_have_been_bound_keeps_its_quota_until_that_is_known(
    outcome: CommitOutcome | CommitFailedError, bound: bool
) -> None:
    """Else another pod would get it, and the Binding that was in doubt would exceed it."""
    run = Running(ReadApi("uid-p", bound=bound), outcome, CommitOutcome.BOUND)
    await until(lambda: bool(run.slept))
    batch_pod(run.world, "other", 8)
    run.controller.record_change()
    await asyncio.sleep(0.05)
    assert (run.phase, run.used, len(run.client.calls)) == (Phase.ADMITTED, 8, 1)
    assert run.slept == [8.0]
    run.wake.set()
    await until(lambda: bool(run.recorder.events))
    if bound:
        assert (run.phase, run.used) == (Phase.ADMITTED, 8)
        assert run.recorder.events[0].startswith("Admitted")
    else:
        await until(lambda: len(run.client.calls) == 2)
    run.running.cancel()


def test_a_queue_begins_when_nothing_of_the_one_before_can_be_bound_any_more() -> None:
    """The committer sends within a write's time, and a Binding takes effect within another."""
    assert QueueSettings("f", write_timeout_s=4.0).longest_write_s == 4
    assert QueueSettings("f", write_timeout_s=4.0, committer="http://127.0.0.1:1").longest_write_s == 8
