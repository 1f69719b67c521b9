"""Releases that kube-scheduler cannot place: the pods are requeued, and their turn comes again."""

from typing import Any

import pytest

from allocator.names import POD_REQUEUED, QUEUE_GATE
from scheduler_plugin.queue.cache.queued_pods import Phase, RequeueWrite
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.controller.status import WaitReason
from scheduler_plugin.queue.controller.writer import make_admission_patch, make_requeue_patch
from scheduler_plugin.scheduling.reasons import REQUEUED
from tests.queue_world import TWO_QUEUES, QueueWorld, world

__all__ = ["world"]


def refused(message: str = "0/1 nodes are available", at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    """Status of a pod for which kube-scheduler found no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"conditions": [{**condition, "message": message, "lastTransitionTime": at}]}


def test_what_kube_scheduler_cannot_place_gives_its_quota_back() -> None:
    """Otherwise both queues are full for ever, and the cards idle."""
    world = QueueWorld(TWO_QUEUES, n1=(16, 16))
    lost = [world.pod("a0", 16), world.pod("b0", 16, queue="b")]
    assert len(world.decide()) == 2
    world.pod("a1", 8)
    world.pod("b1", 8, queue="b")
    for uid in lost:
        world.change(uid, status=refused())
    assert world.admitted() == [], "kube-scheduler may bind them yet: their quota is their own"
    assert {(back.queued_pod.uid, back.write is RequeueWrite.MARK) for back in world.requeue_pods()} == {
        (uid, True) for uid in lost
    }
    assert [world.queue.queues[name].units for name in "ab"] == [0, 0]
    assert sorted(world.admitted()) == ["a1", "b1"]
    why = status.explain_pod(world.queue, world.queue.queued_pods[lost[0]], world.now)
    assert (why.reason, why.message) == (
        WaitReason.HELD,
        "it could not be bound when it was admitted; it is tried again after a pause",
    )


def test_what_is_not_bound_in_time_gives_its_quota_back(world: QueueWorld) -> None:
    """Whatever the reason, within bindWithin."""
    uid = world.pod("p", 16)
    world.decide()
    world.now = 120
    assert [back.write is RequeueWrite.MARK for back in world.requeue_pods()] == [True]
    assert world.queue.queues["a"].units == 0
    assert world.queue.queued_pods[uid].phase is Phase.GATED


def test_a_pod_that_lost_its_race_goes_before_younger_ones() -> None:
    """Small pods that keep coming do not starve it: it has its old place, and room is kept for it."""
    world = QueueWorld("queues: [{name: a}]\nkeepRoomAfter: 60s", n1=(16,))
    large = world.pod("large", 16, created=0)
    assert world.admitted() == ["large"]
    world.pod("foreign", 4, queue="", gates=())
    world.change("uid-foreign", spec={"nodeName": "n1"})
    world.change(large, status=refused())
    started, running, bound_at = 0, {"uid-foreign": 30.0}, 0.0
    for second in range(1, 600):
        world.now = second
        world.pod(f"s{second}", 4, created=second)
        for uid in [uid for uid, end in running.items() if end <= second]:
            del running[uid]
            world.delete(uid)
        world.requeue_pods()
        world.queue.update_reservations(world.now)
        for name in world.admitted():
            world.bind(f"uid-{name}")
            if name == "large":
                bound_at = second
            else:
                started += 1
                running[f"uid-{name}"] = second + 20
        if bound_at:
            break
    assert 0 < bound_at <= 60 + 20 + 1, f"{started} small pods started meanwhile"


def test_a_requeued_pod_is_found_again_after_a_restart(world: QueueWorld) -> None:
    """The annotation says it, whoever reads it."""
    uid = world.pod("p", 16, gates=(), annotations={POD_REQUEUED: "true"})
    pod = world.queue.queued_pods[uid]
    assert pod.phase is Phase.GATED
    assert world.queue.queues["a"].units == 0
    assert world.admitted() == ["p"]


def test_what_is_known_of_a_requeued_pod_may_be_old(world: QueueWorld) -> None:
    """Of its second admission it is not told what was said of its first one, nor by a version before that."""
    uid = world.pod("p", 16)
    world.decide()
    world.change(uid, status=refused("first"))
    world.requeue_pods()
    world.now = 10
    assert len(list(world.queue.admit_workloads(world.now))) == 1
    world.change(uid, metadata={"labels": {"gpupack.io/queue-name": "a", "new": "label"}})
    assert world.queue.queued_pods[uid].phase is Phase.ADMITTED, "the release is not seen yet"
    assert world.requeue_pods() == []
    del world.objects[uid]["metadata"]["annotations"][POD_REQUEUED]
    world.change(uid)
    assert world.requeue_pods() == [], "kube-scheduler has said nothing new"
    world.change(uid, status=refused(f"0/1 nodes are available: 1 {REQUEUED}."))
    assert world.requeue_pods() == [], "said while it was requeued"
    world.change(uid, status=refused("second"))
    assert [back.why for back in world.requeue_pods()] == ["kube-scheduler found no node for it"]


def test_the_same_words_are_new_after_other_ones(world: QueueWorld) -> None:
    uid = world.pod("p", 16)
    world.decide()
    world.change(uid, status=refused("no card"))
    world.requeue_pods()
    world.change(uid, status=refused(f"0/1 nodes are available: 1 {REQUEUED}."))
    world.now = 10
    assert world.admitted() == ["p"]
    world.change(uid, status=refused("no card"))
    assert [back.write is RequeueWrite.MARK for back in world.requeue_pods()] == [True]


def test_a_pod_that_is_bound_after_all_is_not_requeued(world: QueueWorld) -> None:
    uid = world.pod("p", 16)
    world.decide()
    world.change(uid, status=refused())
    (back,) = world.queue.find_requeues(world.now)
    world.bind_to(uid, "n1")
    assert world.queue.queued_pods[uid].phase is Phase.BOUND
    assert world.queue.queues["a"].units == 16
    world.now = 500
    assert back.write is RequeueWrite.MARK
    assert world.queue.find_requeues(world.now) == []


def test_it_is_asked_again_while_the_api_server_refuses(world: QueueWorld) -> None:
    """Its quota is its own as long."""
    uid = world.pod("p", 16)
    world.decide()
    world.change(uid, status=refused())
    found = []
    for world.now in range(40):
        found += [world.now for _ in world.queue.find_requeues(world.now)]
    assert found == [0, 5, 15, 35]
    assert world.queue.queues["a"].units == 16


@pytest.mark.parametrize("annotated", [False, True])
def test_the_patches(world: QueueWorld, *, annotated: bool) -> None:
    """One marks a pod that is as it was seen; the other lets it go, if it still names the same queue."""
    uid = world.pod("p", annotations={"note": "x"} if annotated else None)
    world.decide()
    pod = world.queue.queued_pods[uid]
    add: dict[str, Any] = {"op": "add", "path": "/metadata/annotations/gpupack.io~1requeued", "value": "true"}
    if not annotated:
        add = {"op": "add", "path": "/metadata/annotations", "value": {POD_REQUEUED: "true"}}
    assert make_requeue_patch(pod) == [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.record.resource_version},
        add,
    ]
    world.requeue(uid)
    # A second try of an admission without an answer must not undo the requeue that came meanwhile.
    take_off = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.record.resource_version},
        {"op": "remove", "path": "/metadata/annotations/gpupack.io~1requeued"},
    ]
    assert make_admission_patch(pod, "n1") == take_off, (
        "the affinity of a pod without a gate cannot be changed"
    )
    world.change(uid, spec={"schedulingGates": [{"name": QUEUE_GATE}]})
    take_off[1]["value"] = pod.record.resource_version
    assert make_admission_patch(pod) == [
        *take_off,
        {"op": "test", "path": "/metadata/labels/gpupack.io~1queue-name", "value": "a"},
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": QUEUE_GATE}]},
        {"op": "remove", "path": "/spec/schedulingGates"},
    ]


def test_in_batch_mode_a_bare_pod_waits_for_the_node_that_it_is_pinned_to() -> None:
    """Its affinity cannot be loosened; one with a controller is removed, and placed anew."""
    world = QueueWorld("mode: batch\nqueues: [{name: a}]", n1=(16,), n2=(16,))
    uid = world.pod("p", 16)
    (release,) = world.decide()
    node = release.members[0].node
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pinned]}}
    world.change(uid, spec={"affinity": {"nodeAffinity": required}}, status=refused())
    assert [back.write for back in world.requeue_pods()] == [RequeueWrite.MARK]
    assert world.admitted() == [], "like others it is tried again after a pause"
    world.now = 10
    (again,) = world.decide()
    assert again.members[0].node == node


@pytest.mark.parametrize("mode", ["gate", "batch"])
@pytest.mark.parametrize("gang", [{}, {"gang": "g", "size": 1}], ids=["pod", "gang"])
def test_a_pod_that_no_quota_counts_is_let_alone(mode: str, gang: dict[str, Any]) -> None:
    """Nobody gated it, and its queue is not for its namespace: no admission would take the mark away."""
    world = QueueWorld(
        f"mode: {mode}\nqueues: [{{name: a, namespaceSelector: {{matchLabels: {{team: x}}}}}}]"
    )
    world.queue.set_namespaces({"default": {"team": "y"}})
    world.node("n1", (16,))
    owner = {"ownerReferences": [{"uid": "owner", "controller": True}]}
    for name, metadata in (("owned", owner), ("bare", {})):
        uid = world.pod(name, 8, gates=(), **{**gang, "gang": name} if gang else {})
        world.change(uid, status=refused(), metadata=metadata)
    backs = []
    for world.now in range(0, 2000, 100):
        backs += world.requeue_pods()
    assert [back.queued_pod.uid for back in backs if back.write is not RequeueWrite.NOTHING] == []
    assert world.queue.queued_pods["uid-owned"].phase is Phase.ADMITTED


def test_a_pod_for_which_others_are_being_evicted_has_its_time(world: QueueWorld) -> None:
    """kube-scheduler names no node for it and victims in one breath: they would have gone in vain."""
    uid = world.pod("p", 16)
    world.decide()
    world.change(uid, status={**refused(), "nominatedNodeName": "n1"})
    assert world.requeue_pods() == []
    world.now = 60
    world.bind_to(uid, "n1")
    assert world.queue.queues["a"].units == 16
    late = world.pod("late", 16)
    world.decide()
    world.change(late, status={**refused(), "nominatedNodeName": "n1"})
    world.now = 180
    assert [(back.queued_pod.uid, back.write is RequeueWrite.MARK) for back in world.requeue_pods()] == [
        (late, True)
    ]
    world.now = 200
    assert world.admitted() == ["late"]
    world.change(late, status={**refused("another"), "nominatedNodeName": ""})
    assert [back.queued_pod.uid for back in world.requeue_pods()] == [late]
