"""Gangs after their release: what is bound half, and members that are made again."""

import pytest

from scheduler_plugin.queue.explain import waiting
from tests.queue_world import QueueWorld

WITHIN_S = 300.0
OWNED = {"ownerReferences": [{"uid": "job", "controller": True}]}


@pytest.fixture
def world() -> QueueWorld:
    """One node with two cards, one queue."""
    world = QueueWorld()
    world.node("n1", (16, 16))
    return world


def _gang(world: QueueWorld, size: int, *, owned: bool = True) -> list[str]:
    """A released gang."""
    gang = [world.pod(f"g{i}", 4, gang="G", size=size) for i in range(size)]
    for uid in gang:
        world.change(uid, metadata=OWNED if owned else {})
    assert len(world.released()) == size
    return gang


def _taken_back(world: QueueWorld) -> list[tuple[str, bool]]:
    return sorted((world.name(back.entry.uid), back.remove) for back in world.queue.expire(world.now))


def test_of_a_half_bound_gang_of_bare_pods_only_those_without_a_node_lose_their_room(
    world: QueueWorld,
) -> None:
    """Nobody would make the bound one again, and its room is given to nobody."""
    gang = _gang(world, 2, owned=False)
    world.bind(gang[0])
    world.now = WITHIN_S
    assert _taken_back(world) == [("g1", False)]
    world.now = 2 * WITHIN_S
    assert _taken_back(world) == []


def test_a_half_bound_gang_with_a_controller_is_removed_and_waits_until_it_is_whole(
    world: QueueWorld,
) -> None:
    """No pod that is made again goes before the others are there."""
    gang = _gang(world, 2)
    world.bind(gang[0])
    world.now = WITHIN_S
    assert _taken_back(world) == [("g0", True), ("g1", True)]
    world.delete(gang[1])
    world.pod("again-1", 4, gang="G", size=2)
    assert world.released() == []
    world.change(gang[0], metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    assert world.released() == []
    world.delete(gang[0])
    world.pod("again-0", 4, gang="G", size=2)
    assert sorted(world.released()) == ["again-0", "again-1"]


def test_a_member_that_is_made_again_days_later_joins_the_others(world: QueueWorld) -> None:
    """The healthy ones stay."""
    gang = _gang(world, 2)
    for uid in gang:
        world.bind(uid)
    world.now = 100_000.0
    assert _taken_back(world) == []
    world.delete(gang[1])
    again = world.pod("again", 4, gang="G", size=2)
    assert world.released() == ["again"]
    world.bind(again)
    world.now += WITHIN_S
    assert _taken_back(world) == []


def test_a_member_that_joins_and_finds_no_node_goes_alone(world: QueueWorld) -> None:
    """Not the others with it."""
    gang = _gang(world, 2)
    for uid in gang:
        world.bind(uid)
    world.delete(gang[1])
    again = world.pod("again", 4, gang="G", size=2)
    world.change(again, metadata=OWNED)
    world.released()
    world.now = WITHIN_S
    assert _taken_back(world) == [("again", True)]


def test_a_member_is_made_again_after_another_one_has_succeeded(world: QueueWorld) -> None:
    """There will never be four of them again."""
    gang = _gang(world, 4)
    for uid in gang:
        world.bind(uid)
    world.change(gang[0], status={"phase": "Succeeded"})
    world.delete(gang[1])
    again = world.pod("again", 4, gang="G", size=4)
    assert world.released() == ["again"]
    world.bind(again)
    assert waiting(world.queue, world.now) == []
    world.now = 5000.0
    assert _taken_back(world) == []


def test_a_gang_that_is_made_again_whole_waits_until_it_is_complete(world: QueueWorld) -> None:
    """Its pods that end do not take the new ones along."""
    gang = _gang(world, 2)
    for uid in gang:
        world.bind(uid)
        world.change(uid, metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"})
    world.delete(gang[0])
    world.pod("again-0", 4, gang="G", size=2)
    assert world.released() == []
    world.delete(gang[1])
    world.pod("again-1", 4, gang="G", size=2)
    assert sorted(world.released()) == ["again-0", "again-1"]
