"""Node policies in the queue: pods that wait steer them, and holding ends there, too."""

from collections.abc import Iterator
from contextlib import contextmanager

from allocator.names import POD_NODE_POLICY
from scheduler_plugin.queue.controller.status import HELD_BACK, explain_waiting
from scheduler_plugin.scheduling.policies import NODE_POLICIES, make_policy
from tests.cluster_builders import container
from tests.other_policies import offered
from tests.queue_world import QueueWorld

USED = {"n1": (32, 26, 14), "n2": (35, 42, 5)}
"""Of 40 cores, 100 GiB and 16 units; which node is best depends on the weights."""


def fill(world: QueueWorld, used: dict[str, tuple[int, int, int]]) -> None:
    for name, (cpu, memory, units) in used.items():
        world.node(name, (16,), (units,))
        amounts = {"cpu": str(cpu), "memory": f"{memory}Gi"}
        plain = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
        world.pod(f"on-{name}", containers=[plain], node=name, queue="", gates=())


def asking(units: int, cpu: int, memory_gib: int) -> list[dict[str, object]]:
    return [container(units=units, cpu=str(cpu), memory=f"{memory_gib}Gi")]


def where(world: QueueWorld) -> str:
    """Admit a pod; its node."""
    world.pod("p", containers=asking(2, 4, 10))
    (release,) = world.decide()
    return release.members[0].node


def test_pods_of_the_queue_that_wait_count() -> None:
    world = QueueWorld(policy="weighted-balance")
    fill(world, USED)
    assert where(world) == "n2"
    world = QueueWorld(policy="weighted-balance")
    fill(world, USED)
    world.pod("waits", containers=asking(1, 41, 1))
    assert where(world) == "n1"


def test_pods_outside_of_the_queue_that_wait_count() -> None:
    world = QueueWorld(policy="weighted-balance")
    fill(world, USED)
    world.pod("waits", containers=asking(1, 41, 1), queue="", gates=())
    assert where(world) == "n1"


def test_who_waits_is_counted_once_a_second() -> None:
    world = QueueWorld(policy="weighted-balance")
    fill(world, USED)
    (reader,) = world.queue.capacity.policies.backlog_readers
    world.pod("waits", containers=asking(1, 41, 1))
    counts = []
    for now in (0.0, 0.5, 1.5):
        world.now = now
        world.decide()
        counts.append(reader.pending_by_class)  # type: ignore[attr-defined]
        world.pod(f"more-{now}", containers=asking(1, 41, 1))
    assert counts == [(1, 0, 0), (1, 0, 0), (3, 0, 0)]


def test_released_and_broken_pods_do_not_wait() -> None:
    world = QueueWorld(policy="weighted-balance")
    fill(world, USED)
    (reader,) = world.queue.capacity.policies.backlog_readers
    world.pod("takes-it", containers=asking(11, 1, 1))
    world.decide()
    world.pod("waits", containers=asking(1, 41, 1))
    world.pod("ended", containers=asking(1, 41, 1), phase="Failed")
    world.pod("leaves", containers=asking(1, 41, 1), deleted="2026-01-01T00:00:30Z")
    world.pod("names nothing", containers=asking(1, 41, 1), annotations={POD_NODE_POLICY: "no-such"})
    world.now = 5.0
    world.decide()
    assert reader.pending_by_class == (1, 0, 0)  # type: ignore[attr-defined]


@contextmanager
def holding(rounds: int) -> Iterator[QueueWorld]:
    parameters = {"on-no-improvement": "hold", "hold-rounds": str(rounds), "threshold": "1"}
    with offered(NODE_POLICIES, holding=lambda _: make_policy("weighted-balance", parameters)):
        world = QueueWorld(policy="holding")
        fill(world, {"n1": (4, 50, 6)})
        yield world


def test_a_pod_is_held_back_for_its_rounds_and_no_longer() -> None:
    """A round a second at most, however often the queue decides."""
    with holding(2) as world:
        world.pod("p", containers=asking(1, 0, 40))
        for now in (0.0, 0.1, 0.9, 1.0, 1.9):
            world.now = now
            assert world.admitted() == []
            assert [each.message for each in explain_waiting(world.queue, now)] == [HELD_BACK]
        world.now = 2.0
        assert world.admitted() == ["p"]


def test_the_pods_of_a_gang_have_their_rounds_together() -> None:
    with holding(2) as world:
        for number in range(3):
            world.pod(f"g{number}", containers=asking(1, 0, 10), gang="g", size=3)
        for now in (0.0, 1.0):
            world.now = now
            assert world.admitted() == []
        world.now = 2.0
        assert world.admitted() == ["g0", "g1", "g2"]


def test_asking_in_the_queue_is_no_round() -> None:
    with holding(1) as world:
        uid = world.pod("p", containers=asking(1, 0, 40))
        requirements = world.queue.queued_pods[uid].requirements
        assert requirements is not None
        room = world.queue.capacity
        rows = room.mask_fits(requirements).nonzero()[0]
        for _ in range(5):
            assert not len(room.rank_rows(requirements, rows))
        assert world.admitted() == []
        world.now = 1.0
        assert world.admitted() == ["p"]
