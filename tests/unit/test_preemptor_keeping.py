"""Preemption over time: what is kept and given up, restarts, bounds and faults."""

from typing import Any

import numpy as np
import pytest

from allocator.request import ContainerRequest, PodRequest
from kubeapi.errors import Unreachable
from scheduler_plugin.cache.group_holds import HOLD_S
from scheduler_plugin.cache.pods import OVERDUE_AFTER_S
from scheduler_plugin.preemption.nominations import (
    FOREIGN_NOMINATION_S,
    REANNOUNCE_AFTER_S,
    RESERVED_AFTER_EVICTION_S,
)
from scheduler_plugin.preemption.preemptor import (
    EVICTION_BURST,
    EVICTION_INTERVAL_S,
    MAX_NOMINATIONS,
    MAX_REFUSED_PODS,
    REFUSAL_REST_S,
    REST_S,
    SEARCH_PAUSE_FACTOR,
)
from tests.preemption_world import BUDGET_SAYS_NO, PreemptionApi, PreemptionWorld


@pytest.fixture
def world() -> PreemptionWorld:
    return PreemptionWorld.of_two_nodes()


async def test_cards_held_for_a_group_that_is_asked_about_no_more_are_free_for_a_plan() -> None:
    world = PreemptionWorld()
    world.node("n", (8,))
    member = world.create("g-0", 5, spec={"schedulingGroup": {"podGroupName": "g"}})
    assert world.filter(member) == ["n"]
    await world.settle(HOLD_S)
    assert not world.state.reservations.held


async def test_a_pod_that_does_not_take_its_card_loses_it(world: PreemptionWorld) -> None:
    failed = []
    world.preemptor.failed.connect(lambda pod, why: failed.append(pod.name))
    needy = world.wait("needy", 8)
    await world.settle()
    assert await world.reserved(20) == 1, "its victim is there still"
    world.vanish("b")
    await world.settle(0)
    assert await world.reserved(RESERVED_AFTER_EVICTION_S - 1) == 1
    assert await world.reserved(1) == 0
    assert failed == ["needy"]
    assert world.api.nominated[-1] == ("needy", "")
    other = world.create("other", 4, spec={"priority": 1})
    assert world.filter(other, ["n1"]) == ["n1"]
    assert world.filter(needy) == ["n1"]


async def test_a_card_that_is_free_by_now_is_not_kept(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    world.vanish("c")
    await world.settle()
    assert world.api.nominated == []
    assert world.filter(needy) == ["n2"]


@pytest.mark.parametrize("stays", ["not seen", "overdue"])
async def test_a_victim_that_does_not_leave_is_not_waited_for_for_ever(
    world: PreemptionWorld, stays: str
) -> None:
    world.wait("needy", 8)
    world.api.silent = stays == "not seen"
    await world.settle()
    longest_s = OVERDUE_AFTER_S if stays == "not seen" else world.api.grace_s + OVERDUE_AFTER_S
    await world.settle(longest_s - 1)
    await world.settle(RESERVED_AFTER_EVICTION_S - 1)
    assert await world.reserved(2) == 1
    assert await world.reserved(RESERVED_AFTER_EVICTION_S) == 0


async def test_a_nomination_that_kube_scheduler_clears_is_written_again_now_and_then(
    world: PreemptionWorld,
) -> None:
    needy = world.wait("needy", 8)
    await world.settle()
    needy["status"] = {"phase": "Pending"}
    needy["metadata"]["resourceVersion"] = "70"
    world.version = 70
    world.see(needy)
    await world.settle(1)
    assert world.api.nominated == [("needy", "n1")]
    await world.settle(REANNOUNCE_AFTER_S)
    assert world.api.nominated == [("needy", "n1")] * 2
    needy["status"] = {"phase": "Pending"}
    needy["metadata"]["resourceVersion"] = "80"
    world.see(needy)
    world.api.faults["/needy/status"] = [Unreachable("away")]
    assert await world.reserved(REANNOUNCE_AFTER_S) == 1


async def test_what_was_kept_is_found_again_after_a_restart(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    await world.settle()
    world.state.reservations.remove_reservation("uid-needy")
    world.restart()
    other = world.create("other", 8, spec={"priority": 10})
    await world.settle(0)
    (kept,) = world.state.reservations
    assert (kept.uid, kept.node, kept.amounts) == ("uid-needy", "n1", {1: (8, 0)})
    world.vanish("b")
    assert world.filter(other) == []
    assert world.filter(needy) == ["n1"]
    await world.settle(0)
    assert await world.reserved(RESERVED_AFTER_EVICTION_S) == 0
    assert world.api.nominated == [("needy", "n1")], "somebody else's is not taken back"


async def test_a_process_that_died_before_the_eviction_leaves_it_to_the_next(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    world.api.faults["/eviction"] = [Unreachable("killed")]
    world.api.faults["/needy/status"] = []
    await world.settle()
    needy["status"] = {"phase": "Pending", "nominatedNodeName": "n1"}
    needy["metadata"]["resourceVersion"] = "70"
    world.version = 70
    world.see(needy)
    world.restart()
    world.filter(needy)
    assert await world.evicted() == [], "it might be kube-scheduler's"
    world.now += FOREIGN_NOMINATION_S
    world.filter(needy)
    assert await world.evicted() == ["b"]


async def test_there_is_a_bound_on_pods_that_cards_are_kept_for() -> None:
    world = PreemptionWorld()
    for number in range(MAX_NOMINATIONS + 2):
        world.node(f"n{number:02}", (8,), **{f"v{number:02}": (0, 4, 1)})
    for number in range(MAX_NOMINATIONS + 2):
        world.wait(f"p{number:02}", 8)
    assert len(await world.evicted()) == MAX_NOMINATIONS
    world.delete("p00")
    await world.settle(0)
    # The card that was being freed for the one that is gone goes to another one.
    assert len(world.api.evicted) == MAX_NOMINATIONS
    assert world.api.nominated[-1] == (f"p{MAX_NOMINATIONS}", "n00")


async def test_many_pods_for_which_nobody_can_go_keep_no_other_pod_from_its_turn() -> None:
    """After each look for victims there is a pause, for all pods."""
    world = PreemptionWorld()
    world.node("n1", (12,), large=(0, 6, 20), small=(0, 6, 1))
    world.node("n2", (8,), victim=(0, 8, 1))
    vain = [world.wait(f"vain{number}", 12) for number in range(8)]
    world.now += 1
    needy = world.wait("needy", 8)
    world.search_s = 1.0
    for _ in range(len(vain) + 1):
        for pod in (*vain, needy):
            world.filter(pod)
        await world.settle(SEARCH_PAUSE_FACTOR + 1)
    assert world.api.evicted == ["victim"]


async def test_there_is_a_bound_on_evictions_in_a_time() -> None:
    world = PreemptionWorld()
    more = 5
    for name in ("n1", "n2"):
        world.node(
            name,
            (EVICTION_BURST + 10,),
            **{f"{name}-{each}": (0, 1, 1) for each in range(EVICTION_BURST + more)},
        )
    world.wait("first", EVICTION_BURST + 10)
    world.wait("second", EVICTION_BURST + 10)
    assert len(await world.evicted()) == EVICTION_BURST + more
    assert len(await world.evicted(more * EVICTION_INTERVAL_S)) == EVICTION_BURST + more
    assert len(await world.evicted(EVICTION_INTERVAL_S)) == 2 * (EVICTION_BURST + more)


async def test_a_fault_of_ours_does_not_end_the_work(world: PreemptionWorld) -> None:
    rounds = []

    class Enough(BaseException):
        pass

    async def sleep(seconds: float) -> None:
        if seconds:
            rounds.append(seconds)
            world.now += REFUSAL_REST_S
            if len(rounds) == 3:
                raise Enough

    def fail(*_: object) -> None:
        raise RuntimeError("a listener's")

    world.preemptor = preemptor = world.restart()
    preemptor._sleep = sleep
    preemptor.began.connect(fail)
    world.wait("needy", 8)
    with pytest.raises(Enough):
        await preemptor.run()
    assert len(rounds) == 3


async def test_a_pod_whose_binding_is_under_way_preempts_nobody(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    world.node("n3", (8,))
    world.committer.assume("default", "needy", "uid-needy", "n3", world.now)
    assert not world.filter(needy), "its own Binding takes the room"
    assert await world.evicted() == []


async def test_nobody_is_evicted_before_the_one_that_a_budget_may_save() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,))
    world.run("n1", "a", 0, 4, 1)
    world.run("n1", "g", 0, 4, 2, labels={"app": "g"})
    world.publish("n1")
    world.budget("g", 1)
    world.wait("needy", 8)
    world.api.faults["/g/eviction"] = [BUDGET_SAYS_NO]
    assert await world.evicted() == []


async def test_a_victim_that_leaves_by_itself_is_not_evicted() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    world.wait("needy", 8)

    def leave(*_: object) -> None:
        leaving = world.api.pods["/api/v1/namespaces/default/pods/a"]
        leaving["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "resourceVersion": "99"}
        world.see(leaving)

    world.preemptor.evicted.connect(leave)
    assert await world.evicted() == ["b"]
    assert len(world.state.reservations) == 1


async def test_another_card_of_the_node_is_not_taken_from_a_lesser_pod(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    await world.settle()
    world.wait("king", 8, priority=11, annotations={"gpupack.io/gpu-uuid": "GPU-n1-0"})
    assert await world.evicted() == ["b", "a"]
    assert {each.uid: set(each.amounts) for each in world.state.reservations} == {
        "uid-needy": {1},
        "uid-king": {0},
    }


async def test_the_cleared_card_stays_kept_where_one_before_it_goes(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    assert await world.evicted() == ["b"]
    world.vanish("b")
    world.vanish("a")
    world.publish_without("n1", 0)
    await world.settle(0)
    other = world.create("other", 8, spec={"priority": 1})
    assert world.filter(other, ["n1"]) == [], "the only card left is the one that b was evicted from"
    assert world.filter(needy, ["n1"]) == ["n1"]


async def test_nothing_is_kept_where_the_cleared_card_is_gone(world: PreemptionWorld) -> None:
    failed = []
    world.preemptor.failed.connect(lambda pod, why: failed.append((pod.name, why)))
    world.wait("needy", 8)
    await world.settle()
    world.vanish("a")
    world.vanish("b")
    world.publish_without("n1", 1)
    other = world.create("other", 8, spec={"priority": 1})
    assert world.filter(other, ["n1"]) == ["n1"]
    await world.settle(0)
    assert failed == [("needy", "node n1 has lost a card that was kept for it")]
    assert len(world.state.reservations) == 0
    assert world.api.nominated[-1] == ("needy", "")


async def test_a_kept_card_that_moved_is_taken_from_the_lesser_pod(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    await world.settle()
    world.vanish("a")
    world.publish_without("n1", 0)
    world.wait("king", 8, priority=11, annotations={"gpupack.io/gpu-uuid": "GPU-n1-1"})
    await world.settle()
    assert world.api.nominated[-2:] == [("needy", ""), ("king", "n1")]
    assert [each.uid for each in world.state.reservations] == ["uid-king"]


async def test_an_eviction_that_is_seen_late_is_waited_for_after_all(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    world.api.silent = True
    await world.settle()
    await world.settle(OVERDUE_AFTER_S)
    world.api.grace_s = 600
    victim = world.api.pods["/api/v1/namespaces/default/pods/b"]
    victim["metadata"]["deletionTimestamp"] = "2027-01-15T09:00:00Z"
    world.see(victim)
    await world.settle(RESERVED_AFTER_EVICTION_S - 1)
    victim["metadata"] |= {"deletionTimestamp": "2027-01-15T07:00:00Z", "resourceVersion": "99"}
    world.see(victim)
    assert await world.reserved(RESERVED_AFTER_EVICTION_S - 1) == 1


@pytest.mark.parametrize("why", ["Binding under way", "being deleted"])
async def test_a_nominated_pod_that_waits_no_more_gets_nothing_kept(why: str) -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8))
    deleted = "2027-01-15T08:00:30Z" if why == "being deleted" else None
    world.create("needy", 4, status={"nominatedNodeName": "n1"}, deleted=deleted)
    if deleted is None:
        world.committer.assume("default", "needy", "uid-needy", "n1", world.now)
    assert await world.reserved() == 0


async def test_nobody_is_evicted_for_a_pod_that_the_node_policy_holds_back(
    world: PreemptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("n3", (8, 8))
    policy = world.policies.get_policy(PodRequest((ContainerRequest("main", 8, "main"),)))
    monkeypatch.setattr(policy, "score", lambda _view, _ask, rows: np.full(len(rows), np.inf))
    needy = world.wait("needy", 8)
    assert world.answer["FailedAndUnresolvableNodes"]["n3"] == "held back by the node policy"
    assert await world.evicted() == []
    world.nodes["n3"][1][:] = [4, 4]
    world.publish("n3")
    assert not world.filter(needy)
    assert await world.evicted() == ["b"]


@pytest.mark.parametrize(
    "annotations", [{"gpupack.io/node-policy": "none"}, {"gpupack.io/cards": "x"}], ids=["policy", "cards"]
)
async def test_a_nominated_pod_that_asks_for_what_cannot_be_given_gets_nothing_kept(
    world: PreemptionWorld, annotations: dict[str, str]
) -> None:
    world.create("odd", 4, status={"nominatedNodeName": "n1"}, annotations=annotations)
    assert await world.reserved() == 0


async def test_an_answer_that_is_no_pod_changes_nothing(world: PreemptionWorld) -> None:
    class Odd(PreemptionApi):
        def answer(self, verb: str, path: str, body: Any) -> Any:
            found = super().answer(verb, path, body)
            return b"<html>" if verb == "patch" else found

    odd = Odd(world)
    odd.pods = world.api.pods
    world.api = odd
    world.restart()
    world.wait("needy", 8)
    await world.settle()
    assert odd.evicted == ["b"]


async def test_refused_pods_are_forgotten_beyond_a_bound(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    for number in range(MAX_REFUSED_PODS):
        world.preemptor.record_refusal(f"uid-{number}", ["n1"])
    assert await world.evicted() == []


async def test_what_is_kept_for_a_pod_that_is_being_deleted_is_given_up(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    await world.settle()
    needy["metadata"] |= {"deletionTimestamp": "2027-01-15T08:10:00Z", "resourceVersion": "99"}
    world.see(needy)
    assert await world.reserved(0) == 0


async def test_looking_for_victims_takes_a_part_of_the_time_and_the_most_important_pod_is_first() -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8), a=(0, 4, 1), b=(1, 4, 2))

    async def slow(seconds: float) -> None:
        world.now += seconds or 0.1

    world.preemptor._sleep = slow
    world.wait("first", 8, priority=10)
    world.wait("king", 8, priority=11)
    assert await world.evicted() == ["a"]
    assert world.api.nominated == [("king", "n1")]
    assert await world.evicted(0.5) == ["a"]
    assert await world.evicted(0.6) == ["a", "b"]


async def test_victims_that_are_not_there_are_not_looked_for_all_the_time() -> None:
    looks = []
    world = PreemptionWorld()
    world.node("n1", (8,))
    world.run("n1", "guarded", 0, 4, 1, labels={"app": "guarded"})
    world.publish("n1")
    world.budget("guarded", 0)

    async def counted(seconds: float) -> None:
        looks.append(seconds)

    world.preemptor._sleep = counted
    needy = world.wait("needy", 8)
    for _ in range(60):
        await world.settle(0.5)
        world.filter(needy)
    assert 0 < len(looks) < 6
    # What rests is tried again when it may help.
    world.budget("guarded", 1)
    await world.settle(REST_S[1] - 1)
    world.filter(needy)
    assert await world.evicted() == ["guarded"]


async def test_nodes_without_lesser_pods_are_passed_over_quickly(world: PreemptionWorld) -> None:
    looks = []

    async def counted(seconds: float) -> None:
        looks.append(seconds)

    world.preemptor._sleep = counted
    world.wait("needy", 8, priority=1)
    await world.settle()
    assert (looks, world.api.evicted) == ([], [])
