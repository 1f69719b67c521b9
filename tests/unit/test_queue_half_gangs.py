"""Gangs of which a part was admitted: the rest goes first, or what was admitted is taken back in time."""

import asyncio
from typing import Any

import pytest

from allocator.names import POD_REQUEUED
from scheduler_plugin.queue.cache.queued_pods import GangState, Phase, QueuedPod, RequeueWrite
from scheduler_plugin.queue.controller.controller import Controller, format_decision
from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.controller.writer import WriteOutcome, WriteResult
from tests.queue_world import QueueWorld, world

__all__ = ["world"]

WITHIN_S = 300.0
OWNED = {"ownerReferences": [{"uid": "job", "controller": True}]}


def bound_at(second: int) -> dict[str, Any]:
    at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
    return {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]}


def gang(world: QueueWorld, size: int, units: int = 4, *, owned: bool = True, **more: Any) -> list[str]:
    uids = [world.pod(f"g{i}", units, gang="G", size=size, created=0, **more) for i in range(size)]
    for uid in uids:
        world.change(uid, metadata=OWNED if owned else {})
    return uids


def state(world: QueueWorld) -> GangState:
    known = world.queue.gangs.get("gang default/G")
    assert known is not None
    return known.state


def release(world: QueueWorld, *refused: str) -> list[str]:
    """Let the queue decide; the API server refuses some of it."""
    names = []
    for each in list(world.queue.admit_workloads(world.now)):
        for member in each.members:
            if member.uid in refused:
                world.queue.record_refused_admission(member.uid, world.now, "no")
            else:
                world.objects[member.uid]["metadata"]["annotations"].pop(POD_REQUEUED, None)
                world.change(member.uid, spec={"schedulingGates": []})
                names.append(world.name(member.uid))
    return sorted(names)


def bind(world: QueueWorld, *uids: str) -> None:
    for uid in uids:
        world.bind(uid)
        world.change(uid, status=bound_at(int(world.now)))


def half_released(world: QueueWorld, units: int, bound: int = 2) -> list[str]:
    """A gang of four, two of which another process has admitted, as its pods are known after that."""
    before = QueueWorld(n1=(16, 16))
    uids = gang(before, 4, units)
    list(before.queue.admit_workloads(0))
    for uid in uids[:2]:
        before.change(uid, spec={"schedulingGates": []})
    bind(before, *uids[:bound])
    for uid in uids:
        world.objects[uid] = before.objects[uid]
        world.change(uid)
    return uids


def test_one_refused_release_of_four_is_tried_again_before_others_go(world: QueueWorld) -> None:
    uids = gang(world, 4, 8)
    assert release(world, uids[2]) == ["g0", "g1", "g3"]
    for number in range(4):
        world.pod(f"small{number}", 4, created=1)
    assert release(world) == ["small0", "small1"]
    bind(world, uids[0], uids[1], uids[3])
    world.bind(*(f"uid-{name}" for name in ("small0", "small1")))
    assert state(world) is GangState.IN_PART, "one of them is gated"
    world.now = 1
    assert release(world) == [], "there is no room"
    for name in ("small0", "small1"):
        world.delete(f"uid-{name}")
    assert release(world) == ["g2"]
    bind(world, uids[2])
    assert state(world) is GangState.WHOLE
    world.now = 5000
    assert world.requeue_pods() == []


def test_what_stays_refused_takes_the_gang_back_in_time(world: QueueWorld) -> None:
    """However often it is tried meanwhile."""
    uids = gang(world, 4)
    others = [uids[0], uids[1], uids[3]]
    while world.now < WITHIN_S:
        release(world, uids[2])
        bind(world, *(uid for uid in others if world.queue.queued_pods[uid].phase is Phase.ADMITTED))
        assert world.requeue_pods() == []
        world.now += 1
    back = world.requeue_pods()
    assert sorted((each.queued_pod.uid, each.removes) for each in back) == [(uid, True) for uid in others]
    assert back[0].why == "3 of 4 pods of its gang are bound after 300 s"
    for uid in others:
        world.delete(uid)
        world.pod(f"again-{uid[4:]}", 4, gang="G", size=4)
    world.now += 400
    assert release(world) == ["again-g0", "again-g1", "again-g3", "g2"]


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_a_gang_that_another_process_released_in_part_is_completed(world: QueueWorld, bound: int) -> None:
    """It ended between two writes. Its pods are known one after the other, those that are bound first."""
    uids = half_released(world, 4, bound)
    assert release(world) == ["g2", "g3"]
    bind(world, *uids[bound:])
    world.now = 5000
    assert world.requeue_pods() == []


def test_the_rest_of_a_gang_goes_before_the_oldest_of_a_strict_queue(world: QueueWorld) -> None:
    """Those of it that run would wait for as long."""
    world.configure("queues: [{name: a, queueingStrategy: StrictFIFO}]")
    world.pod("oldest", 17, metadata={"creationTimestamp": "2025-12-31T23:59:00Z"})
    world.pod("small", 1, created=1)
    half_released(world, 4)
    assert release(world) == ["g2", "g3"], "and not the small one"


def test_of_pods_without_data_nobody_says_that_it_is_elsewhere(world: QueueWorld) -> None:
    """The rest of a gang goes out of turn."""
    half_released(world, 4)
    releases = world.decide()
    assert [release.relaxed for release in releases] == [False]
    assert "data" not in format_decision(releases[0], releases[0].members[0])


def test_one_that_finds_no_room_for_the_rest_is_taken_back_in_time(world: QueueWorld) -> None:
    """Also after another process has admitted it."""
    uids = half_released(world, 8)
    world.pod("other", 16, queue="", gates=())
    world.change("uid-other", spec={"nodeName": "n1"})
    for world.now in (0, 100, 299):
        assert release(world) == []
        assert world.requeue_pods() == []
    world.now = WITHIN_S
    back = world.requeue_pods()
    assert sorted((each.queued_pod.uid, each.removes) for each in back) == [(uid, True) for uid in uids[:2]]


def test_of_the_rest_only_those_that_wait_are_said_to_lack_cards(world: QueueWorld) -> None:
    half_released(world, 8)
    world.pod("other", 8, queue="", gates=())
    world.change("uid-other", spec={"nodeName": "n1"})
    assert release(world) == []
    told = {why.message for why in explain_waiting(world.queue, world.now)}
    assert told == {"cards for 2 waiting pods of its gang are not free at once"}


def test_a_gang_that_lost_a_pod_is_in_part_for_the_next_process_too(world: QueueWorld) -> None:
    """What is made again has all of the time from then on, and the others stay if it is bound."""
    uids = gang(world, 2, gates=())
    for uid in uids:
        world.bind_to(uid, "n1")
        world.change(uid, status=bound_at(10))
    world.delete(uids[1])
    fresh = QueueWorld()
    fresh.now = 5000.0
    fresh.node("n1", (16,))
    fresh.objects[uids[0]] = world.objects[uids[0]]
    fresh.change(uids[0])
    fresh.pod("blocks", 12, queue="", gates=())
    fresh.change("uid-blocks", spec={"nodeName": "n1"})
    fresh.pod("again", 8, gang="G", size=2, created=60)
    for waited in (0.0, WITHIN_S - 1):
        fresh.now = 5000.0 + waited
        assert release(fresh) == []
        assert fresh.requeue_pods() == []
    fresh.now = 5000.0 + WITHIN_S
    assert [each.queued_pod.uid for each in fresh.requeue_pods()] == uids[:1]
    fresh.queue.record_refused_removal(uids[0])
    fresh.delete("uid-blocks")
    assert release(fresh) == ["again"]
    bind(fresh, "uid-again")
    fresh.now = 9999.0
    assert fresh.requeue_pods() == []


def test_a_process_that_leads_again_takes_gangs_as_others_left_them(world: QueueWorld) -> None:
    """The process began to remove the gang and lost its Lease; another process completed the gang."""
    uids = gang(world, 4)
    release(world, uids[3])
    bind(world, *uids[:3])
    world.now = WITHIN_S
    assert {each.queued_pod.uid for each in world.requeue_pods()} == set(uids[:3])
    world.change(uids[3], spec={"schedulingGates": []})
    world.bind_to(uids[3], "n1")
    world.change(uids[3], status=bound_at(310))
    world.delete(uids[0])
    world.pod("blocks", 16, queue="", gates=())
    world.change("uid-blocks", spec={"nodeName": "n1"})
    world.pod("again", 4, gang="G", size=4, created=600)
    world.now = 650
    world.queue.begin_term(world.now)
    for world.now in (700, 649 + WITHIN_S):
        assert release(world) == []
        assert world.requeue_pods() == [], "what was made again has its time from now"
    world.delete("uid-blocks")
    assert release(world) == ["again"]


def test_a_gang_that_another_process_admitted_a_moment_ago_has_its_time_under_one_that_leads_again(
    world: QueueWorld,
) -> None:
    uids = gang(world, 4)
    release(world, uids[3])
    bind(world, *uids[:3])
    world.now = 10 * WITHIN_S
    world.change(uids[3], spec={"schedulingGates": []})
    world.queue.begin_term(world.now)
    assert release(world) == []
    assert world.requeue_pods() == []
    world.now += WITHIN_S
    assert {each.queued_pod.uid for each in world.requeue_pods()} == set(uids)


def test_what_another_process_admitted_to_a_whole_gang_a_moment_ago_has_its_time(world: QueueWorld) -> None:
    """The gang itself was admitted long ago."""
    uids = gang(world, 4)
    release(world)
    bind(world, *uids)
    world.now = 10 * WITHIN_S
    world.delete(uids[0])
    world.pod("again", 4, gang="G", size=4, created=int(world.now), metadata=OWNED)
    world.change("uid-again", spec={"schedulingGates": []})
    world.queue.begin_term(world.now)
    assert release(world) == []
    assert world.requeue_pods() == []
    world.now += WITHIN_S
    assert {each.queued_pod.uid for each in world.requeue_pods()} == {*uids[1:], "uid-again"}


def test_of_a_half_bound_gang_what_is_being_deleted_is_not_removed_again(world: QueueWorld) -> None:
    """A finalizer keeps it; its cards are for others all the same."""
    uids = gang(world, 3)
    release(world)
    bind(world, uids[0])
    world.change(uids[1], metadata={"deletionTimestamp": "2026-01-01T00:00:30Z"})
    world.now = WITHIN_S
    assert {each.queued_pod.uid for each in world.requeue_pods()} == {uids[0], uids[2]}
    assert world.queue.queued_pods[uids[1]].capacity_freed


def test_of_a_half_bound_gang_of_bare_pods_the_rest_waits_again_and_joins(world: QueueWorld) -> None:
    """The bound one would be lost; its room is its own."""
    uids = gang(world, 2, 16, owned=False)
    assert release(world) == ["g0", "g1"]
    bind(world, uids[0])
    world.now = WITHIN_S
    assert [(back.queued_pod.uid, back.write is RequeueWrite.MARK) for back in world.requeue_pods()] == [
        (uids[1], True)
    ]
    assert world.queue.queues["a"].units == 16
    world.now = 2 * WITHIN_S
    assert world.requeue_pods() == []
    world.pod("small", 8, created=1)
    assert release(world) == ["g1"]


def test_of_a_gang_that_could_not_be_taken_back_the_rest_may_join_until_it_is_asked_again(
    world: QueueWorld,
) -> None:
    """A PodDisruptionBudget may let a bound pod go later: it is asked each time that `gangWithin` is over."""
    uids = gang(world, 4)
    release(world, uids[3])
    bind(world, *uids[:3])
    for world.now in (WITHIN_S, 2 * WITHIN_S):
        assert {each.queued_pod.uid for each in world.requeue_pods()} == set(uids[:3])
        assert release(world) == [], "they may be going"
        world.queue.record_refused_removal(uids[0])
        assert release(world, uids[3]) == []
        assert world.queue.queued_pods[uids[3]].phase is Phase.GATED
    world.now += 400
    world.queue.record_refused_removal(uids[0])
    assert release(world) == ["g3"]
    bind(world, uids[3])
    world.now = 5000
    assert world.requeue_pods() == []


def test_a_gang_that_lost_a_pod_before_all_were_bound_is_not_whole(world: QueueWorld) -> None:
    """What is made again finds no room: so the others go too."""
    uids = gang(world, 4, 8)
    release(world)
    bind(world, *uids[:3])
    world.delete(uids[0])
    bind(world, uids[3])
    assert state(world) is GangState.IN_PART
    world.now = WITHIN_S
    assert world.requeue_pods() == [], "nobody waits: the pod may have had its reasons"
    world.pod("other", 8, queue="", gates=())
    world.change("uid-other", spec={"nodeName": "n1"})
    world.pod("again", 8, gang="G", size=4, created=300)
    world.now = 2 * WITHIN_S
    assert {each.queued_pod.uid for each in world.requeue_pods()} == set(uids[1:])


def test_a_gang_is_whole_when_the_rest_is_bound_after_one_has_succeeded(world: QueueWorld) -> None:
    uids = gang(world, 4)
    release(world)
    bind(world, *uids[:3])
    world.change(uids[0], status={"phase": "Succeeded"})
    bind(world, uids[3])
    assert state(world) is GangState.WHOLE


class Removals:
    """A process that removes a gang of four pods, of which the last two are bound, and what becomes of it.

    Args:
        done: Removals that are carried out before the API server falls silent.
    """

    def __init__(self, done: int) -> None:
        self.left = done
        self.world = QueueWorld()
        self.world.node("n1", (16, 16))
        self.uids = gang(self.world, 4, 8)
        release(self.world)
        bind(self.world, *self.uids[2:])
        self.world.pod("other", 16, queue="", gates=())
        self.world.change("uid-other", spec={"nodeName": "n1"})

    async def run(self) -> None:
        """Let the process decide when `gangWithin` is over, and end."""
        stub: Any = self
        world = self.world
        world.now = WITHIN_S
        controller = Controller(world.queue, stub, stub, lambda: world.now, lambda: True)
        process = asyncio.create_task(controller.run())
        controller.record_change()
        for _ in range(20):
            await asyncio.sleep(0)
        process.cancel()

    async def evict_pod(self, pod: QueuedPod, _is_wanted: object) -> WriteResult:
        if self.left == 0:
            return WriteResult(WriteOutcome.UNKNOWN)
        self.left -= 1
        if pod.phase is Phase.BOUND:
            self.world.change(pod.uid, metadata={"deletionTimestamp": "2026-01-01T00:05:30Z"})
        else:
            self.world.delete(pod.uid)
        return WriteResult(WriteOutcome.DONE)

    def event(self, *_said: str) -> None: ...


@pytest.mark.parametrize("done", range(5))
async def test_a_process_that_begins_amid_the_removal_of_a_gang_goes_on_with_it(done: int) -> None:
    """Whatever is gone has been made again by then."""
    before = Removals(done)
    await before.run()
    world = QueueWorld(n1=(16, 16))
    for uid, raw in before.world.objects.items():
        world.objects[uid] = raw
        world.change(uid)
    for uid in before.uids:
        if uid not in world.objects:
            world.pod(f"again-{uid[4:]}", 8, gang="G", size=4, created=310)
    assert release(world) == []
    world.now = WITHIN_S
    stays = {
        uid
        for uid, pod in world.queue.queued_pods.items()
        if pod.phase is not Phase.GATED and not pod.queue_info.ending
    }
    assert len(stays) == 4 - done
    assert {each.queued_pod.uid for each in world.requeue_pods() if each.removes} == stays


@pytest.mark.parametrize("loses", ["h1", "h0"])
def test_the_rest_of_a_gang_that_changes_while_others_are_written_is_decided_anew(loses: str) -> None:
    """Decisions go on after some writes, and by then the watches have brought news."""
    world = QueueWorld(n1=(16, 16))
    for name in ("g", "h"):
        world.pod(f"{name}0", 4, gang=name, size=2, created=0, gates=())
        world.pod(f"{name}1", 4, gang=name, size=2, created=0)
    decisions = world.queue.admit_workloads(world.now)
    assert [member.uid for member in next(decisions).members] == ["uid-g1"]
    world.delete(f"uid-{loses}")
    assert list(decisions) == []
    assert world.state.get_assumed("uid-h1") is None
