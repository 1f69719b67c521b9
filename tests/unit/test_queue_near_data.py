"""A gang whose data is near to too few cards goes elsewhere, like a pod without room near its data."""

import pytest

from tests.queue_world import ONE_QUEUE, QueueWorld

SLOTS = "\nslots: {per: node, local: {count: 1}, free: {count: 1}}"
HERE = {"data.gpupack.io/d": ""}


def gang_world(more: str) -> QueueWorld:
    """A gang of three, and room near its data for two."""
    world = QueueWorld(ONE_QUEUE + more)
    world.node("n1", (16,), labels=HERE)
    world.node("n2", (16,))
    for number in range(3):
        world.pod(f"g{number}", 8, gang="g", size=3, data="d", created=number)
    return world


@pytest.mark.parametrize("more", ["", SLOTS])
def test_a_gang_that_has_no_room_near_its_data_as_a_whole_goes_elsewhere(more: str) -> None:
    """It would wait for ever: room near its data is found for its first pod each time."""
    assert sorted(gang_world(more).admitted()) == ["g0", "g1", "g2"]


@pytest.mark.parametrize("more", ["", SLOTS])
def test_who_can_go_near_its_data_goes_before_such_a_gang(more: str) -> None:
    """Without room near its data it is asked last, whoever is older."""
    world = gang_world(more)
    world.pod("near", 16, data="d", created=9)
    assert world.admitted() == ["near"]
