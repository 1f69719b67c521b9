"""When room begins to be kept for a pod that fits nowhere."""

from tests.queue_world import QueueWorld, long_runners


def kept_at(world: QueueWorld, hours: float) -> list[str]:
    world.now = 3600 * hours
    return [world.name(entry.uid) for entry, _ in world.queue.keep_room(world.now)]


def test_room_is_kept_no_sooner_than_the_pods_that_run_have_run() -> None:
    """They get older while it waits, until they end: those in their place are young."""
    world, _ = long_runners()
    assert kept_at(world, 1) == []
    for number in range(4):
        if number == 3:
            assert kept_at(world, 2) == [], "on average the pods have run for three hours"
        world.delete(f"uid-s{number}")
        uid = world.pod(f"t{number}", 8, created=40_000)
        assert world.released() == [f"t{number}"]
        world.bind(uid)
    assert kept_at(world, 2.5) == ["large"]


def test_room_is_kept_at_latest_after_so_long() -> None:
    world, _ = long_runners("\nkeepRoomAtLatest: 4h")
    assert kept_at(world, 3.9) == []
    assert kept_at(world, 4) == ["large"]


def test_room_is_not_kept_before_the_least_time_whatever_the_latest_is() -> None:
    world, _ = long_runners("\nkeepRoomAfter: 5h\nkeepRoomAtLatest: 1h")
    assert kept_at(world, 4.9) == []
    assert kept_at(world, 5) == ["large"]
