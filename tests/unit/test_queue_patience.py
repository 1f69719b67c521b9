"""When room begins to be kept for a pod that fits nowhere."""

from copy import deepcopy

import pytest

from tests.queue_world import TEN_HOURS_S, QueueWorld, long_runners


def kept_at(world: QueueWorld, hours: float) -> list[str]:
    world.now = TEN_HOURS_S + 3600 * hours
    return [world.name(pod.uid) for pod, _ in world.queue.update_reservations(world.now)]


def test_room_is_kept_no_sooner_than_the_pods_that_run_have_run() -> None:
    """They get older while it waits, until they end: those in their place are young."""
    world, _ = long_runners()
    assert kept_at(world, 1) == []
    for number in range(4):
        if number == 3:
            assert kept_at(world, 2) == [], "on average the pods have run for three hours"
        world.delete(f"uid-s{number}")
        world.run(f"t{number}", 8, created=40_000)
    assert kept_at(world, 2.5) == ["large"]


def test_room_is_kept_at_latest_after_so_long() -> None:
    world, _ = long_runners("\nkeepRoomAtLatest: 4h")
    assert kept_at(world, 3.9) == []
    assert kept_at(world, 4) == ["large"]


def test_room_is_not_kept_before_the_least_time_whatever_the_latest_is() -> None:
    world, _ = long_runners("\nkeepRoomAfter: 5h\nkeepRoomAtLatest: 1h")
    assert kept_at(world, 4.9) == []
    assert kept_at(world, 5) == ["large"]


@pytest.mark.parametrize("started", ["1970-01-01T00:00:00Z", "2036-01-01T00:00:00Z", "", "soon"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_with_a_wrong_clock_does_not_switch_the_keeping_of_room_off(
    started: str, restarted: bool
) -> None:
    """All pods have run for ten minutes, whatever one node says; none runs for longer than it exists."""
    world = QueueWorld(n1=(16, 16))
    uids = [world.pod(f"s{number}", 8, created=0) for number in range(4)]
    assert len(world.admitted()) == 4
    for number, uid in enumerate(uids):
        world.bind(uid)
        world.change(uid, status={"startTime": "2026-01-01T00:00:00Z" if number else started})
    world.pod("large", 16, created=0)
    if restarted:
        again = QueueWorld()
        again.now, again.objects, again.version = 599.0, world.objects, world.version
        again.node("n1", (16, 16))
        for raw in world.objects.values():
            again._send(raw)
        world = again
    for world.now, kept in ((599.0, []), (600.0, ["large"])):
        assert [world.name(pod.uid) for pod, _ in world.queue.update_reservations(world.now)] == kept


def test_an_api_server_that_was_a_year_ahead_once_changes_nothing() -> None:
    """It dated one pod; those that run are not a year old by that."""
    world = QueueWorld(n1=(16, 16))
    uids = [world.pod(f"s{number}", 8, created=0) for number in range(4)]
    assert len(world.admitted()) == 4
    for uid in uids:
        world.bind(uid)
        world.change(uid, status={"startTime": "2026-01-01T00:00:00Z"})
    raw = deepcopy(world.objects[world.pod("large", 16, created=0)])
    raw["metadata"] |= {"uid": "uid-ahead", "name": "ahead", "creationTimestamp": "2027-01-01T00:00:00Z"}
    world._send(raw)
    world.now = 600.0
    assert [world.name(pod.uid) for pod, _ in world.queue.update_reservations(world.now)] == ["large"]


def test_no_pod_counts_for_more_than_the_latest() -> None:
    """One that runs for ever does not decide for all that run for minutes."""
    world, _ = long_runners("\nkeepRoomAtLatest: 4h")
    world.now += 3600
    for number in range(1, 4):
        world.delete(f"uid-s{number}")
        world.pod(f"t{number}", 8, created=0)
        world.bind(*(member.uid for release in world.decide() for member in release.members))
    assert kept_at(world, 1) == ["large"], "four hours, and three pods that have just begun"
