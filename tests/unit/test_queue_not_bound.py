"""Releases that come to nothing: a pod that is not bound gives its room back, waits again, or is removed."""

from allocator.names import POD_GANG, POD_GANG_SIZE
from kubeapi.objects import MIRROR_ANNOTATION
from scheduler_plugin.queue.controller import status
from tests.queue_world import ONE_QUEUE, UNSCHEDULABLE, QueueWorld, world

__all__ = ["world"]


def test_a_release_that_finds_no_card_gives_its_room_back_at_once(world: QueueWorld) -> None:
    """kube-scheduler knows reasons that the queue does not."""
    uid = world.pod("one", 16)
    world.pod("two", 16)
    world.decide()
    world.pod("three", 15)
    world.change(uid, status=UNSCHEDULABLE)
    assert world.admitted() == ["three"]
    (back,) = world.requeue_pods()
    assert (back.queued_pod.uid, back.why, back.removes) == (
        uid,
        "kube-scheduler found no node for it",
        False,
    )
    assert world.queue.find_requeues(world.now) == []
    world.now = 120
    assert [back.why for back in world.queue.find_requeues(world.now)] == [
        "not bound within 120 s of its admission"
    ] * 2


def test_of_pods_that_are_alike_one_is_tried_at_a_time_after_kube_scheduler_refused_one() -> None:
    """It refuses for a reason that the queue cannot see, so there is room and quota for all of them."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 160}]", n1=(16,))
    uids = [world.pod(f"p{i}", 16, created=i) for i in range(50)]
    at = []
    while world.now < 600:
        for name in world.admitted():
            at.append(world.now)
            world.change(f"uid-{name}", status=UNSCHEDULABLE)
        world.now += 1
    assert at == [0, 10, 30, 70, 150, 310]
    held = world.queue.queued_pods[uids[-1]]
    message = status.explain_pod(world.queue, held, world.now).message
    assert message.startswith("pod default/p0 asks for the same and could not be bound")
    world.pod("other", 15, created=99)
    assert world.admitted() == ["other"], "another one goes at once"
    world.delete("uid-other")
    world.bind_to(uids[0], "n1")
    world.delete(uids[0])
    assert world.admitted() == ["p6"], "once one is bound all may go that fit"


def test_one_that_can_never_be_bound_is_not_tried_for_ever_in_place_of_others_like_it() -> None:
    """It is the oldest, and has a reason of its own: a volume of its own, say."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 160}]")
    stuck = {"uid-p0", "uid-p1"}
    for number in range(6):
        world.pod(f"p{number}", 4, created=number)
    world.node("n1", (4,))
    bound: dict[str, float] = {}
    while world.now < 100:
        for name in world.admitted():
            if f"uid-{name}" in stuck:
                said = {"conditions": [{**UNSCHEDULABLE["conditions"][0], "message": f"at {world.now}"}]}
                world.change(f"uid-{name}", status=said)
            else:
                bound[name] = world.now
                world.bind(f"uid-{name}")
                world.node("n1", (4,) * 8)
        world.requeue_pods()
        world.now += 1
    assert bound == {"p2": 30, "p3": 31, "p4": 31, "p5": 31}


def test_in_batch_mode_what_kube_scheduler_refused_is_removed_too() -> None:
    """It is pinned to its node; it is asked again until it is gone."""
    world = QueueWorld("mode: batch\nqueues: [{name: a}]", n1=(16,))
    uid = world.pod("p", 16)
    world.change(uid, metadata={"ownerReferences": [{"uid": "set", "controller": True}]})
    world.decide()
    world.change(uid, status=UNSCHEDULABLE)
    found = []
    for world.now in range(140):
        found += [(world.now, back.removes) for back in world.queue.find_requeues(world.now)]
    assert found == [(0, False), (120, True), (125, True), (135, True)]
    world.delete(uid)
    assert world.queue.find_requeues(500) == []


def test_a_release_that_is_not_bound_in_time_gives_its_room_back(world: QueueWorld) -> None:
    """Two minutes, unless configured."""
    uid = world.pod("one", 16)
    world.decide()
    world.now = 119
    assert world.queue.find_requeues(world.now) == []
    world.now = 120
    (back,) = world.queue.find_requeues(world.now)
    assert (back.queued_pod.uid, back.removes) == (uid, False)
    assert world.state.get_assumed(uid) is None
    assert world.queue.find_requeues(world.now) == []


def test_a_release_that_the_api_server_refuses_waits_again(world: QueueWorld) -> None:
    """With nothing taken, and is admitted once more after a pause, longer each time."""
    uid = world.pod("one", 16)
    for pause_s in (1, 2, 4):
        (release,) = world.queue.admit_workloads(world.now)
        world.queue.record_refused_admission(release.workload.uid, world.now, "no")
        assert world.state.get_assumed(uid) is None
        assert world.queue.queues["a"].units == 0
        assert (
            world.queue.refusals.explain(world.queue.queued_pods[uid])
            == "the API server refuses its admission: no"
        )
        world.now += pause_s - 0.1
        assert not list(world.queue.admit_workloads(world.now))
        world.now += 0.1
    (release,) = world.queue.admit_workloads(world.now)
    world.queue.record_refused_admission(uid, world.now)
    assert not world.queue.refusals.explain(world.queue.queued_pods[uid]), "it had changed: nobody refuses it"
    assert not list(world.queue.admit_workloads(world.now))
    world.now += 8
    assert world.admitted() == ["one"]


def test_a_release_that_was_not_written_yet_is_not_late(world: QueueWorld) -> None:
    """Its time begins when the API server shows it without its gate."""
    uid = world.pod("one", 16)
    list(world.queue.admit_workloads(world.now))
    world.now = 500
    assert world.queue.find_requeues(world.now) == []
    world.change(uid, spec={"schedulingGates": []})
    world.now = 619
    assert world.queue.find_requeues(world.now) == []
    world.now = 620
    assert len(world.queue.find_requeues(world.now)) == 1


def test_a_drained_queue_removes_its_pods_until_they_are_gone(world: QueueWorld) -> None:
    """Stop HoldAndDrain; a PodDisruptionBudget may protect them for a while. Also those without room."""
    drain = "queues: [{name: a, stopPolicy: HoldAndDrain}]"
    uids = [world.pod("one"), world.pod("two")]
    world.decide()
    world.bind(uids[0])
    world.change(uids[1], status=UNSCHEDULABLE)
    world.queue.find_requeues(0)
    world.configure(drain)
    assert sorted((back.queued_pod.uid, back.removes) for back in world.queue.find_requeues(0)) == [
        (uids[0], True),
        (uids[1], True),
    ]
    assert world.queue.find_requeues(4) == []
    assert {back.queued_pod.uid for back in world.queue.find_requeues(5)} == set(uids)
    world.change(uids[0], metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    world.delete(uids[1])
    assert world.queue.find_requeues(100) == []
    third = world.pod("three")
    world.configure(ONE_QUEUE)
    assert world.queue.find_requeues(101) == []
    world.now = 101
    assert world.admitted() == ["three"]
    world.configure(drain)
    assert [back.queued_pod.uid for back in world.queue.find_requeues(102)] == [third]


def test_nobody_evicts_the_image_of_a_static_pod() -> None:
    """The kubelet makes it again at once, with another UID: it would be evicted every second for ever."""
    world = QueueWorld(n1=(16, 16))
    static = {
        "annotations": {MIRROR_ANNOTATION: "digest"},
        "ownerReferences": [{"kind": "Node", "name": "n1", "uid": "node", "controller": True}],
    }
    late = world.pod("late", 4, gang="g", size=2)
    gang = {POD_GANG: "g", POD_GANG_SIZE: "2", **static["annotations"]}
    world.pod("of-gang", 4, gates=(), node="n1", metadata={**static, "annotations": gang})
    world.pod("alone", 4, gates=(), node="n1", metadata=static)
    world.change(late, metadata={"ownerReferences": [{"uid": "job", "controller": True}]})
    assert world.admitted() == ["late"]
    world.now = 301
    assert [back.queued_pod.uid for back in world.queue.find_requeues(world.now)] == [late]
    world.configure("queues: [{name: a, stopPolicy: HoldAndDrain}]")
    assert {back.queued_pod.uid for back in world.queue.find_requeues(400)} == {late}
