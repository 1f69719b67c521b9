"""Stages of a job: what its second stage waits for, whatever happens to the pods of the first."""

from typing import Any

import pytest

from allocator.names import POD_FIRST_STAGE_SIZE
from scheduler_plugin.queue.controller.status import WaitReason, explain_waiting, report_queues
from tests.queue_world import QueueWorld, world

__all__ = ["world"]

HELD = "example.com/other-gate"
"""Another controller's gate: the pod waits for it."""


def _gang(world: QueueWorld) -> list[str]:
    return [world.pod(f"g{i}", 8, data="d", job="j", gang="G", size=2) for i in range(2)]


def _run(world: QueueWorld, name: str) -> None:
    """Let a pod of the first stage come, run and succeed."""
    uid = world.pod(name, 1, data="d", job="j")
    assert world.admitted() == [name]
    world.bind(uid)
    world.change(uid, status={"phase": "Succeeded"})


def test_the_second_stage_of_a_job_waits_for_the_first(world: QueueWorld) -> None:
    """A pod without data waits until one with data has succeeded, also in place of one that has failed."""
    first = world.pod("map", 1, data="d", job="j")
    world.pod("reduce", 1, job="j")
    assert world.admitted() == ["map"]
    world.bind(first)
    assert world.admitted() == []
    world.change(first, status={"phase": "Failed"})
    assert world.admitted() == []
    world.delete(first)
    assert world.admitted() == []
    _run(world, "again")
    assert world.admitted() == ["reduce"]


@pytest.mark.parametrize("fate", ["waits", "runs", "failed"])
@pytest.mark.parametrize("controller", ["", "PyTorchJob"])
def test_a_second_stage_does_not_begin_when_the_only_pod_of_the_first_is_deleted(
    world: QueueWorld, fate: str, controller: str
) -> None:
    """Nothing of the first stage has succeeded; an eviction for a lender is such a deletion."""
    owner = {"apiVersion": "kubeflow.org/v1", "kind": controller, "uid": "u", "controller": True}
    metadata = {"ownerReferences": [owner]} if controller else {}
    first = world.pod("map", 1, data="d", job="j", metadata=metadata)
    world.pod("reduce", 1, job="j")
    if fate != "waits":
        assert world.admitted() == ["map"]
        world.bind(first)
    if fate == "failed":
        world.change(first, status={"phase": "Failed"})
    world.delete(first)
    assert world.admitted() == []
    assert explain_waiting(world.queue, 0)[0].message == (
        "its job waits for its first stage: 1 pod with data is gone without success, and another one in its"
        " place must succeed; where none comes, gpupack.io/first-stage-size says how many must"
    )
    _run(world, "again")
    assert world.admitted() == ["reduce"]


def test_a_second_stage_waits_for_whatever_comes_in_place_of_each_lost_pod(world: QueueWorld) -> None:
    """Also where others have succeeded, and where a new pod comes while the old one still ends."""
    first = [world.pod(name, 1, data="d", job="j") for name in ("m1", "m2", "m3")]
    world.pod("reduce", 1, job="j")
    world.admitted()
    world.bind(*first)
    world.change(first[0], status={"phase": "Succeeded"})
    world.delete(first[1])
    world.change(first[2], metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    _run(world, "in place of m3")
    world.delete(first[2])
    assert world.admitted() == []
    _run(world, "in place of m2")
    assert world.admitted() == ["reduce"]


def test_a_second_stage_begins_without_a_lost_pod_where_its_size_says_that_others_are_enough(
    world: QueueWorld,
) -> None:
    lost = world.pod("lost", 1, data="d", job="j")
    reduce = world.pod("reduce", 1, job="j")
    assert world.admitted() == ["lost"]
    _run(world, "map")
    world.delete(lost)
    assert world.admitted() == []
    notes = world.objects[reduce]["metadata"]["annotations"]
    world.change(reduce, metadata={"annotations": {**notes, POD_FIRST_STAGE_SIZE: "1"}})
    assert world.admitted() == ["reduce"]


def test_a_second_stage_begins_when_the_pods_of_a_gang_have_succeeded() -> None:
    """The gang itself never ends: its pods do."""
    world = QueueWorld(n1=(16, 16))
    gang = _gang(world)
    world.pod("second", 1, job="j")
    assert sorted(world.admitted()) == ["g0", "g1"]
    world.bind(*gang)
    world.change(gang[0], status={"phase": "Succeeded"})
    assert world.admitted() == []
    world.change(gang[1], status={"phase": "Succeeded"})
    assert world.admitted() == ["second"]


def test_a_second_stage_does_not_begin_when_a_gang_was_deleted_before_its_release() -> None:
    """It waits for the next gang."""
    world = QueueWorld(n1=(1,))
    gang = _gang(world)
    world.pod("second", 1, job="j")
    assert world.admitted() == []
    for uid in gang:
        world.delete(uid)
    assert world.admitted() == []
    assert "2 pods with data are gone without success" in explain_waiting(world.queue, 0)[0].message
    world.node("n1", (16, 16))
    gang = _gang(world)
    assert sorted(world.admitted()) == ["g0", "g1"]
    for uid in gang:
        world.bind(uid)
        world.change(uid, status={"phase": "Succeeded"})
    assert world.admitted() == ["second"]


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"gpupack.io/queue-name": "b"}, "annotations": {}},
        {"annotations": {"gpupack.io/data": "d", "gpupack.io/job": "other"}},
        {"annotations": {"gpupack.io/job": "j"}},
    ],
    ids=("queue and data", "job", "data"),
)
def test_a_pod_that_leaves_a_first_stage_holds_it_up_no_more(change: dict[str, dict[str, str]]) -> None:
    """It counts for the job that it names now, and for no other one."""
    world = QueueWorld("queues: [{name: a}, {name: b}]", n1=(16, 16))
    first = world.pod("first", 1, data="d", job="j", gates=("gpupack.io/queue", HELD))
    world.pod("second", 1, job="j")
    _run(world, "map")
    assert world.admitted() == []
    world.change(first, metadata=change)
    world.delete(first)
    assert world.admitted() == ["second"]


def test_a_pod_that_moves_to_another_queue_holds_its_job_up_there(world: QueueWorld) -> None:
    """Not in the queue that it has left: the stages of a job hold within one."""
    first = world.pod("first", 1, data="d", job="j", gates=("gpupack.io/queue", HELD))
    world.pod("second", 1, job="j")
    _run(world, "map")
    assert world.admitted() == []
    world.change(first, metadata={"labels": {"gpupack.io/queue-name": "b"}})
    assert world.admitted() == ["second"]


def test_a_failed_pod_holds_its_job_up_across_a_new_configuration() -> None:
    """Its queue goes and comes back meanwhile."""
    world = QueueWorld("queues: [{name: a}, {name: b}]", n1=(16, 16))
    first = world.pod("first", 1, data="d", job="j")
    world.pod("second", 1, job="j")
    world.admitted()
    world.bind(first)
    world.change(first, status={"phase": "Failed"})
    world.configure("queues: [{name: b}]")
    world.configure("queues: [{name: a}, {name: b}]")
    assert world.admitted() == []
    assert [each.reason for each in explain_waiting(world.queue, 0)] == [WaitReason.STAGE]
    _run(world, "again")
    assert world.admitted() == []
    world.delete(first)
    assert world.admitted() == ["second"]


def test_queues_that_nobody_configured_leave_nothing_behind() -> None:
    """Pods may name what they like; each name would be a row of the status and a series of the metrics."""
    world = QueueWorld(n1=(16,))
    for i in range(3):
        world.delete(world.pod(f"first-{i}", 1, queue=f"unknown-{i}", data="d", job="j"))
        world.delete(world.pod(f"gone-{i}", 1, queue=f"released-{i}", gates=()))
        moved = world.pod(f"moved-{i}", 1, queue=f"left-{i}", data="d", job="j")
        world.change(moved, metadata={"labels": {"gpupack.io/queue-name": "a"}})
    assert [each.name for each in report_queues(world.queue, 0)] == ["a"]


def test_a_second_stage_waits_for_a_first_one_that_comes_later(world: QueueWorld) -> None:
    """The reduce pod was there before any map pod: it is not taken for one of a job that has none."""
    world.pod("reduce", 1, job="j")
    assert world.admitted() == []
    (why,) = explain_waiting(world.queue, 0)
    assert why.reason is WaitReason.STAGE
    assert why.message == (
        "its job waits for its first stage: no pod with data of job default/j is known yet; "
        "where it has none, gpupack.io/first-stage-size: 0 says so"
    )
    first = world.run("map", 1, data="d", job="j")
    world.change(first, status={"phase": "Succeeded"})
    assert world.admitted() == ["reduce"]


def test_a_second_stage_waits_for_all_completions_of_the_job_that_makes_the_first(world: QueueWorld) -> None:
    """Also for pods that do not exist yet; a failed pod that its Job makes again is no hindrance."""
    world.job("maps", completions=2, data="d", job="j")
    world.pod("reduce", 1, job="j")
    uids = []
    for name, phase in (("m1", "Succeeded"), ("m2", "Failed"), ("m3", "Succeeded")):
        assert world.admitted() == []
        uids.append(world.pod(name, 1, data="d", job="j", metadata=world.made_by("maps")))
        assert world.admitted() == [name]
        world.bind(uids[-1])
        world.change(uids[-1], status={"phase": phase})
    assert world.admitted() == []
    assert explain_waiting(world.queue, 0)[0].message == (
        "its job waits for its first stage: Job default/maps has 0 of 2 pods that succeeded"
    )
    world.job("maps", completions=2, data="d", job="j", succeeded=1)
    assert world.admitted() == []
    world.job("maps", completions=2, data="d", job="j", succeeded=2)
    assert world.admitted() == ["reduce"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"completions": None}, "Job default/maps is not complete: it has 1 pod that succeeded"),
        ({"completions": 3, "failed": True}, "Job default/maps has failed, with 1 of 3 pods that succeeded"),
    ],
    ids=("work queue", "failed"),
)
def test_a_second_stage_is_told_what_its_first_one_lacks(
    world: QueueWorld, job: dict[str, Any], said: str
) -> None:
    """And begins when the Job is gone, or complete."""
    world.job("maps", data="d", job="j", succeeded=1, **job)
    world.pod("reduce", 1, job="j")
    assert world.admitted() == []
    assert explain_waiting(world.queue, 0)[0].message == f"its job waits for its first stage: {said}"
    world.job("maps", data="d", job="j", succeeded=1, completions=job["completions"], complete=True)
    assert world.admitted() == ["reduce"]


def test_an_annotation_says_how_many_pods_the_first_stage_has(world: QueueWorld) -> None:
    """On any pod of the job; those that succeeded count also when they are gone, those that failed do not."""
    reduce = world.pod("reduce", 1, job="j", annotations={POD_FIRST_STAGE_SIZE: "2"})
    for name, phase, left in (("m1", "Succeeded", 1), ("m2", "Failed", 1), ("m3", "Succeeded", 2)):
        first = world.pod(name, 1, data="d", job="j")
        assert world.admitted() == [name]
        world.bind(first)
        world.change(first, status={"phase": phase})
        if left < 2:
            assert world.admitted() == []
            assert f"{left} of 2 pods have succeeded" in explain_waiting(world.queue, 0)[0].message
        world.delete(first)
    assert world.admitted() == ["reduce"]
    world.bind(reduce)
    world.pod("none", 1, job="k", annotations={POD_FIRST_STAGE_SIZE: "0"})
    assert world.admitted() == ["none"]


@pytest.mark.parametrize(
    ("size", "job", "why"),
    [
        ("-1", "j", 'is "-1"; allowed: a whole number from 0 to 999999'),
        ("two", "j", 'is "two"; allowed: a whole number from 0 to 999999'),
        ("2", "", "without gpupack.io/job; allowed: both or none"),
    ],
)
def test_a_size_that_makes_no_sense_is_told(world: QueueWorld, size: str, job: str, why: str) -> None:
    """And what is allowed."""
    world.pod("reduce", 1, job=job, annotations={POD_FIRST_STAGE_SIZE: size})
    assert world.admitted() == []
    assert explain_waiting(world.queue, 0)[0].message == f"annotation {POD_FIRST_STAGE_SIZE} {why}"


def test_until_jobs_are_known_no_second_stage_begins() -> None:
    """A Job may make more pods than are seen; where an annotation says how many that does not matter."""
    world = QueueWorld(knows_jobs=False, n1=(16, 16))
    first = world.pod("map", 1, data="d", job="j")
    world.pod("reduce", 1, job="j")
    counted = world.pod("counted", 1, data="d", job="k")
    world.pod("reduce-k", 1, job="k", annotations={POD_FIRST_STAGE_SIZE: "1"})
    assert sorted(world.admitted()) == ["counted", "map"]
    for uid in (first, counted):
        world.bind(uid)
        world.change(uid, status={"phase": "Succeeded"})
    assert world.admitted() == ["reduce-k"]
    assert explain_waiting(world.queue, 0)[0].message == (
        "its job waits for its first stage: the Jobs of the cluster are not known yet"
    )
    world.queue.job_stages.set_jobs([])
    assert world.admitted() == ["reduce"]


def test_a_pod_whose_job_is_not_known_yet_does_not_end_its_first_stage(world: QueueWorld) -> None:
    """Pods and Jobs come by two watches."""
    first = world.pod("map", 1, data="d", job="j", metadata=world.made_by("maps"))
    world.pod("reduce", 1, job="j")
    assert world.admitted() == ["map"]
    world.bind(first)
    world.change(first, status={"phase": "Succeeded"})
    assert world.admitted() == []
    assert explain_waiting(world.queue, 0)[0].message == (
        "its job waits for its first stage: the Job that made pod default/map is not known yet"
    )
    world.job("maps", completions=2, data="d", job="j", succeeded=1)
    assert world.admitted() == []
    world.lose_job("maps")
    assert world.admitted() == ["reduce"]


@pytest.mark.parametrize(("complete", "admitted"), [(True, ["reduce"]), (False, [])])
def test_a_job_that_is_deleted_has_ended_its_first_stage_where_it_was_complete(
    world: QueueWorld, *, complete: bool, admitted: list[str]
) -> None:
    """Of a Job without completions pods may fail, and it is complete; others are gone without success."""
    made = [world.pod(name, 1, data="d", job="j", metadata=world.made_by("maps")) for name in ("m1", "m2")]
    world.job("maps", None, data="d", job="j")
    world.admitted()
    for uid, phase in zip(made, ("Succeeded", "Failed"), strict=True):
        world.bind(uid)
        world.change(uid, status={"phase": phase})
    world.job("maps", None, data="d", job="j", succeeded=1, complete=complete)
    world.pod("reduce", 1, job="j")
    world.lose_job("maps")
    for uid in made:
        world.delete(uid)
    assert world.admitted() == admitted


def test_pods_that_a_complete_job_leaves_behind_need_not_succeed(world: QueueWorld) -> None:
    """With a success policy a Job is complete while some of its pods run; they end after it is deleted."""
    made = [
        world.pod(name, 1, data="d", job="j", metadata=world.made_by("maps")) for name in ("m1", "m2", "m3")
    ]
    world.job("maps", 3, data="d", job="j")
    world.admitted()
    world.bind(*made)
    world.change(made[0], status={"phase": "Succeeded"})
    world.job("maps", 3, data="d", job="j", succeeded=1, complete=True)
    world.pod("reduce", 1, job="j")
    world.lose_job("maps")
    for uid in made[1:]:
        world.change(uid, metadata={"deletionTimestamp": "2026-01-01T01:00:00Z"})
    assert world.admitted() == []
    for uid in made[1:]:
        world.delete(uid)
    assert world.admitted() == ["reduce"]


def test_a_second_stage_that_is_made_again_does_not_wait_for_pods_that_are_gone(world: QueueWorld) -> None:
    """While a pod of the job exists it is remembered that its first stage has ended."""
    first = world.pod("map", 1, data="d", job="j")
    reduce = world.pod("reduce", 1, job="j")
    world.admitted()
    world.bind(first)
    world.change(first, status={"phase": "Succeeded"})
    assert world.admitted() == ["reduce"]
    world.delete(first)
    world.bind(reduce)
    world.change(reduce, status={"phase": "Failed"})
    again = world.pod("again", 1, job="j")
    assert world.admitted() == ["again"]
    for uid in (reduce, again):
        world.delete(uid)
    world.pod("next", 1, job="j")
    assert world.admitted() == []
