"""When room begins to be kept for a pod that fits nowhere."""

from tests.queue_world import QueueWorld


def long_runners(config: str = "") -> tuple[QueueWorld, str]:
    """Pods that have run for ten hours fill the node, and a pod waits that needs a whole card."""
    world = QueueWorld(f"queues: [{{name: a}}]{config}")
    world.node("n1", (16, 16))
    for number in range(4):
        world.pod(f"s{number}", 8, created=0)
    assert len(world.released()) == 4
    for number in range(4):
        world.bind(f"uid-s{number}")
        world.change(f"uid-s{number}", status={"startTime": "2026-01-01T00:00:00Z"})
    return world, world.pod("large", 16, created=36_000)


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
