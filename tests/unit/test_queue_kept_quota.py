"""Quota that is kept for who waits long: from younger pods of its queue and from borrowers."""

import pytest

from scheduler_plugin.queue.controller.status import KEPT_QUOTA, explain_waiting
from tests.queue_world import QueueWorld

COHORT = """queues:
- {name: a, cohort: x, nominalQuota: 32}
- {name: b, cohort: x, nominalQuota: 16}
- {name: c, cohort: x, nominalQuota: 16}
"""


def world_of(config: str = COHORT) -> QueueWorld:
    """Room for more than all quotas; pods of a use 28 of 32 units, and a pod of 16 waits long."""
    world = QueueWorld(config)
    for number in range(20):
        world.node(f"n{number}", (16,))
    for number in range(7):
        world.pod(f"a{number}", 4, created=0)
    for number in range(8):
        world.pod(f"b{number}", 4, queue="b", created=1)
    assert len(world.admitted()) == 15
    world.bind(*world.objects)
    world.pod("large", 16, created=2)
    world.now = 1000.0
    world.queue.update_reservations(world.now)
    return world


def kept(world: QueueWorld) -> list[str]:
    world.queue.update_reservations(world.now)
    return [uid for uid, _ in world.queue.queues.reserved_quota.values()]


def end(world: QueueWorld, *names: str) -> None:
    for name in names:
        world.delete(f"uid-{name}")


def test_younger_pods_of_the_queue_wait_until_it_is_released() -> None:
    """Each of them would take what is free of the quota."""
    world = world_of()
    assert kept(world) == ["uid-large"]
    assert world.queue.capacity.reservations.workload_uids == (), "cards are not kept before it may have them"
    world.pod("young", 4, created=3)
    end(world, "a0")
    assert world.admitted() == []
    assert {each.name: each.message for each in explain_waiting(world.queue, world.now)}[
        "young"
    ] == KEPT_QUOTA
    end(world, "a1", "a2")
    assert world.admitted() == ["large"]
    assert world.queue.queues.reserved_quota == {}
    end(world, "a3")
    assert world.admitted() == ["young"]


def test_borrowers_wait_and_nobody_is_denied_its_own() -> None:
    world = world_of()
    world.pod("borrows", 4, queue="b", created=3)
    world.pod("own", 4, queue="c", created=3)
    assert world.admitted() == ["own"]
    end(world, "b0", "b1")
    assert world.admitted() == []
    end(world, "b2", "b3")
    assert world.admitted() == ["large"], "its own came back to it"
    end(world, "b4", "b5")
    assert world.admitted() == ["borrows"]


@pytest.mark.parametrize(
    "config", [COHORT.replace("a, cohort", "a, stopPolicy: Hold, cohort"), COHORT.replace("32", "15")]
)
def test_it_is_kept_no_longer_than_that_helps(config: str) -> None:
    """A queue that is stopped, or whose own quota is too small for it."""
    world = world_of()
    world.configure(config)
    assert kept(world) == []
    world = world_of()
    end(world, "large")
    assert kept(world) == []


def test_none_is_kept_for_who_never_has_room() -> None:
    """Others of the queue would wait for nothing."""
    world = world_of()
    end(world, "large")
    world.pod("larger", 17, created=2)
    assert kept(world) == []
