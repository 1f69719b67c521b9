"""Reclaim: what a queue has lent is taken back by eviction, from nobody who need not go."""

from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.queue_world import TWO_QUEUES, QueueWorld


def reclaimed(world: QueueWorld) -> list[tuple[str, str, list[str]]]:
    """What the reclaimer wants to be done: lender, node and names of victims."""
    found = Reclaimer(world.queue).find_plans(world.now)
    return [(each.queue, each.node, [world.name(v.uid) for v in each.victims]) for each in found]


def borrowed() -> tuple[QueueWorld, list[str]]:
    """Four pods of a fill the node, two of them on what is b's."""
    world = QueueWorld(f"{TWO_QUEUES}\nreclaim: evict", n1=(16, 16))
    uids = [world.pod(f"a{i}", 8, queue="a", created=i) for i in range(4)]
    world.decide()
    world.bind(*uids)
    return world, uids


def test_a_lender_gets_its_room_back_by_eviction_and_no_more_than_needed() -> None:
    """The youngest borrowed pod goes, and none without `reclaim: evict`."""
    world, _ = borrowed()
    world.pod("b0", 8, queue="b", created=50)
    assert world.admitted() == []
    assert reclaimed(world) == [("b", "n1", ["a3"])]
    world.configure(TWO_QUEUES)
    assert reclaimed(world) == []


def test_nobody_is_evicted_for_what_is_beyond_the_lenders_own_quota() -> None:
    """b uses its 16 units and wants more."""
    world = QueueWorld(f"{TWO_QUEUES}\nreclaim: evict", n1=(16, 16))
    uids = [world.pod(f"a{i}", 8, queue="a", created=i) for i in range(2)]
    uids += [world.pod(f"b{i}", 8, queue="b", created=i) for i in range(2)]
    assert len(world.admitted()) == 4
    world.bind(*uids)
    world.pod("b2", 8, queue="b", created=50)
    assert reclaimed(world) == []


def test_a_victim_has_no_larger_priority_than_who_waits() -> None:
    """The youngest has one, so the next older one would go, but that one is not borrowed."""
    world = QueueWorld(f"{TWO_QUEUES}\nreclaim: evict", n1=(16, 16))
    uids = [world.pod(f"a{i}", 16, queue="a", created=i, spec={"priority": 5}) for i in range(2)]
    world.decide()
    world.bind(*uids)
    world.pod("b0", 16, queue="b", created=50)
    assert reclaimed(world) == []


def test_nobody_else_is_evicted_until_the_lender_has_what_was_freed() -> None:
    """The victim is gone and its node has not said so yet; much later another one is looked for."""
    world, uids = borrowed()
    world.node("n1", (16, 16), [16, 16], holds=uids)
    world.pod("b0", 8, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    (found,) = reclaimer.find_plans(0)
    world.delete(found.victims[0].uid)
    assert world.admitted() == [], "the words are as they were"
    assert reclaimer.find_plans(14) == []
    assert len(reclaimer.find_plans(15)) == 1


def test_whom_a_disruption_budget_protects_is_passed_over_for_the_next_youngest() -> None:
    """At once, as nobody went; where both are protected, they are asked again later and later."""
    world, uids = borrowed()
    world.pod("b0", 8, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    asked = []
    for now in range(100):
        for found in reclaimer.find_plans(now):
            (victim,) = found.victims
            asked.append((now, victim.record.name))
            if victim.uid in uids:
                reclaimer.record_refusal("b", victim.uid, now)
    names = [name for _, name in asked]
    assert names == ["a3", "a2", "a1", "a0"] * 3
    assert [at for at, _ in asked] == [0, 1, 2, 3, 15, 16, 17, 18, 45, 46, 47, 48]


def test_when_one_of_two_victims_is_protected_what_the_other_frees_is_awaited() -> None:
    """Else one more would go than needed."""
    world, _ = borrowed()
    world.pod("b0", 16, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    (found,) = reclaimer.find_plans(0)
    gone, stays = found.victims
    reclaimer.record_refusal("b", stays.uid, 0)
    world.delete(gone.uid)
    assert reclaimer.find_plans(1) == []
    assert world.admitted() == []
    (found,) = reclaimer.find_plans(15)
    assert stays in found.victims, "its card is half free, and it is asked again"


def test_a_victim_whose_eviction_had_no_answer_may_be_going() -> None:
    """Another one is not evicted at once: that could be one more than needed."""
    world, _ = borrowed()
    world.pod("b0", 8, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    (found,) = reclaimer.find_plans(0)
    reclaimer.record_refusal("b", found.victims[0].uid, 0, stays=False)
    assert [len(reclaimer.find_plans(now)) for now in (1, 14, 15)] == [0, 0, 1]


def test_a_second_stage_does_not_begin_when_the_first_was_evicted_for_a_lender() -> None:
    """Nothing of it has succeeded; the pod is made again and waits for quota."""
    world = QueueWorld(f"{TWO_QUEUES}\nreclaim: evict", n1=(16, 16))
    for name, units in (("map", 16), ("own", 14)):
        data = "d" if name == "map" else ""
        world.pod(name, units, queue="a", created=2 if data else 1, data=data, job="j" if data else "")
        assert world.admitted() == [name]
        world.bind(f"uid-{name}")
    world.pod("reduce", 1, queue="a", created=3, job="j")
    world.pod("b0", 16, queue="b", created=50)
    assert world.admitted() == []
    assert reclaimed(world) == [("b", "n1", ["map"])]
    world.delete("uid-map")
    assert world.admitted() == ["b0"]
    world.delete("uid-own")
    world.pod("again", 15, queue="a", created=60, data="d", job="j")
    assert world.admitted() == ["again"], "and not the second stage, which is older and fits"
