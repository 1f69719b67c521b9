"""A pod that the queue has requeued may be placed nowhere: nobody goes for it, and nothing is kept for it."""

from typing import Any

import pytest

from allocator.names import POD_REQUEUED
from scheduler_plugin.preemption.nominations import FOREIGN_NOMINATION_S, RESERVED_AFTER_EVICTION_S
from tests.preemption_world import PreemptionWorld


@pytest.fixture
def world() -> PreemptionWorld:
    return PreemptionWorld.of_two_nodes()


def requeue(world: PreemptionWorld, pod: dict[str, Any], *, again: bool = True) -> None:
    """The queue marks a pod, or takes the mark away."""
    world.version += 1
    pod["metadata"]["resourceVersion"] = str(world.version)
    pod["metadata"]["annotations"] = {POD_REQUEUED: "true"} if again else {}
    world.see(pod)


async def test_nobody_goes_for_a_pod_that_was_refused_and_then_requeued(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    requeue(world, needy)
    await world.settle()
    await world.settle()
    assert (world.api.evicted, len(world.state.reservations)) == ([], 0)
    requeue(world, needy, again=False)
    assert world.filter(needy) == []
    await world.settle()
    assert await world.evicted() == ["b"]


async def test_a_pod_that_is_requeued_between_two_evictions_ends_them() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 1), b=(0, 4, 1))
    needy = world.wait("needy", 8)
    world.preemptor.evicted.connect(lambda *_: requeue(world, needy))
    await world.settle()
    assert (len(world.api.evicted), len(world.state.reservations)) == (1, 0)


async def test_what_is_kept_for_a_pod_that_is_requeued_is_for_others(world: PreemptionWorld) -> None:
    """It would stand idle until the pod's turn comes, and kube-scheduler counts the nomination too."""
    failed = []
    world.preemptor.failed.connect(lambda pod, why: failed.append(pod.name))
    needy = world.wait("needy", 8)
    await world.settle()
    world.vanish("b")
    other = world.create("other", 8, spec={"priority": 1})
    assert world.filter(other, ["n1"]) == []
    requeue(world, needy)
    assert await world.reserved(0.5) == 0
    assert world.api.nominated == [("needy", "n1"), ("needy", "")]
    assert world.filter(other, ["n1"]) == ["n1"]
    await world.settle(RESERVED_AFTER_EVICTION_S)
    assert failed == [], "its turn has not come, which is no failure"


async def test_nothing_is_kept_for_a_requeued_pod_that_kube_scheduler_nominated(
    world: PreemptionWorld,
) -> None:
    world.vanish("b")
    needy = world.create("needy", 8, spec={"priority": 10})
    needy["status"] = {"phase": "Pending", "nominatedNodeName": "n1"}
    requeue(world, needy)
    for _ in range(3):
        assert await world.reserved(FOREIGN_NOMINATION_S / 4) == 0
    assert world.api.nominated == []
