"""The preemptor: who is evicted, what is kept for whom, and every race on the way."""

import pytest

from allocator.names import POD_CONTAINERS
from kubeapi.errors import Forbidden, KubeApiError, TimedOut, TooManyRequests, Unreachable
from scheduler_plugin.cache.pods import OVERDUE_AFTER_S
from scheduler_plugin.errors import CommitError
from scheduler_plugin.preemption.preemptor import (
    KUBE_PREEMPTION_S,
    REFUSAL_VALID_S,
    REST_S,
)
from tests.cluster_builders import container
from tests.preemption_world import BUDGET_SAYS_NO, PreemptionWorld


@pytest.fixture
def world() -> PreemptionWorld:
    return PreemptionWorld.of_two_nodes()


async def test_a_pod_gets_the_cheapest_card(world: PreemptionWorld) -> None:
    said = []
    world.preemptor.began.connect(lambda pod, plan: said.append((pod.name, plan.reservation.node)))
    world.preemptor.evicted.connect(lambda victim, pod, node: said.append((victim.name, pod.name, node)))
    needy = world.wait("needy", 8)
    assert await world.evicted(0) == [], "kube-scheduler comes first"
    assert await world.evicted() == ["b"]
    assert world.api.nominated == [("needy", "n1")]
    assert said == [("needy", "n1"), ("b", "needy", "n1")]
    assert not world.filter(needy)
    assert await world.evicted(20) == ["b"], "one preemption at a time"
    world.vanish("b")
    assert world.filter(needy) == ["n1"]
    world.committer.assume("default", "needy", "uid-needy", "n1", world.now)


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
    take = world.committer.assume("default", "small", "uid-small", "n1", world.now)
    assert take.assigned == '{"main":[["GPU-n1-0",4]]}'
    other = world.create("other", 4, spec={"priority": priority})
    assert world.filter(other, ["n1"]) == []
    world.vanish("b")
    assert world.filter(other, ["n1"]) == []
    with pytest.raises(CommitError, match="no card with 4 GiB free"):
        world.committer.assume("default", "other", "uid-other", "n1", world.now)
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
    assert await world.evicted() == ["b", "a"]
    world.wait("third", 8)
    world.wait("fourth", 8)
    world.wait("fifth", 8)
    assert await world.evicted() == ["b", "a", "d", "c"], "the fifth waits"
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
    assert await world.evicted() == []


async def test_a_pod_whose_containers_want_cards_of_their_own_gets_a_second_card() -> None:
    """Card 0 has room for both containers; the pod's own rule keeps one of them off it."""
    world = PreemptionWorld()
    world.node("n1", (8, 8), a=(1, 8, 2))
    two = [container("x", 4), container("y", 4)]
    needy = world.wait("needy", 0, containers=two, annotations={POD_CONTAINERS: "apart"})
    assert "on cards of their own" in world.answer["FailedAndUnresolvableNodes"]["n1"]
    assert await world.evicted() == ["a"]
    world.vanish("a")
    assert world.filter(needy) == ["n1"]


async def test_where_no_eviction_gives_a_pod_cards_of_one_model_nobody_is_evicted() -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8), models=("A100", "L40S"), a=(0, 4, 2))
    world.wait("needy", 8, annotations={"gpupack.io/cards": "2"})
    assert await world.evicted() == []


async def test_a_pod_gets_two_cards_of_one_model() -> None:
    """Two cards are free, of two models."""
    world = PreemptionWorld()
    world.node("n1", (8, 8, 8, 8), models=("A100", "A100", "L40S", "L40S"), a=(1, 4, 3), b=(3, 4, 2))
    needy = world.wait("needy", 16, annotations={"gpupack.io/cards": "2"})
    assert await world.evicted() == ["b"]
    world.vanish("b")
    assert world.filter(needy) == ["n1"]


def test_of_many_nodes_those_are_looked_at_on_which_an_eviction_can_help() -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8), models=("A100", "L40S"))
    world.node("n2", (8, 8), models=("A100", "A100"), a=(0, 4, 2))
    world.wait("needy", 16, annotations={"gpupack.io/cards": "2"})
    assert world.offered == ("n2",)


async def test_of_two_nodes_the_cheaper_one() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2))
    world.node("n2", (8,), b=(0, 2, 1), c=(0, 2, 1))
    world.node("n3", (8,), d=(0, 4, 1))
    world.wait("needy", 8)
    assert await world.evicted() == ["d"]


async def test_only_nodes_that_kube_scheduler_offered_count(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    assert not world.filter(needy, ["n2"])
    assert await world.evicted() == ["d"]


async def test_a_refusal_of_long_ago_says_nothing_of_the_nodes_now(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    assert await world.evicted(REFUSAL_VALID_S) == []


async def test_a_pod_that_passed_meanwhile_preempts_nobody(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    world.node("n3", (8,))
    assert world.filter(needy) == ["n3"]
    assert await world.evicted() == []


async def test_kube_schedulers_own_preemption_goes_before(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    world.preemptor.leave_to_kube_scheduler("uid-needy")
    assert await world.evicted() == []
    needy = world.api.pods["/api/v1/namespaces/default/pods/needy"]
    world.now += KUBE_PREEMPTION_S
    world.filter(needy)
    assert await world.evicted() == ["b"]


async def test_a_pod_that_kube_scheduler_nominated_waits_for_its_victims(world: PreemptionWorld) -> None:
    needy = world.wait("needy", 8)
    needy["status"] = {"phase": "Pending", "nominatedNodeName": "n2"}
    needy["metadata"]["resourceVersion"] = "50"
    world.see(needy)
    assert await world.evicted() == []
    # Its victims leave, as kube-scheduler deletes them: the card is kept from now on.
    await world.api.post(
        "/api/v1/namespaces/default/pods/d/eviction",
        {"kind": "Eviction", "deleteOptions": {"preconditions": {"uid": "uid-d"}}},
    )
    await world.settle()
    (kept,) = world.state.reservations
    assert (kept.uid, kept.node, kept.amounts) == ("uid-needy", "n2", {1: (8, 0)})


async def test_pods_that_are_leaving_make_room_without_an_eviction(world: PreemptionWorld) -> None:
    leaving = world.api.pods["/api/v1/namespaces/default/pods/c"]
    leaving["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "resourceVersion": "99"}
    world.see(leaving)
    world.wait("needy", 8)
    assert await world.evicted() == []
    assert world.api.nominated == [("needy", "n2")]


async def test_a_pod_that_should_have_left_long_ago_is_no_hope(world: PreemptionWorld) -> None:
    leaving = world.api.pods["/api/v1/namespaces/default/pods/b"]
    leaving["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "resourceVersion": "99"}
    world.see(leaving)
    world.now = 30 + OVERDUE_AFTER_S
    world.wait("needy", 8)
    assert await world.evicted() == ["a"]


async def test_a_budget_is_respected(world: PreemptionWorld) -> None:
    world.node("n3", (8, 8))
    world.run("n3", "guarded", 0, 4, 1, labels={"app": "guarded"})
    world.run("n3", "static", 1, 4, 1, annotations={"kubernetes.io/config.mirror": "x"})
    world.publish("n3")
    world.budget("guarded", 0)
    world.wait("needy", 8)
    assert await world.evicted() == ["b"]


async def test_when_the_api_server_says_no_another_card_is_tried(world: PreemptionWorld) -> None:
    failed = []
    world.preemptor.failed.connect(lambda pod, why: failed.append((pod.name, why)))
    world.wait("needy", 8)
    world.api.faults["/b/eviction"] = [BUDGET_SAYS_NO]
    await world.settle()
    assert failed == [("needy", BUDGET_SAYS_NO.message)]
    assert world.api.nominated == [("needy", "n1"), ("needy", "")]
    assert len(world.state.reservations) == 0
    assert await world.evicted(1) == [], "it rests"
    assert await world.evicted(REST_S[0]) == ["a"]


async def test_a_victim_that_is_refused_each_time_is_spared_for_longer_than_its_preemptor_rests(
    world: PreemptionWorld,
) -> None:
    """Else it would be chosen for ever, once the preemptor rests for as long as it was spared at first."""
    needy = world.wait("needy", 8)
    world.api.faults = {"/eviction": [Forbidden("not yet")] * 5, "/b/eviction": [Forbidden("never")] * 100}
    while not world.api.evicted and world.now < 600:
        world.filter(needy)
        await world.settle(5)
    assert world.api.evicted == ["a"]


@pytest.mark.parametrize(
    ("path", "errors", "victim"),
    [
        pytest.param("/b/eviction", [TooManyRequests("too many requests")] * 100, "a", id="busy for one"),
        pytest.param("/eviction", [Unreachable("connection refused")] * 3, "b", id="away for all"),
    ],
)
async def test_another_victim_is_chosen_if_the_api_server_stays_busy_for_one(
    world: PreemptionWorld, path: str, errors: list[KubeApiError], victim: str
) -> None:
    """A webhook may answer so for one pod for good."""
    needy = world.wait("needy", 8)
    world.api.faults[path] = errors
    for _ in range(12):
        world.filter(needy)
        await world.settle(5)
    assert world.api.evicted == [victim]


async def test_a_victim_is_not_spared_because_the_api_server_is_busy(world: PreemptionWorld) -> None:
    """Another victim would be a worse one, and would be refused as well."""
    world.wait("needy", 8)
    world.api.faults["/b/eviction"] = [TooManyRequests("too many requests", retry_after_s=1)]
    assert await world.evicted() == []
    assert await world.evicted(REST_S[0]) == ["b"]


async def test_what_was_evicted_before_a_refusal_is_not_in_vain() -> None:
    world = PreemptionWorld()
    world.node("n1", (8, 8), a=(0, 4, 2), b=(0, 3, 1), c=(1, 4, 2), d=(1, 3, 1))
    world.wait("needy", 8)
    world.api.faults["/a/eviction"] = [BUDGET_SAYS_NO]
    assert await world.evicted() == ["b"]
    await world.settle(REST_S[0])
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
    assert await world.evicted() == []
    assert world.api.nominated == [("needy", "n1")]
    world.api.pods["/api/v1/namespaces/default/pods/b"] = gone
    world.vanish("b")
    assert world.filter(needy) == ["n1"]


async def test_another_pod_of_the_victims_name_is_left_alone(world: PreemptionWorld) -> None:
    world.wait("needy", 8)
    world.api.pods["/api/v1/namespaces/default/pods/b"]["metadata"]["uid"] = "uid-another"
    assert await world.evicted() == []
    assert len(world.state.reservations) == 1


@pytest.mark.parametrize("change", ["bound", "being deleted", "gone"])
async def test_a_preemptor_that_was_bound_or_deleted_meanwhile_evicts_nobody(
    world: PreemptionWorld, change: str
) -> None:
    world.wait("needy", 8)
    needy = world.api.pods["/api/v1/namespaces/default/pods/needy"]
    if change == "bound":
        needy["spec"]["nodeName"] = "elsewhere"
    elif change == "gone":
        del world.api.pods["/api/v1/namespaces/default/pods/needy"]
    else:
        needy["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z"
    assert await world.evicted() == []
    assert len(world.state.reservations) == 0


async def test_a_preemptor_that_is_deleted_between_two_evictions_ends_them() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    world.wait("needy", 8)
    world.preemptor.evicted.connect(lambda *_: world.delete("needy"))
    assert len(await world.evicted()) == 1
    assert len(world.state.reservations) == 0


async def test_a_pod_that_finds_room_between_two_evictions_ends_them() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    needy = world.wait("needy", 8)
    world.preemptor.evicted.connect(lambda *_: world.node("n2", (8,)) or world.filter(needy))
    assert len(await world.evicted()) == 1
    assert len(world.state.reservations) == 0


class Leadership:
    is_leader = False
    since = 0.0


async def test_only_the_leader_preempts() -> None:
    leadership = Leadership()
    world = PreemptionWorld(leadership=leadership)
    world.node("n1", (8,), a=(0, 4, 2), b=(0, 4, 1))
    world.wait("needy", 8)
    assert await world.evicted() == []
    leadership.is_leader = True

    def lose(*_: object) -> None:
        leadership.is_leader = False

    world.preemptor.evicted.connect(lose)
    assert len(await world.evicted()) == 1


async def test_without_a_view_of_pods_or_budgets_nobody_is_evicted(world: PreemptionWorld) -> None:
    stale = ["no word from the API server"]
    world.restart(stale=lambda: stale[0])
    world.wait("needy", 8)
    assert await world.evicted() == []
    stale[0] = ""
    world.budgets.synced = False
    assert await world.evicted() == []
    world.budgets.synced = True
    assert await world.evicted() == ["b"]
