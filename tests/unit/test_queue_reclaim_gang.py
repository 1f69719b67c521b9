"""Reclaim for a gang, and from gangs: room for all of its pods, and nobody is evicted who need not be."""

import asyncio
from typing import Any

import pytest

from scheduler_plugin.queue.cache.queued_pods import GangState, QueuedPod
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.writer import WriteOutcome, WriteResult
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer, ReclaimPlan
from tests.queue_world import QueueWorld


def world_of(own: int, nodes: int = 2) -> QueueWorld:
    """Nodes of two cards of 16 units, of which b has so many for its own; a has the rest, and borrows."""
    queues = f"{{name: a, cohort: x, nominalQuota: {32 * nodes - own}}}, "
    queues += f"{{name: b, cohort: x, nominalQuota: {own}}}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict", policy="best-fit")
    for number in range(nodes):
        world.node(f"n{number}", (16, 16))
    return world


def fill(world: QueueWorld, units: int = 8, count: int = 99) -> list[str]:
    """Let pods of a run until no more fit; the names of those that do."""
    for number in range(count):
        world.pod(f"a{number:02}", units, created=number)
    names = [world.name(member.uid) for release in world.decide() for member in release.members]
    world.bind(*(f"uid-{name}" for name in names))
    for uid in [uid for uid, raw in world.objects.items() if raw["metadata"]["name"] not in names]:
        world.delete(uid)
    return names


def gang(world: QueueWorld, *units: int) -> None:
    for number, each in enumerate(units):
        world.pod(f"b{number}", each, queue="b", created=500, gang="g", size=len(units))


def found(world: QueueWorld) -> ReclaimPlan | None:
    reclaims = Reclaimer(world.queue).find_plans(world.now)
    return reclaims[0] if reclaims else None


def names(reclaim: ReclaimPlan | None) -> list[str]:
    return [] if reclaim is None else sorted(victim.record.name for victim in reclaim.victims)


def carry_out(world: QueueWorld, reclaim: ReclaimPlan) -> None:
    """What the controller and the API server make of it."""
    reclaim.reserve(world.queue)
    for victim in reclaim.victims:
        world.delete(victim.uid)


def test_nobody_goes_where_that_is_in_vain() -> None:
    """For a pod that may run on none of the nodes; for more than the lender's own quota."""
    world = world_of(32)
    fill(world)
    world.pod("b0", 16, queue="b", created=500, gang="g", size=2)
    world.pod("b1", 16, queue="b", created=500, gang="g", size=2, spec={"nodeSelector": {"disk": "ssd"}})
    assert names(found(world)) == []
    world = world_of(32)
    fill(world)
    gang(world, 16, 16, 16)
    assert names(found(world)) == [], "48 units are not its own"


def test_the_room_is_kept_for_the_gang_until_the_last_victim_is_gone() -> None:
    """Both cards are of the youngest pods; one that borrows does not get the first that becomes free."""
    world = world_of(32)
    fill(world)
    gang(world, 16, 16)
    assert world.admitted() == []
    reclaim = found(world)
    assert reclaim is not None
    assert names(reclaim) == ["a04", "a05", "a06", "a07"]
    reclaim.reserve(world.queue)
    world.pod("again", 8, created=600)
    first, *others = reclaim.victims
    world.delete(first.uid)
    assert world.admitted() == []
    for victim in others:
        world.delete(victim.uid)
    assert sorted(world.admitted()) == ["b0", "b1"]
    assert world.queue.capacity.reservations.workload_uids == ()


def test_what_was_kept_for_a_gang_that_is_gone_is_for_others() -> None:
    world = world_of(32)
    fill(world)
    gang(world, 16, 16)
    reclaim = found(world)
    assert reclaim is not None
    carry_out(world, reclaim)
    world.delete("uid-b0")
    world.queue.update_reservations(world.now)
    assert world.queue.capacity.reservations.workload_uids == ()


def test_quota_is_reclaimed_where_only_that_is_missing() -> None:
    """There is a third node, which no quota counts."""
    world = world_of(32)
    fill(world)
    world.node("n9", (16, 16))
    gang(world, 16, 16)
    reclaim = found(world)
    assert names(reclaim) == ["a04", "a05", "a06", "a07"]
    assert reclaim is not None
    carry_out(world, reclaim)
    assert sorted(world.admitted()) == ["b0", "b1"]


def borrowers(*gangs: tuple[str, int], units: int = 8, priority: int = 0) -> QueueWorld:
    """Two nodes of two cards of 16 units, half of them b's, on which gangs of a run, the oldest first.

    Args:
        gangs: Name and number of pods of each; a number of 1 is a pod by itself.
        units: Units of each pod.
        priority: Priority of the last pod of each.
    """
    world = world_of(32)
    for at, (name, size) in enumerate(gangs):
        more: dict[str, Any] = {"gang": name, "size": size} if size > 1 else {}
        for number in range(size):
            spec = {"priority": priority if number == size - 1 else 0}
            world.pod(f"{name}{number}", units, created=at, spec=spec, **more)
    world.bind(*(f"uid-{name}" for name in world.admitted()))
    return world


def test_a_gang_that_borrowed_goes_whole_and_is_made_again_whole() -> None:
    """Without one of its pods the others would keep their cards for nothing."""
    world = borrowers(("old", 4), ("g", 4))
    world.pod("b0", 8, queue="b", created=500)
    assert world.admitted() == []
    reclaim = found(world)
    assert names(reclaim) == ["g0", "g1", "g2", "g3"]
    assert reclaim is not None
    first, *others = reclaim.victims
    world.delete(first.uid)
    assert world.admitted() == ["b0"]
    world.pod("again0", 8, gang="g", size=4, created=600)
    assert world.admitted() == [], "it does not join those that are going"
    for number, victim in enumerate(others, 1):
        world.delete(victim.uid)
        world.pod(f"again{number}", 8, gang="g", size=4, created=600)
    assert world.admitted() == [], "three of them have room"
    world.delete("uid-b0")
    assert len(world.admitted()) == 4


@pytest.mark.parametrize(
    ("gangs", "asked", "goes"),
    [
        ((("s", 1), ("t", 1), ("u", 1), ("old", 2), ("g", 3)), 8, ["old0", "old1"]),
        ((("old", 4), ("s", 1), ("g", 3)), 8, ["s0"]),
        ((("old", 4), ("s", 1), ("t", 1), ("g", 2)), 16, ["g0", "g1"]),
        ((("g", 8),), 8, [f"g{number}" for number in range(8)]),
    ],
    ids=("fewer pods", "a pod by itself", "equally many, and younger", "what is borrowed in part goes whole"),
)
def test_a_gang_counts_with_all_of_its_pods(
    gangs: tuple[tuple[str, int], ...], asked: int, goes: list[str]
) -> None:
    world = borrowers(*gangs)
    world.pod("b0", asked, queue="b", created=500)
    assert world.admitted() == []
    assert names(found(world)) == goes


def test_a_gang_has_the_priority_of_its_most_important_pod() -> None:
    world = borrowers(("old", 4), ("g", 4), priority=5)
    world.pod("b0", 8, queue="b", created=500)
    assert world.admitted() == []
    assert names(found(world)) == []
    world.change("uid-b0", spec={"priority": 5})
    assert names(found(world)) == ["g0", "g1", "g2", "g3"]


def test_of_a_gang_that_loses_a_pod_anyway_the_others_go() -> None:
    world = borrowers(("old", 4), ("g", 4))
    world.change("uid-g1", metadata={"deletionTimestamp": "2026-01-01T00:00:30Z"})
    for number in range(2):
        world.pod(f"b{number}", 16, queue="b", created=500, gang="b", size=2)
    assert world.admitted() == []
    assert names(found(world)) == ["g0", "g2", "g3"]


class Evictions:
    """A controller that evicts a gang for a lender, and the API server's answers.

    Args:
        refuses: Names of pods that a PodDisruptionBudget protects.
    """

    def __init__(self, *refuses: str) -> None:
        self.refuses, self.asked, self.said = refuses, list[str](), list[str]()
        self.world = borrowers(("old", 4), ("g", 4))
        self.world.pod("b0", 8, queue="b", created=500)

    async def run(self) -> None:
        """Let it decide once."""
        stub: Any = self
        controller = Controller(self.world.queue, stub, stub, lambda: self.world.now, lambda: True)
        self.counts = controller.counts
        process = asyncio.create_task(controller.run())
        controller.record_change()
        for _ in range(20):
            await asyncio.sleep(0)
        process.cancel()

    async def evict_pod(self, pod: QueuedPod, _is_wanted: object) -> WriteResult:
        self.asked.append(self.world.name(pod.uid))
        if pod.record.name in self.refuses:
            return WriteResult(WriteOutcome.REFUSED, "a budget")
        self.world.delete(pod.uid)
        return WriteResult(WriteOutcome.DONE)

    def event(self, ref: Any, _type: str, reason: str, _message: str) -> None:
        if reason == "Reclaimed":
            self.said.append(ref.name)


async def test_all_of_a_gang_are_evicted_and_told() -> None:
    evictions = Evictions()
    await evictions.run()
    assert sorted(evictions.asked) == sorted(evictions.said) == ["g0", "g1", "g2", "g3"]
    assert evictions.counts.reclaimed == {"a": 4}
    assert evictions.world.admitted() == ["b0"]


async def test_a_gang_of_which_the_first_pod_may_not_go_stays_whole() -> None:
    """One budget protects all of a gang as a rule; nobody else is asked, and nobody told that it goes."""
    evictions = Evictions("g0", "g1", "g2", "g3")
    await evictions.run()
    assert (len(evictions.asked), evictions.said, evictions.counts.reclaimed) == (1, [], {})
    gang = evictions.world.queue.gangs.get("gang default/g")
    assert gang is not None
    assert gang.state is GangState.WHOLE
