"""Stages of a job: what its second stage waits for, whatever happens to the pods of the first."""

import pytest

from scheduler_plugin.queue.running.explain import Reason, tenants, waiting
from tests.queue_world import QueueWorld, world

__all__ = ["world"]

HELD = "example.com/other-gate"
"""Another controller's gate: the pod waits for it."""


def _gang(world: QueueWorld) -> list[str]:
    return [world.pod(f"g{i}", 8, data="d", job="j", gang="G", size=2) for i in range(2)]


def test_the_second_stage_of_a_job_waits_for_the_first(world: QueueWorld) -> None:
    """A pod without data waits for those of its job that read data; a failed one does not count as done."""
    first = world.pod("map", 1, data="d", job="j")
    world.pod("reduce", 1, job="j")
    assert world.released() == ["map"]
    world.bind(first)
    assert world.released() == []
    world.change(first, status={"phase": "Failed"})
    assert world.released() == []
    world.delete(first)
    assert world.released() == ["reduce"]


def test_a_second_stage_begins_when_the_pods_of_a_gang_have_succeeded() -> None:
    """The gang itself never ends: its pods do."""
    world = QueueWorld()
    world.node("n1", (16, 16))
    gang = _gang(world)
    world.pod("second", 1, job="j")
    assert sorted(world.released()) == ["g0", "g1"]
    for uid in gang:
        world.bind(uid)
    world.change(gang[0], status={"phase": "Succeeded"})
    assert world.released() == []
    world.change(gang[1], status={"phase": "Succeeded"})
    assert world.released() == ["second"]


def test_a_second_stage_begins_when_a_gang_was_deleted_before_its_release() -> None:
    """Nothing is left that it could wait for."""
    world = QueueWorld()
    world.node("n1", (1,))
    gang = _gang(world)
    world.pod("second", 1, job="j")
    assert world.released() == []
    for uid in gang:
        world.delete(uid)
    assert world.released() == ["second"]


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"gpupack.io/queue-name": "b"}},
        {"labels": {"gpupack.io/queue-name": "b"}, "annotations": {}},
        {"annotations": {"gpupack.io/data": "d", "gpupack.io/job": "other"}},
        {"annotations": {"gpupack.io/job": "j"}},
    ],
    ids=("queue", "queue and data", "job", "data"),
)
def test_a_pod_that_leaves_a_first_stage_holds_it_up_no_more(change: dict[str, dict[str, str]]) -> None:
    """It counts for the job and the queue that it names now, and for no other one."""
    world = QueueWorld("queues: [{name: a}, {name: b}]")
    world.node("n1", (16, 16))
    first = world.pod("first", 1, data="d", job="j", gates=("gpupack.io/queue", HELD))
    world.pod("second", 1, job="j")
    assert world.released() == []
    world.change(first, metadata=change)
    world.delete(first)
    assert world.released() == ["second"]


def test_a_failed_pod_holds_its_job_up_across_a_new_configuration() -> None:
    """Its queue goes and comes back meanwhile."""
    world = QueueWorld("queues: [{name: a}, {name: b}]")
    world.node("n1", (16, 16))
    first = world.pod("first", 1, data="d", job="j")
    world.pod("second", 1, job="j")
    world.released()
    world.bind(first)
    world.change(first, status={"phase": "Failed"})
    world.configure("queues: [{name: b}]")
    world.configure("queues: [{name: a}, {name: b}]")
    assert world.released() == []
    assert [each.reason for each in waiting(world.queue, 0)] == [Reason.STAGE]
    world.delete(first)
    assert world.released() == ["second"]


def test_queues_that_nobody_configured_leave_nothing_behind() -> None:
    """Pods may name what they like; each name would be a row of the status and a series of the metrics."""
    world = QueueWorld()
    world.node("n1", (16,))
    for i in range(3):
        world.delete(world.pod(f"first-{i}", 1, queue=f"unknown-{i}", data="d", job="j"))
        world.delete(world.pod(f"gone-{i}", 1, queue=f"released-{i}", gates=()))
        moved = world.pod(f"moved-{i}", 1, queue=f"left-{i}", data="d", job="j")
        world.change(moved, metadata={"labels": {"gpupack.io/queue-name": "a"}})
    assert [each.name for each in tenants(world.queue, 0)] == ["a"]
