"""Pods that ask for compute: the queue admits none to a card that has the memory alone."""

from typing import Any

import pytest

from allocator.names import COMPUTE_RESOURCE
from scheduler_plugin.queue.capacity.reservation_planner import ReservationPlanner
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.scheduler import reclaim
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.cluster_builders import container
from tests.queue_world import QueueWorld

COHORT = "queues: [{name: a, cohort: x, nominalQuota: 8}, {name: b, cohort: x, nominalQuota: 8}]"


def ask(world: QueueWorld, name: str, percent: int, units: int = 4, **more: Any) -> str:
    return world.pod(
        name, containers=[container(units=units, resources={COMPUTE_RESOURCE: str(percent)})], **more
    )


def explain(world: QueueWorld) -> tuple[str, str]:
    why, *_ = status.explain_waiting(world.queue, 0)
    return why.reason, why.message


def test_a_pod_waits_for_compute_and_no_other_pod_waits_with_it() -> None:
    world = QueueWorld()
    world.node("n", (16,), compute=(10,))
    first = ask(world, "first", 60, created=1)
    ask(world, "second", 60, created=2)
    ask(world, "memory", 0, created=3)
    assert world.admitted() == ["first", "memory"]
    assert explain(world) == (
        "NoRoom",
        "it needs 4 GiB and 60 percent of compute; cards have the memory free, and others have their compute",
    )
    world.delete(first)
    assert world.admitted() == ["second"]


def test_memory_is_counted_where_the_pod_may_have_compute() -> None:
    """A node whose daemon publishes no compute has the memory, and could not take the pod even empty."""
    world = QueueWorld(old=(16,))
    world.node("n", (16,), (14,), compute=(10,))
    ask(world, "p", 60)
    assert world.admitted() == []
    assert explain(world) == (
        "NoRoom",
        "it needs 4 GiB and 60 percent of compute; the largest free card has 2",
    )


def test_what_no_card_gives_away_is_never_admitted() -> None:
    world = QueueWorld(old=(16,))
    world.pod("p", containers=[container(name, 1, resources={COMPUTE_RESOURCE: "80"}) for name in "xy"])
    assert world.admitted() == []
    assert explain(world)[0] == "NeverFits"
    world.node("n", (16,), compute=(0,))
    assert world.admitted() == []
    assert explain(world)[0] == "NeverFits", "the two need one card, whose compute is 100"
    world.node("n", (16,), compute=(0,), compute_limit=200)
    assert world.admitted() == ["p"]


def test_a_gang_is_admitted_where_its_pods_have_compute_together() -> None:
    world = QueueWorld()
    world.node("n", (16, 16), compute=(0, 0))
    for number in range(3):
        ask(world, f"g{number}", 60, gang="g", size=3)
    assert world.admitted() == [], "two have the memory of one card, and not its compute"
    assert explain(world)[0] == "NeverFits"
    world.node("m", (16,), compute=(0,))
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]


def test_what_is_taken_back_frees_the_compute() -> None:
    world = QueueWorld(f"{COHORT}\nreclaim: evict")
    world.node("n", (16,), compute=(0,))
    uids = [
        world.pod("a0", 4, created=0),
        world.pod("a1", 4, created=1),
        ask(world, "a2", 60, created=2),
        world.pod("a3", 4, created=3),
    ]
    world.decide()
    world.bind(*uids)
    ask(world, "b0", 60, queue="b", created=50)
    assert world.admitted() == []
    (found,) = Reclaimer(world.queue).find_plans(0)
    assert [world.name(victim.uid) for victim in found.victims] == ["a2"], (
        "the newest would free memory alone"
    )


def test_the_pod_goes_that_has_the_compute_and_not_two_younger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are too many pods to try every one of them by itself."""
    monkeypatch.setattr(reclaim, "MOST_SETS", 0)
    queues = COHORT.replace("nominalQuota: 8", "nominalQuota: 0", 1).replace("Quota: 8", "Quota: 16")
    world = QueueWorld(f"{queues}\nreclaim: evict")
    world.node("n", (16, 16), compute=(0, 0))
    uids = [ask(world, f"a{at}", percent, created=at) for at, percent in enumerate((100, 50, 50))]
    world.decide()
    world.bind(*uids)
    ask(world, "b0", 100, queue="b", created=50)
    assert world.admitted() == []
    (found,) = Reclaimer(world.queue).find_plans(0)
    assert [world.name(victim.uid) for victim in found.victims] == ["a0"]


def test_compute_of_a_pod_that_has_just_ended_is_about_to_be_free_and_nobody_goes_in_its_place() -> None:
    world = QueueWorld(f"{COHORT}\nreclaim: evict")
    world.node("n", (16,), compute=(0,))
    uids = [ask(world, f"a{number}", 45, created=number) for number in range(2)]
    uids += [world.pod(f"a{number}", 4, created=number) for number in (2, 3)]
    world.decide()
    world.bind(*uids)
    ask(world, "b0", 45, queue="b", created=50)
    world.change(uids[0], status={"phase": "Succeeded"})
    assert world.admitted() == [], "its node has not said so yet"
    (found,) = Reclaimer(world.queue).find_plans(0)
    assert found.victims == []


@pytest.mark.parametrize(("asked", "victims"), [(20, []), (60, ["a1"])])
def test_the_end_of_a_pod_frees_less_compute_where_pods_have_more_than_the_limit(
    asked: int, victims: list[str]
) -> None:
    """The limit was lowered while they ran, and the words stop at it: 80 and 80 percent of 100."""
    queues = COHORT.replace("nominalQuota: 8", "nominalQuota: 0", 1).replace("Quota: 8", "Quota: 16")
    world = QueueWorld(f"{queues}\nreclaim: evict")
    world.node("n", (16,), compute=(0,), compute_limit=200)
    uids = [ask(world, f"a{number}", 80, created=number) for number in range(2)]
    world.decide()
    world.bind(*uids)
    world.node("n", (16,), (8,), compute=(100,), holds=uids, seen=world.version)
    ask(world, "b0", asked, queue="b", created=50)
    world.change(uids[0], status={"phase": "Succeeded"})
    assert world.admitted() == [], "its node has not said so yet"
    (found,) = Reclaimer(world.queue).find_plans(0)
    assert [world.name(victim.uid) for victim in found.victims] == victims


def test_room_is_kept_where_the_least_is_missing_of_both_numbers() -> None:
    """A card with the memory free, whose compute is all given away, is not the closest to being free."""
    world = QueueWorld()
    world.node("memory", (16,), (0,), compute=(100,))
    world.node("nearly", (16,), (14,), compute=(0,))
    uid = ask(world, "p", 60)
    requirements = world.queue.queued_pods[uid].requirements
    assert requirements is not None

    found = ReservationPlanner(world.queue.capacity, uid).plan_workload([(uid, requirements)])

    assert found[uid].node == "nearly", "2 GiB are missing there, and 60 percent of a card elsewhere"


def test_room_is_not_kept_on_a_card_of_which_pods_have_more_than_there_is() -> None:
    """The node has not said yet that it holds the second pod; both would have to end."""
    world = QueueWorld()
    world.node("a", (16,), (16,), compute=(100,))
    world.node("b", (16,), (16,), compute=(100,))
    world.bind_to(ask(world, "second", 30, units=8, gates=()), "a")
    for percent in (1, 30):
        uid = ask(world, f"p{percent}", percent, units=8)
        requirements = world.queue.queued_pods[uid].requirements
        assert requirements is not None
        found = ReservationPlanner(world.queue.capacity, uid).plan_workload([(uid, requirements)])
        assert found[uid].node == "b", "8 GiB are missing there, and 16 on the other node"


def test_pods_of_a_gang_with_most_compute_come_first_among_those_of_one_size() -> None:
    """70 and 30, and 60 and 40 percent fit on two cards; 30 and 40 first leave no room for 60."""
    world = QueueWorld()
    world.node("n", (16, 16), compute=(0, 0))
    for number, percent in enumerate((30, 40, 70, 60)):
        ask(world, f"g{number}", percent, gang="g", size=4)
    assert sorted(world.admitted()) == ["g0", "g1", "g2", "g3"]


def test_a_policy_that_picks_one_node_looks_at_cards_with_compute_only() -> None:
    """The card of n1 that the memory fills best has no compute left."""
    config = "nodePolicy: best-fit\nnodePolicyParameters: {best-fit: {mode: pick}}"
    world = QueueWorld(f"queues: [{{name: a}}]\n{config}")
    world.node("n1", (16, 16), (12, 0), compute=(100, 0))
    world.node("n2", (16, 16), (8, 16), compute=(0, 0))
    uid = ask(world, "p", 60)
    world.decide()
    assumed = world.state.get_assumed(uid)
    assert assumed is not None
    assert assumed.node == "n2", "4 GiB are left of its card, and 12 of the other one of n1"


def test_a_pod_moves_whose_compute_others_have_taken_and_one_with_memory_alone_stays() -> None:
    world = QueueWorld()
    world.node("n1", (16,), compute=(0,))
    memory, compute = world.pod("memory", 4, created=1), ask(world, "compute", 60, created=2)
    assert world.admitted() == ["memory", "compute"]
    world.node("n2", (16,), compute=(0,))
    world.node("n1", (16,), compute=(60,))
    assert world.admitted() == []
    nodes = {uid: assumed.node for uid in (memory, compute) if (assumed := world.state.get_assumed(uid))}
    assert nodes == {memory: "n1", compute: "n2"}


def test_room_is_looked_for_again_once_a_card_gives_away_more_compute() -> None:
    world = QueueWorld()
    world.node("n", (16,), (16,), compute=(100,))
    world.pod("p", containers=[container(name, 1, resources={COMPUTE_RESOURCE: "80"}) for name in "xy"])
    world.now = 1000.0
    world.decide()
    assert world.queue.update_reservations(world.now) == []
    world.node("n", (16,), (16,), compute=(100,), compute_limit=200)
    assert [node for _, node in world.queue.update_reservations(world.now)] == ["n"]


def test_room_is_kept_for_containers_that_fit_in_one_way_only() -> None:
    """Whoever fills the first card best with 3 and 5 leaves no room for 7."""
    world = QueueWorld()
    world.node("n", (10, 10), (10, 10))
    containers = [container(f"c{number}", units) for number, units in enumerate((3, 5, 7, 5))]
    uid = world.pod("p", containers=containers)
    requirements = world.queue.queued_pods[uid].requirements
    assert requirements is not None
    planner = ReservationPlanner(world.queue.capacity, uid)
    found = planner.plan_workload([(uid, requirements)])
    assert found[uid].cards == (0, 1)
    world.queue.capacity.reservations.add_reservation(uid, found[uid])
    assert ReservationPlanner(world.queue.capacity, uid).can_serve([(uid, requirements)])
