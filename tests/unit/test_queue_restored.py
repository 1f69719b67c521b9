"""An API server that was put back to an older state: pods wear the gate again that was taken away."""

import pytest

from allocator.names import QUEUE_GATE
from scheduler_plugin.queue.cache.queued_pods import GATED_AGAIN_S
from scheduler_plugin.queue.controller.status import explain_waiting, report_queues
from tests.queue_world import QueueWorld

GATED = {"schedulingGates": [{"name": QUEUE_GATE}]}


@pytest.fixture
def world() -> QueueWorld:
    return QueueWorld(n1=(16,))


def test_a_released_pod_that_is_gated_again_is_released_again(world: QueueWorld) -> None:
    """News of its old gate may be late; not a minute late."""
    uid = world.pod("p", 8)
    assert world.admitted() == ["p"]
    world.now = 10.0
    world.change(uid, spec=GATED)
    assert world.queue.find_requeues(world.now) == []
    assert world.admitted() == []
    world.now = GATED_AGAIN_S
    assert [back.queued_pod.uid for back in world.queue.find_requeues(world.now)] == [uid]
    assert [each.name for each in explain_waiting(world.queue, world.now)] == ["p"]
    world.now += 2
    assert world.admitted() == ["p"]


def test_a_gang_that_is_gated_again_is_released_again(world: QueueWorld) -> None:
    """All of it."""
    gang = [world.pod(f"g{i}", 8, gang="G", size=2) for i in range(2)]
    assert len(world.admitted()) == 2
    world.now = 1000.0
    for uid in gang:
        world.change(uid, spec=GATED)
    world.queue.find_requeues(world.now)
    world.now += 2
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_bound_pod_that_is_gated_again_waits_and_has_nothing(world: QueueWorld) -> None:
    """Its room, its slot and its quota are free."""
    uid = world.run("p", 8)
    world.change(uid, spec=GATED | {"nodeName": ""})
    status = report_queues(world.queue, 0)[0]
    assert (status.used, status.running, status.waiting) == (0, 0, 1)
    assert world.admitted() == ["p"]
