"""The preemptor: who is evicted, what is kept for whom, and every race on the way."""

from collections.abc import Mapping
from typing import Any

import pytest

from allocator.names import POD_ASSIGNED
from kubeapi.errors import Forbidden, TimedOut, TooManyRequests, Unreachable
from scheduler_plugin.commit.nominations import ANNOUNCED_S, FOREIGN_S, KEPT_S, SEEN_S
from scheduler_plugin.commit.preemptor import (
    AT_ONCE,
    BURST,
    EVICTION_S,
    FRESH_S,
    LEFT_S,
    REMEMBERED,
    REST_FIRST_S,
    REST_MOST_S,
    SETTLE_S,
    SPARED_S,
)
from scheduler_plugin.errors import CommitError
from scheduler_plugin.placement.victims import OVERDUE_S
from tests.preemption_world import BUDGET_SAYS_NO, PreemptionApi, PreemptionWorld


@pytest.fixture
def world() -> PreemptionWorld:
    """Two nodes of which each has 8 units free and no card that has them."""
    world = PreemptionWorld()
    world.node("n1", (8, 8), a=(0, 4, 3), b=(1, 4, 2))
    world.node("n2", (8, 8), c=(0, 4, 5), d=(1, 4, 4))
    return world


async def test_a_pod_gets_the_cheapest_card(world: PreemptionWorld) -> None:
    said = []
    world.preemptor.began.connect(lambda pod, plan: said.append((pod.name, plan.reservation.node)))
    world.preemptor.evicted.connect(lambda victim, pod, node: said.append((victim.name, pod.name, node)))
    needy = world.wait("needy", 8)
    await world.settle(0)
    assert world.api.evicted == [], "kube-scheduler comes first"
    await world.settle()
    assert world.api.evicted == ["b"]
    assert world.api.nominated == [("needy", "n1")]
    assert said == [("needy", "n1"), ("b", "needy", "n1")]
    assert not world.filter(needy)
    await world.settle(20)
    assert world.api.evicted == ["b"], "one preemption at a time"
    world.vanish("b")
    assert world.filter(needy) == ["n1"]
    world.committer.begin("default", "needy", "uid-needy", "n1", world.now)


async def test_the_node_that_is_kept_is_the_only_one_that_kube_scheduler_may_take_for_curable(
    world: PreemptionWorld,
) -> None:
    needy = world.wait("needy", 8)
    assert world.answer["FailedNodes"] == {}
    await world.settle()
    world.filter(needy)
    assert world.answer["FailedNodes"] == {"n1": "no card with 8 GiB free"}
    assert world.answer["FailedAndUnresolvableNodes"] == {"n2": "no card with 8 GiB free"}


@pytest.mark.parametrize("priority", [1, 10])
async def test_the_freed_card_is_kept_from_pods_that_are_not_more_important(
    world: PreemptionWorld, priority: int
) -> None:
    needy = world.wait("needy", 8)
    await world.settle()
    small = world.create("small", 4, spec={"priority": priority})
    # The half of the card that was free all the time is kept too.
    assert world.filter(small, ["n1"]) == ["n1"]
    take = world.committer.begin("default", "small", "uid-small", "n1", world.now)
    assert take.assigned == '{"main":[["GPU-n1-0",4]]}'
    other = world.create("other", 4, spec={"priority": priority})
    assert world.filter(other, ["n1"]) == []
    world.vanish("b")
    assert world.filter(other, ["n1"]) == []
    with pytest.raises(CommitError, match="no card with 4 GiB free"):
        world.committer.begin("default", "other", "uid-other", "n1", world.now)
    assert world.filter(needy) == ["n1"]


async def test_a_more_important_pod_may_have_the_freed_card(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    await world.settle()
    world.vanish("b")
    assert world.filter(world.create("king", 8, spec={"priority": 11})) == ["n1"]


async def test_what_was_kept_goes_to_a_more_important_pod_that_waits(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    await world.settle()
    king = world.wait("king", 8, priority=11)
    await world.settle()
    # Those that leave for the other one make room for it, so nobody else has to go.
    assert world.api.evicted == ["b"]
    assert world.api.nominated[1:] == [("needy", ""), ("king", "n1")]
    world.vanish("b")
    assert world.filter(king) == ["n1"]
    assert [each.uid for each in world.state.reservations] == ["uid-king"]


async def test_two_pods_get_two_cards(world: PreemptionWorld) -> None:
    world.wait("first", 8)
    world.wait("second", 8)
    await world.settle()
    assert world.api.evicted == ["b", "a"]
    world.wait("third", 8)
    world.wait("fourth", 8)
    world.wait("fifth", 8)
    await world.settle()
    assert world.api.evicted == ["b", "a", "d", "c"], "the fifth waits"
    assert len(world.state.reservations) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"spec": {"preemptionPolicy": "Never"}},
        {"priority": 2},
        {
            "spec": {
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"x": 1}]}}
            }
        },
    ],
    ids=["policy Never", "not more important", "wants to be near other pods"],
)
async def test_who_preempts_nobody(world: PreemptionWorld, options: dict) -> None:
    world.wait("needy", 8, **options)
    await world.settle()
    assert world.api.evicted == []


async def test_of_two_nodes_the_cheaper_one() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2))
    world.node("n2", (8,), b=(0, 2, 1), c=(0, 2, 1))
    world.node("n3", (8,), d=(0, 4, 1))
    world.wait("needy", 8)
    await world.settle()
    assert world.api.evicted == ["d"]


async def test_only_nodes_that_kube_scheduler_offered_count(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    assert not world.filter(needy, ["n2"])
    await world.settle()
    assert world.api.evicted == ["d"]


async def test_a_refusal_of_long_ago_says_nothing_of_the_nodes_now(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    await world.settle(FRESH_S)
    assert world.api.evicted == []


async def test_a_pod_that_passed_meanwhile_preempts_nobody(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    world.node("n3", (8,))
    assert world.filter(needy) == ["n3"]
    await world.settle()
    assert world.api.evicted == []


async def test_kube_schedulers_own_preemption_goes_before(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    world.preemptor.leave("uid-needy")
    await world.settle()
    assert world.api.evicted == []
    needy = world.api.pods["/api/v1/namespaces/default/pods/needy"]
    world.now += LEFT_S
    world.filter(needy)
    await world.settle()
    assert world.api.evicted == ["b"]


async def test_a_pod_that_kube_scheduler_nominated_waits_for_its_victims(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    needy["status"] = {"phase": "Pending", "nominatedNodeName": "n2"}
    needy["metadata"]["resourceVersion"] = "50"
    world.see(needy)
    await world.settle()
    assert world.api.evicted == []
    # Its victims leave, as kube-scheduler deletes them: the card is kept from now on.
    await world.api.post(
        "/api/v1/namespaces/default/pods/d/eviction",
        {"kind": "Eviction", "deleteOptions": {"preconditions": {"uid": "uid-d"}}},
    )
    await world.settle()
    (kept,) = world.state.reservations
    assert (kept.uid, kept.node, kept.units) == ("uid-needy", "n2", {1: 8})


async def test_pods_that_are_leaving_make_room_without_an_eviction(world: PreemptionWorld) -> None:
    leaving = world.api.pods["/api/v1/namespaces/default/pods/c"]
    leaving["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "resourceVersion": "99"}
    world.see(leaving)
    world.wait("needy", 8)
    await world.settle()
    assert world.api.evicted == []
    assert world.api.nominated == [("needy", "n2")]


async def test_a_pod_that_should_have_left_long_ago_is_no_hope(world: PreemptionWorld) -> None:
    leaving = world.api.pods["/api/v1/namespaces/default/pods/b"]
    leaving["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "resourceVersion": "99"}
    world.see(leaving)
    world.now = 30 + OVERDUE_S
    world.wait("needy", 8)
    await world.settle()
    assert world.api.evicted == ["a"]


async def test_a_budget_is_respected(world: PreemptionWorld) -> None:
    world.node("n3", (8, 8))
    world.run("n3", "guarded", 0, 4, 1, labels={"app": "guarded"})
    world.run("n3", "static", 1, 4, 1, annotations={"kubernetes.io/config.mirror": "x"})
    world.publish("n3")
    world.budget("guarded", 0)
    world.wait("needy", 8)
    await world.settle()
    assert world.api.evicted == ["b"]


async def test_when_the_api_server_says_no_another_card_is_tried(world: PreemptionWorld) -> None:
    failed = []
    world.preemptor.failed.connect(lambda pod, why: failed.append((pod.name, why)))
    world.wait("needy", 8)
    world.api.faults["/b/eviction"] = [BUDGET_SAYS_NO]
    await world.settle()
    assert failed == [("needy", BUDGET_SAYS_NO.message)]
    assert world.api.nominated == [("needy", "n1"), ("needy", "")]
    assert len(world.state.reservations) == 0
    await world.settle(1)
    assert world.api.evicted == [], "it rests"
    await world.settle(REST_FIRST_S)
    assert world.api.evicted == ["a"]


async def test_a_victim_that_was_refused_is_spared_as_long_as_the_api_server_says() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 1))
    needy = world.wait("needy", 8)
    world.api.faults["/a/eviction"] = [TooManyRequests("budget", retry_after_s=SPARED_S * 2)]
    await world.settle()
    world.now += SPARED_S + REST_FIRST_S
    world.filter(needy)
    await world.settle()
    assert world.api.evicted == []
    world.now += SPARED_S
    world.filter(needy)
    await world.settle()
    assert world.api.evicted == ["a"]


async def test_what_was_evicted_before_a_refusal_is_not_in_vain() -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8), a=(0, 4, 2), b=(0, 3, 1), c=(1, 4, 2), d=(1, 3, 1))
    world.wait("needy", 8)
    world.api.faults["/a/eviction"] = [BUDGET_SAYS_NO]
    await world.settle()
    assert world.api.evicted == ["b"]
    await world.settle(REST_FIRST_S)
    # The pod that leaves already tells nothing for its card, as the other one of it may not go.
    assert world.api.evicted == ["b", "d", "c"]


@pytest.mark.parametrize("error", [Forbidden("no right"), TimedOut("late"), Unreachable("away")], ids=repr)
async def test_an_api_server_that_fails_is_not_asked_in_a_loop(
    world: PreemptionWorld, error: Exception
) -> None:
    world.wait("needy", 8)
    world.api.faults["/eviction"] = [error] * 100
    for _ in range(60):
        await world.settle(0.5)
    assert 2 <= 100 - len(world.api.faults["/eviction"]) <= 4
    assert len(world.state.reservations) == 0


async def test_a_victim_that_is_gone_before_is_no_failure(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    gone = world.api.pods.pop("/api/v1/namespaces/default/pods/b")
    await world.settle()
    assert world.api.evicted == []
    assert world.api.nominated == [("needy", "n1")]
    world.api.pods["/api/v1/namespaces/default/pods/b"] = gone
    world.vanish("b")
    assert world.filter(needy) == ["n1"]


async def test_another_pod_of_the_victims_name_is_left_alone(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    world.api.pods["/api/v1/namespaces/default/pods/b"]["metadata"]["uid"] = "uid-another"
    await world.settle()
    assert world.api.evicted == []
    assert len(world.state.reservations) == 1


async def test_a_preemptor_that_is_gone_evicts_nobody(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    del world.api.pods["/api/v1/namespaces/default/pods/needy"]
    await world.settle()
    assert world.api.evicted == []
    assert len(world.state.reservations) == 0


@pytest.mark.parametrize("change", ["bound", "deleted"])
async def test_a_preemptor_that_was_bound_or_deleted_meanwhile_evicts_nobody(
    world: PreemptionWorld, change: str
) -> None:
    world.wait("needy", 8)
    needy = world.api.pods["/api/v1/namespaces/default/pods/needy"]
    if change == "bound":
        needy["spec"]["nodeName"] = "elsewhere"
    else:
        needy["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z"
    await world.settle()
    assert world.api.evicted == []
    assert len(world.state.reservations) == 0


async def test_a_preemptor_that_is_deleted_between_two_evictions_ends_them() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    world.wait("needy", 8)
    world.preemptor.evicted.connect(lambda *_: world.delete("needy"))
    await world.settle()
    assert len(world.api.evicted) == 1
    assert len(world.state.reservations) == 0


async def test_a_pod_that_finds_room_between_two_evictions_ends_them() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    needy = world.wait("needy", 8)
    world.preemptor.evicted.connect(lambda *_: world.node("n2", (8,)) or world.filter(needy))
    await world.settle()
    assert len(world.api.evicted) == 1
    assert len(world.state.reservations) == 0


class Leadership:
    is_leader = False
    since = 0.0


async def test_only_the_leader_preempts() -> None:
    leadership = Leadership()
    world = PreemptionWorld(leadership=leadership)
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    world.wait("needy", 8)
    await world.settle()
    assert world.api.evicted == []
    leadership.is_leader = True

    def lose(*_: object) -> None:
        leadership.is_leader = False

    world.preemptor.evicted.connect(lose)
    await world.settle()
    assert len(world.api.evicted) == 1


async def test_without_a_view_of_pods_or_budgets_nobody_is_evicted(world: PreemptionWorld) -> None:
    stale = ["no word from the API server"]
    world.restart(stale=lambda: stale[0])
    world.wait("needy", 8)
    await world.settle()
    assert world.api.evicted == []
    stale[0] = ""
    world.budgets.synced = False
    await world.settle()
    assert world.api.evicted == []
    world.budgets.synced = True
    await world.settle()
    assert world.api.evicted == ["b"]


async def test_a_pod_that_does_not_take_its_card_loses_it(world: PreemptionWorld) -> None:
    failed = []
    world.preemptor.failed.connect(lambda pod, why: failed.append(pod.name))
    needy = world.wait("needy", 8)
    await world.settle()
    await world.settle(20)
    assert len(world.state.reservations) == 1, "its victim is there still"
    world.vanish("b")
    await world.settle(0)
    await world.settle(KEPT_S - 1)
    assert len(world.state.reservations) == 1
    await world.settle(1)
    assert len(world.state.reservations) == 0
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
    longest_s = SEEN_S if stays == "not seen" else world.api.grace_s + OVERDUE_S
    await world.settle(longest_s - 1)
    await world.settle(KEPT_S - 1)
    assert len(world.state.reservations) == 1
    await world.settle(2)
    await world.settle(KEPT_S)
    assert len(world.state.reservations) == 0


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
    await world.settle(ANNOUNCED_S)
    assert world.api.nominated == [("needy", "n1")] * 2
    needy["status"] = {"phase": "Pending"}
    needy["metadata"]["resourceVersion"] = "80"
    world.see(needy)
    world.api.faults["/needy/status"] = [Unreachable("away")]
    await world.settle(ANNOUNCED_S)
    assert len(world.state.reservations) == 1


async def test_what_was_kept_is_found_again_after_a_restart(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    await world.settle()
    world.state.reservations.drop("uid-needy")
    world.restart()
    other = world.create("other", 8, spec={"priority": 10})
    await world.settle(0)
    (kept,) = world.state.reservations
    assert (kept.uid, kept.node, kept.units) == ("uid-needy", "n1", {1: 8})
    world.vanish("b")
    assert world.filter(other) == []
    assert world.filter(needy) == ["n1"]
    await world.settle(0)
    await world.settle(KEPT_S)
    assert len(world.state.reservations) == 0
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
    await world.settle()
    assert world.api.evicted == [], "it might be kube-scheduler's"
    world.now += FOREIGN_S
    world.filter(needy)
    await world.settle()
    assert world.api.evicted == ["b"]


async def test_there_is_a_bound_on_pods_that_cards_are_kept_for() -> None:
    world = PreemptionWorld()
    for number in range(AT_ONCE + 2):
        world.node(f"n{number:02}", (8,), **{f"v{number:02}": (0, 4, 1)})
    for number in range(AT_ONCE + 2):
        world.wait(f"p{number:02}", 8)
    await world.settle()
    assert len(world.api.evicted) == AT_ONCE
    world.delete("p00")
    await world.settle(0)
    # The card that was being freed for the one that is gone goes to another one.
    assert len(world.api.evicted) == AT_ONCE
    assert world.api.nominated[-1] == (f"p{AT_ONCE}", "n00")


async def test_there_is_a_bound_on_evictions_in_a_time() -> None:
    world = PreemptionWorld()
    more = 5
    for name in ("n1", "n2"):
        world.node(name, (BURST + 10,), **{f"{name}-{each}": (0, 1, 1) for each in range(BURST + more)})
    world.wait("first", BURST + 10)
    world.wait("second", BURST + 10)
    await world.settle()
    assert len(world.api.evicted) == BURST + more
    await world.settle(more * EVICTION_S)
    assert len(world.api.evicted) == BURST + more
    await world.settle(EVICTION_S)
    assert len(world.api.evicted) == 2 * (BURST + more)


async def test_a_fault_of_ours_does_not_end_the_work(world: PreemptionWorld) -> None:
    rounds = []

    class Enough(BaseException):
        pass

    async def sleep(seconds: float) -> None:
        if seconds:
            rounds.append(seconds)
            world.now += SETTLE_S
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
    world.committer.begin("default", "needy", "uid-needy", "n3", world.now)
    assert not world.filter(needy), "its own Binding takes the room"
    await world.settle()
    assert world.api.evicted == []


async def test_nobody_is_evicted_before_the_one_that_a_budget_may_save() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,))
    world.run("n1", "a", 0, 4, 1)
    world.run("n1", "g", 0, 4, 2, labels={"app": "g"})
    world.publish("n1")
    world.budget("g", 1)
    world.wait("needy", 8)
    world.api.faults["/g/eviction"] = [BUDGET_SAYS_NO]
    await world.settle()
    assert world.api.evicted == []


async def test_a_victim_that_leaves_by_itself_is_not_evicted() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    world.wait("needy", 8)

    def leave(*_: object) -> None:
        leaving = world.api.pods["/api/v1/namespaces/default/pods/a"]
        leaving["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "resourceVersion": "99"}
        world.see(leaving)

    world.preemptor.evicted.connect(leave)
    await world.settle()
    assert world.api.evicted == ["b"]
    assert len(world.state.reservations) == 1


async def test_another_card_of_the_node_is_not_taken_from_a_lesser_pod(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    await world.settle()
    world.wait("king", 8, priority=11, annotations={"gpupack.io/gpu-uuid": "GPU-n1-0"})
    await world.settle()
    assert world.api.evicted == ["b", "a"]
    assert {each.uid: set(each.units) for each in world.state.reservations} == {
        "uid-needy": {1},
        "uid-king": {0},
    }


async def test_an_eviction_that_is_seen_late_is_waited_for_after_all(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    world.api.silent = True
    await world.settle()
    await world.settle(SEEN_S)
    world.api.grace_s = 600
    victim = world.api.pods["/api/v1/namespaces/default/pods/b"]
    victim["metadata"]["deletionTimestamp"] = "2027-01-15T09:00:00Z"
    world.see(victim)
    await world.settle(KEPT_S - 1)
    victim["metadata"] |= {"deletionTimestamp": "2027-01-15T07:00:00Z", "resourceVersion": "99"}
    world.see(victim)
    await world.settle(KEPT_S - 1)
    assert len(world.state.reservations) == 1


@pytest.mark.parametrize("why", ["Binding under way", "being deleted"])
async def test_a_nominated_pod_that_waits_no_more_gets_nothing_kept(why: str) -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8))
    deleted = "2027-01-15T08:00:30Z" if why == "being deleted" else None
    world.create("needy", 4, status={"nominatedNodeName": "n1"}, deleted=deleted)
    if deleted is None:
        world.committer.begin("default", "needy", "uid-needy", "n1", world.now)
    await world.settle()
    assert len(world.state.reservations) == 0


async def test_nobody_is_evicted_where_the_pod_only_has_to_wait(world: PreemptionWorld) -> None:
    world.node("n3", (8, 8))
    # The kubelet could mix the two up for as long as this one starts.
    annotations = {POD_ASSIGNED: '{"main":[["GPU-n3-0",8]]}', "gpupack.io/gpu-model": "*"}
    world.create("starting", 8, node="n3", annotations=annotations)
    needy = world.wait("needy", 8)
    assert "starting on the node" in world.answer["FailedAndUnresolvableNodes"]["n3"]
    await world.settle()
    assert world.api.evicted == []
    world.nodes["n3"][1][:] = [8, 4]
    world.nodes["n3"][2].append("uid-starting")
    world.publish("n3")
    assert not world.filter(needy)
    await world.settle()
    assert world.api.evicted == ["starting"]


@pytest.mark.parametrize(
    "annotations", [{"gpupack.io/node-policy": "none"}, {"gpupack.io/cards": "x"}], ids=["policy", "cards"]
)
async def test_a_nominated_pod_that_asks_for_what_cannot_be_given_gets_nothing_kept(
    world: PreemptionWorld, annotations: dict[str, str]
) -> None:
    world.create("odd", 4, status={"nominatedNodeName": "n1"}, annotations=annotations)
    await world.settle()
    assert len(world.state.reservations) == 0


async def test_an_answer_that_is_no_pod_changes_nothing(world: PreemptionWorld) -> None:
    class Odd(PreemptionApi):
        async def patch(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 0) -> bytes:
            await super().patch(path, body, timeout_s=timeout_s)
            return b"<html>"

    odd = Odd(world)
    odd.pods = world.api.pods
    world.api = odd
    world.restart()
    world.wait("needy", 8)
    await world.settle()
    assert odd.evicted == ["b"]


async def test_refused_pods_are_forgotten_beyond_a_bound(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    for number in range(REMEMBERED):
        world.preemptor.note(f"uid-{number}", ["n1"])
    await world.settle()
    assert world.api.evicted == []


async def test_what_is_kept_for_a_pod_that_is_being_deleted_is_given_up(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    await world.settle()
    needy["metadata"] |= {"deletionTimestamp": "2027-01-15T08:10:00Z", "resourceVersion": "99"}
    world.see(needy)
    await world.settle(0)
    assert len(world.state.reservations) == 0


async def test_looking_for_victims_takes_a_part_of_the_time_and_the_most_important_pod_is_first() -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8), a=(0, 4, 1), b=(1, 4, 2))

    async def slow(seconds: float) -> None:
        world.now += seconds or 0.1

    world.preemptor._sleep = slow
    world.wait("first", 8, priority=10)
    world.wait("king", 8, priority=11)
    await world.settle()
    assert world.api.evicted == ["a"]
    assert world.api.nominated == [("king", "n1")]
    await world.settle(0.5)
    assert world.api.evicted == ["a"]
    await world.settle(0.6)
    assert world.api.evicted == ["a", "b"]


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
    await world.settle(REST_MOST_S - 1)
    world.filter(needy)
    await world.settle()
    assert world.api.evicted == ["guarded"]


async def test_nodes_without_lesser_pods_are_passed_over_quickly(world: PreemptionWorld) -> None:
    looks = []

    async def counted(seconds: float) -> None:
        looks.append(seconds)

    world.preemptor._sleep = counted
    world.wait("needy", 8, priority=1)
    await world.settle()
    assert (looks, world.api.evicted) == ([], [])
