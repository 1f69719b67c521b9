"""Gangs: admitted whole or not at all, what is bound half, and members that are made again."""

from typing import Any

import pytest

from allocator.names import POD_GANG, POD_GANG_SIZE
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.controller.status import WaitReason, explain_waiting
from tests.queue_world import UNSCHEDULABLE, QueueWorld, world

__all__ = ["world"]

WITHIN_S = 300.0
OWNED = {"ownerReferences": [{"uid": "job", "controller": True}]}


def _gang(world: QueueWorld, size: int, *, owned: bool = True) -> list[str]:
    gang = [world.pod(f"g{i}", 4, gang="G", size=size) for i in range(size)]
    for uid in gang:
        world.change(uid, metadata=OWNED if owned else {})
    assert len(world.admitted()) == size
    return gang


def _running_gang(world: QueueWorld, size: int) -> list[str]:
    gang = _gang(world, size)
    world.bind(*gang)
    return gang


def _pass_time(world: QueueWorld, seconds: float) -> None:
    until = world.now + seconds
    while world.now < until:
        world.now += 1
        world.decide()


def _list_requeued(world: QueueWorld) -> list[tuple[str, bool]]:
    return sorted((world.name(back.queued_pod.uid), back.removes) for back in world.requeue_pods())


def test_a_gang_is_released_whole_or_not_at_all() -> None:
    """Three pods of 10 units need three cards."""
    world = QueueWorld(n1=(16, 16))
    for i in range(3):
        world.pod(f"g{i}", 10, gang="g", size=3)
    world.pod("small", 4)
    assert world.admitted() == ["small"]
    assert [
        assumed for uid in ("uid-g0", "uid-g1", "uid-g2") if (assumed := world.state.get_assumed(uid))
    ] == []
    world.node("n2", (16,))
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]


def test_a_waiting_pod_that_joins_a_gang_later_waits_with_the_gang(world: QueueWorld) -> None:
    world.node("n1", (16,))
    uid = world.pod("p0", 4)
    world.objects[uid]["metadata"]["annotations"] |= {POD_GANG: "g", POD_GANG_SIZE: "2"}
    world.change(uid)
    assert world.admitted() == []
    world.pod("p1", 4, gang="g", size=2)
    assert world.admitted() == ["p0", "p1"]


def test_a_half_bound_gang_with_a_controller_is_removed_and_waits_until_it_is_whole(
    world: QueueWorld,
) -> None:
    """No pod that is made again goes before the others are there."""
    gang = _gang(world, 2)
    world.bind(gang[0])
    world.now = WITHIN_S
    assert _list_requeued(world) == [("g0", True), ("g1", True)]
    world.delete(gang[1])
    world.pod("again-1", 4, gang="G", size=2)
    assert world.admitted() == []
    world.change(gang[0], metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    assert world.admitted() == []
    world.delete(gang[0])
    world.pod("again-0", 4, gang="G", size=2)
    assert world.admitted() == []
    (held, _) = explain_waiting(world.queue, world.now)
    assert held.reason is WaitReason.HELD
    assert held.message == "it could not be bound when it was admitted; it is tried again after a pause"
    world.now += 10
    assert sorted(world.admitted()) == ["again-0", "again-1"]


def test_gangs_that_are_alike_go_one_at_a_time_after_kube_scheduler_refused_a_pod_of_one() -> None:
    """It refuses for a reason that the queue cannot see; each gang keeps its room, so it has to be spared."""
    world = QueueWorld()
    for number in range(40):
        world.node(f"n{number}", (16, 16))
    pods = {
        (f"g{n}", i): world.pod(f"g{n}-{i}", 16, gang=f"g{n}", size=2, created=n)
        for n in range(1, 30)
        for i in (0, 1)
    }
    single = world.pod("single", 16, created=999)
    refused = world.pod("first-0", 16, gang="first", size=2, created=0)
    world.pod("first-1", 16, gang="first", size=2, created=0)
    at = []
    decisions = world.queue.admit_workloads(world.now)
    first = next(decisions)
    assert {member.uid for member in first.members} == {refused, "uid-first-1"}
    world.change(refused, spec={"schedulingGates": []}, status=UNSCHEDULABLE)
    while world.now < 170:
        found = [release.workload.uid for release in world.decide() if release.workload.uid != single]
        at += [(world.now, gang) for gang in found]
        for gang in found:
            world.change(pods[gang.rpartition("/")[2], 1], status=UNSCHEDULABLE)
        world.queue.find_requeues(world.now)
        world.now += 1
    assert at == [
        (10, "gang default/g1"),
        (30, "gang default/g2"),
        (70, "gang default/g3"),
        (150, "gang default/g4"),
    ]
    assert not world.queue.queued_pods[single].queue_info.gated, "a pod by itself goes at once"
    held = status.explain_pod(world.queue, world.queue.queued_pods[pods["g29", 0]], world.now)
    assert (held.reason, held.queue) == (WaitReason.HELD, "a")
    assert held.message.startswith("gang default/first asks for the same and could not be bound")
    world.bind(pods["g1", 0])
    assert world.admitted() == [], "half of one says nothing"
    world.bind(pods["g1", 1])
    assert len(world.admitted()) == 2 * 25, "once one is bound whole all may go"


def test_a_gang_that_cannot_be_bound_is_tried_less_and_less_often(world: QueueWorld) -> None:
    """Its controller makes it again each time; meanwhile others have its room."""
    waited = []
    for made in range(8):
        began = world.now
        gang = [world.pod(f"g{i}-{made}", 16, gang="G", size=2) for i in range(2)]
        while not world.decide():
            world.now += 1
        waited.append(world.now - began)
        for uid in gang:
            world.change(uid, metadata=OWNED, status=UNSCHEDULABLE)
        _pass_time(world, WITHIN_S)
        assert len(_list_requeued(world)) == 2
        for uid in gang:
            world.delete(uid)
        _pass_time(world, 30)
    assert waited[0] == 0
    assert max(waited) <= 300
    assert sum(waited[5:]) > 300, waited


def test_a_member_that_is_made_again_days_later_joins_the_others(world: QueueWorld) -> None:
    """The healthy ones stay."""
    gang = _running_gang(world, 2)
    world.now = 100_000.0
    assert _list_requeued(world) == []
    world.delete(gang[1])
    world.run("again", 4, gang="G", size=2)
    world.now += WITHIN_S
    assert _list_requeued(world) == []


def test_a_member_that_joins_and_finds_no_node_takes_the_others_along_in_time(world: QueueWorld) -> None:
    """Without it they only keep cards."""
    gang = _running_gang(world, 2)
    world.now = 1000.0
    world.delete(gang[1])
    again = world.pod("again", 4, gang="G", size=2)
    world.change(again, metadata=OWNED)
    assert world.admitted() == ["again"]
    world.now += WITHIN_S - 1
    assert _list_requeued(world) == []
    world.now += 1
    assert _list_requeued(world) == [("again", True), ("g0", True)]


@pytest.mark.parametrize("fails", [True, False], ids=["it failed", "it was deleted"])
def test_a_gang_that_ran_whole_is_in_part_again_without_a_member_that_finds_no_room(*, fails: bool) -> None:
    """Its time begins when another one is there in its place, however late that comes."""
    world = QueueWorld(n1=(16,))
    gang = _running_gang(world, 4)
    world.now = 1000.0
    if fails:
        world.change(gang[3], status={"phase": "Failed"})
    world.delete(gang[3])
    world.pod("taken", 4, queue="", gates=(), spec={"nodeName": "n1"})
    world.now += 10 * WITHIN_S
    assert _list_requeued(world) == [], "nobody makes it again"
    world.pod("again", 4, gang="G", size=4, metadata=OWNED)
    assert world.admitted() == []
    world.now += WITHIN_S - 1
    assert _list_requeued(world) == []
    world.now += 1
    assert _list_requeued(world) == [("g0", True), ("g1", True), ("g2", True)]
    for uid in gang[:3]:
        world.delete(uid)
        assert world.admitted() == [], "it waits for all of the others"
        world.pod(f"again-{uid}", 4, gang="G", size=4, metadata=OWNED)
    world.delete("uid-taken")
    world.now += 10
    assert len(world.admitted()) == 4


def test_a_gang_is_in_part_no_more_once_what_was_made_again_is_bound(world: QueueWorld) -> None:
    """The next pod that is lost has its own time."""
    gang = _running_gang(world, 2)
    for number in range(4):
        world.delete(gang[1])
        gang[1] = world.pod(f"again-{number}", 4, gang="G", size=2, metadata=OWNED)
        world.now += WITHIN_S - 10
        assert world.admitted() == [f"again-{number}"]
        assert _list_requeued(world) == []
        world.bind(gang[1])
        assert _list_requeued(world) == []


def test_members_that_have_succeeded_are_not_lost() -> None:
    """Nor is what a Job makes beyond the size of its gang a part that the others miss."""
    world = QueueWorld(n1=(16,))
    gang = _running_gang(world, 3)
    world.pod("taken", 4, queue="", gates=(), spec={"nodeName": "n1"})
    for uid in gang[:2]:
        world.change(uid, status={"phase": "Succeeded"})
        world.delete(uid)
        world.now += 10 * WITHIN_S
        assert _list_requeued(world) == []
    world.pod("next", 12, gang="G", size=3, metadata=OWNED)
    assert world.admitted() == []
    world.now += 10 * WITHIN_S
    assert _list_requeued(world) == []
    world.delete("uid-taken")
    assert world.admitted() == ["next"], "in its turn, and by itself"
    world.now += WITHIN_S
    assert _list_requeued(world) == [("next", True)], "it finds no node"


def test_a_member_is_made_again_after_another_one_has_succeeded(world: QueueWorld) -> None:
    """There will never be four of them again."""
    gang = _running_gang(world, 4)
    world.change(gang[0], status={"phase": "Succeeded"})
    world.delete(gang[1])
    world.run("again", 4, gang="G", size=4)
    assert explain_waiting(world.queue, world.now) == []
    world.now = 5000.0
    assert _list_requeued(world) == []


def _made_by(job: str) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
    return {"ownerReferences": [owner]}


def _succeed_then_lose(world: QueueWorld, succeeded: int) -> None:
    """Let some of three pods of a Job succeed, and let the others be evicted."""
    gang = [world.pod(f"p{at}", 4, gang="G", size=3, metadata=_made_by("one")) for at in range(3)]
    assert len(world.admitted()) == 3
    world.bind(*gang)
    for uid in gang[:succeeded]:
        world.change(uid, status={"phase": "Succeeded"})
    for uid in gang[succeeded:]:
        world.delete(uid)


@pytest.mark.parametrize("succeeded", [1, 2])
@pytest.mark.parametrize("anew", [False, True])
def test_a_gang_of_which_pods_have_succeeded_starts_again_without_them(
    world: QueueWorld, succeeded: int, *, anew: bool
) -> None:
    """Its Job makes only the others again; they start together, also after a restart of the queue."""
    _succeed_then_lose(world, succeeded)
    if anew:
        later = QueueWorld(n1=(16, 16))
        for raw in world.objects.values():
            later.objects[raw["metadata"]["uid"]] = raw
            later.change(raw["metadata"]["uid"])
        world = later
    names = [f"again-{at}" for at in range(3 - succeeded)]
    for name in names:
        assert world.admitted() == []
        world.pod(name, 4, gang="G", size=3, metadata=_made_by("one"))
    assert sorted(world.admitted()) == names
    world.bind(*(f"uid-{name}" for name in names))
    world.now = 5000.0
    assert _list_requeued(world) == []


def test_pods_that_have_succeeded_do_not_count_for_another_gang_of_the_same_name(world: QueueWorld) -> None:
    """They are kept as long as their Job is; the next Job starts whole."""
    _succeed_then_lose(world, 2)
    for at in range(3):
        assert world.admitted() == []
        uid = world.pod(f"next-{at}", 4, gang="G", size=3, metadata=_made_by("two"))
    assert len(world.admitted()) == 3
    world.bind(uid)
    world.now = WITHIN_S
    assert len(_list_requeued(world)) == 3
    for name in list(world.objects):
        world.delete(name)
    assert list(world.queue.known_uids) == []
    assert world.queue.gangs.get("gang default/G") is None


def test_a_gang_that_is_made_again_whole_waits_until_it_is_complete(world: QueueWorld) -> None:
    """Its pods that end do not take the new ones along."""
    gang = _gang(world, 2)
    for uid in gang:
        world.bind(uid)
        world.change(uid, metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    world.delete(gang[0])
    world.pod("again-0", 4, gang="G", size=2)
    assert world.admitted() == []
    world.delete(gang[1])
    world.pod("again-1", 4, gang="G", size=2)
    assert sorted(world.admitted()) == ["again-0", "again-1"]


def test_a_member_that_is_made_again_does_not_wait_for_the_end_of_the_one_before(world: QueueWorld) -> None:
    """On a lost node that may last for days."""
    gang = _running_gang(world, 2)
    world.change(gang[1], metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    world.run("again", 4, gang="G", size=2)
    world.pod("too-many", 4, gang="G", size=2)
    assert world.admitted() == []
    (why,) = explain_waiting(world.queue, world.now)
    assert why.message == "it has 3 pods and gpupack.io/gang-size is 2"


def test_a_gang_that_is_made_again_whole_waits_for_the_end_of_the_one_before(world: QueueWorld) -> None:
    """A JobSet makes its Jobs again one by one, each when the one before is gone."""
    gang = _gang(world, 2)
    for uid in gang:
        world.bind(uid)
        world.change(uid, metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    for at in range(2):
        world.pod(f"again-{at}", 4, gang="G", size=2)
    assert world.admitted() == []
    messages = {why.message for why in explain_waiting(world.queue, world.now)}
    assert messages == {"all 2 pods of its gang are ready, and 2 earlier ones still end"}
    world.delete(gang[0])
    assert "and 1 earlier one still ends" in explain_waiting(world.queue, world.now)[0].message
    world.delete(gang[1])
    assert sorted(world.admitted()) == ["again-0", "again-1"]


def test_a_queue_that_is_drained_loses_its_gangs_whole(world: QueueWorld) -> None:
    """Also what was made again and has no node yet."""
    gang = _running_gang(world, 3)
    world.delete(gang[2])
    world.pod("again", 4, gang="G", size=3, metadata=OWNED)
    assert world.admitted() == ["again"]
    world.configure("queues: [{name: a, stopPolicy: HoldAndDrain}]")
    assert _list_requeued(world) == [("again", True), ("g0", True), ("g1", True)]
