"""Whom to evict on one node: tables by the order of kube-scheduler's criteria."""

import json
from collections.abc import Collection
from typing import Any

import pytest

from allocator.names import COMPUTE_RESOURCE, POD_ALLOCATION, POD_ASSIGNED, POD_GANG, POD_GANG_SIZE
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.preemption import node_victims, victims
from scheduler_plugin.preemption.node_victims import compute_cost
from scheduler_plugin.preemption.victims import EvictionRules, PreemptionPlan, plan_on_node
from tests.cluster_builders import container, uuid
from tests.preemption_world import EPOCH_S, PreemptionWorld
from tests.queue_world import pod_group


def plan(world: PreemptionWorld, units: int = 8, priority: int = 10, **options: Any) -> PreemptionPlan | None:
    """Of the node n for a pod that no card has room for."""
    world.create("needy", units, spec={"priority": priority}, **options)
    pod = world.state.pods["uid-needy"]
    assert pod.request is not None
    query = world.policies.make_request(world.state.nodes, pod.request, pod.amounts)
    return plan_on_node(world.state, "n", query, pod, EvictionRules(world.budgets, (), EPOCH_S))


def names(found: PreemptionPlan | None) -> set[str] | None:
    return None if found is None else {victim.name for victim in found.victims}


@pytest.fixture
def world() -> PreemptionWorld:
    return PreemptionWorld()


@pytest.mark.parametrize(
    ("sizes", "pods", "units", "expected"),
    [
        ((8, 8), {"a": (0, 4, 2), "b": (1, 4, 1)}, 8, {"b"}),
        ((8, 8), {"a": (0, 4, 1), "b": (0, 4, 1), "c": (1, 8, 1)}, 8, {"c"}),
        ((8, 8), {"a": (0, 4, 1), "b": (0, 4, 1), "c": (1, 8, 2)}, 8, {"a", "b"}),
        ((8, 8), {"a": (0, 4, 1), "b": (0, 4, 5), "c": (1, 4, 4), "d": (1, 4, 4)}, 8, {"c", "d"}),
        ((8,), {"a": (0, 1, 1), "b": (0, 1, 1), "c": (0, 5, 1)}, 6, {"c"}),
        ((8,), {"a": (0, 2, 1), "b": (0, 2, 1), "c": (0, 4, 1)}, 4, {"c"}),
        ((8,), {"a": (0, 1, 1), "b": (0, 1, 1), "c": (0, 5, 2)}, 3, {"a", "b"}),
        ((8,), {"a": (0, 3, 1), "b": (0, 2, 1), "c": (0, 3, 2)}, 3, {"a"}),
        ((8, 4), {"a": (0, 8, 2), "b": (1, 4, 1)}, 8, {"a"}),
        ((8,), {"a": (0, 4, 10), "b": (0, 4, 1)}, 8, None),
        ((8,), {"a": (0, 4, 11)}, 8, None),
        ((4,), {"a": (0, 4, 1)}, 8, None),
    ],
    ids=[
        "smallest priority",
        "fewest of one priority",
        "priority before number",
        "largest priority before the sum",
        "one large one",
        "one as large as two",
        "two of a smaller priority",
        "no more than needed",
        "a card that is too small",
        "same priority",
        "larger priority",
        "nothing helps",
    ],
)
def test_one_card(
    world: PreemptionWorld,
    sizes: tuple[int, ...],
    pods: dict[str, tuple[int, int, int]],
    units: int,
    expected: set[str] | None,
) -> None:
    world.node("n", sizes, **pods)
    assert names(plan(world, units)) == expected


@pytest.mark.parametrize(
    ("compute", "expected"), [(0, {"c"}), (30, {"c"}), (50, {"a"}), (90, {"a", "b"}), (100, {"a", "b"})]
)
def test_victims_free_the_compute_too(world: PreemptionWorld, compute: int, expected: set[str]) -> None:
    """c has most of the memory and no compute; a and b have the compute."""
    world.node("n", (8,))
    for name, units, percent, priority in (("a", 2, 50, 2), ("b", 2, 20, 2), ("c", 4, 0, 1)):
        asks = [container(units=units, resources={COMPUTE_RESOURCE: str(percent)})]
        world.run("n", name, 0, units, priority, containers=asks)
    world.publish("n")
    asks = [container(units=2, resources={COMPUTE_RESOURCE: str(compute)})]
    assert names(plan(world, containers=asks)) == expected


def test_the_cards_are_those_that_the_victims_leave(world: PreemptionWorld) -> None:
    world.node("n", (8, 8, 8), a=(0, 4, 3), b=(1, 4, 2), c=(2, 4, 1))
    found = plan(world, 16, annotations={"gpupack.io/cards": "2"})
    assert names(found) == {"b", "c"}
    assert found is not None
    assert (found.reservation.node, found.reservation.amounts) == ("n", {1: (8, 0), 2: (8, 0)})
    assert found.leaving_or_evicted == {"uid-b", "uid-c"}


def test_several_containers(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(0, 4, 3), b=(0, 4, 1), c=(1, 4, 2), d=(1, 4, 1))
    two = [container("x", 8), container("y", 4)]
    # Up to priority 2 one card and half of the other one become free, and of b and d both are needed.
    assert names(plan(world, containers=two)) == {"b", "c", "d"}


def test_several_containers_for_which_nothing_helps(world: PreemptionWorld) -> None:
    world.node("n", (8,), a=(0, 4, 3))
    assert plan(world, containers=[container("x", 8), container("y", 4)]) is None


def test_a_pod_on_two_cards_frees_both(world: PreemptionWorld) -> None:
    world.node("n", (8, 8))
    both = {
        POD_ASSIGNED: json.dumps({"main": [[uuid("n", 0), 4], [uuid("n", 1), 4]]}),
        "gpupack.io/cards": "2",
    }
    world.run("n", "wide", 0, 8, 2, annotations=both)
    world.nodes["n"][1][:] = [4, 8]
    world.run("n", "small", 1, 0, 1, annotations=both)
    world.nodes["n"][1][:] = [4, 8]
    world.publish("n")
    assert names(plan(world, 16, annotations={"gpupack.io/cards": "2"})) is None
    world.nodes["n"][1][:] = [4, 4]
    world.publish("n")
    assert names(plan(world, 16, annotations={"gpupack.io/cards": "2"})) == {"wide"}


def test_the_selector_counts(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(0, 4, 2), b=(1, 4, 1))
    assert names(plan(world, annotations={"gpupack.io/gpu-uuid": uuid("n", 0)})) == {"a"}


def test_a_budget_leaves_another_set_of_the_same_card(world: PreemptionWorld) -> None:
    world.node("n", (8,))
    for name in ("a", "b"):
        world.run("n", name, 0, 3, 1, labels={"app": "web"})
    world.run("n", "c", 0, 2, 2)
    world.publish("n")
    world.budget("web", 1)
    assert names(plan(world, 5)) == {"a", "c"}
    world.budget("web", 2)
    assert names(plan(world, 6)) == {"a", "b"}
    world.budget("web", 0)
    assert plan(world, 5) is None


def test_of_equals_the_one_goes_that_started_last(world: PreemptionWorld) -> None:
    world.node("n", (8, 8))
    for card, (name, started) in enumerate(
        (("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-02T00:00:00Z"))
    ):
        world.run("n", name, card, 4, 1, status={"startTime": started})
    world.publish("n")
    assert names(plan(world)) == {"new"}


def test_pods_whose_cards_nobody_knows_are_no_victims(world: PreemptionWorld) -> None:
    world.node("n", (8,))
    world.run("n", "lost", 0, 4, 1, annotations={POD_ASSIGNED: "{}", POD_ALLOCATION: "x"})
    world.publish("n")
    assert plan(world) is None


def test_a_node_without_words(world: PreemptionWorld) -> None:
    assert plan(world) is None


def test_many_units_are_looked_at_in_a_simpler_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "MAX_SUMS", 2)
    world = PreemptionWorld()
    world.node("n", (8,), a=(0, 1, 1), b=(0, 2, 1), c=(0, 4, 1))
    found = plan(world, 5)
    assert names(found) == {"c"}


def test_nobody_is_the_cheapest(world: PreemptionWorld) -> None:
    world.node("n", (8,), a=(0, 4, -(1 << 31)))
    assert compute_cost(()) < compute_cost([world.state.pods["uid-a"]])


def in_gang(name: str = "g") -> dict[str, Any]:
    return {"annotations": {POD_GANG: name, POD_GANG_SIZE: "2"}}


@pytest.mark.parametrize(
    ("gang", "elsewhere", "alone", "expected"),
    [
        (1, 1, 2, {"a"}),
        (1, 1, 1, {"b"}),
        (1, 3, 2, {"b"}),
        (1, 10, 2, {"b"}),
    ],
    ids=(
        "the gang's priority is less",
        "one pod in place of two",
        "its important pod counts",
        "and keeps it",
    ),
)
def test_a_victim_of_a_gang_counts_with_all_of_it(
    world: PreemptionWorld, gang: int, elsewhere: int, alone: int, expected: set[str]
) -> None:
    """The other one runs on another node."""
    world.node("n", (8, 8))
    world.node("m", (8,))
    world.run("n", "a", 0, 8, gang, **in_gang())
    world.run("m", "other", 0, 8, elsewhere, **in_gang())
    world.run("n", "b", 1, 8, alone)
    for name in "nm":
        world.publish(name)
    found = plan(world)
    assert names(found) == expected
    assert found is not None
    assert found.cost[:4] == compute_cost(found.lost)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(2, "", {"b"}), (0, "", {"a"}), (0, "2", {"b"}), (0, "1", {"a"}), (0, "two", {"a"})],
    ids=["gang", "no-gang", "gang-by-annotation", "alone-by-annotation", "annotation-unreadable"],
)
def test_a_victim_of_a_pod_group_counts_with_all_of_it_if_that_is_a_gang(
    count: int, size: str, expected: set[str]
) -> None:
    """kube-controller-manager makes PodGroups for Jobs that are no gangs, and for those that say they are."""
    annotations = {POD_GANG: "other", POD_GANG_SIZE: size} if size else {}
    group: dict[str, Any] = {"spec": {"schedulingGroup": {"podGroupName": "g"}}, "annotations": annotations}
    world = PreemptionWorld()
    world.state.pod_groups.put_group(pod_group("g", count))
    world.node("n", (8, 8))
    world.node("m", (8,))
    world.run("n", "a", 0, 8, 1, **group)
    world.run("m", "other", 0, 8, 10, **group)
    world.run("n", "b", 1, 8, 2)
    for name in "nm":
        world.publish(name)
    assert names(plan(world)) == expected


def test_a_gang_is_lost_once_however_many_of_its_pods_go(world: PreemptionWorld) -> None:
    """Two pods of a gang that has no other, in place of three that are in none."""
    world.node("n", (16,), c=(0, 4, 1), d=(0, 2, 1), e=(0, 2, 1))
    for name in "ab":
        world.run("n", name, 0, 4, 1, **in_gang())
    world.publish("n")
    assert names(plan(world)) == {"a", "b"}


def test_what_is_lost_with_a_gang_is_computed_once_for_a_node(
    world: PreemptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gangs have up to a thousand pods, and many nodes are looked at."""
    world.node("n", (16, 16), alone=(1, 4, 2))
    for at in range(4):
        world.run("n", f"g{at}", 0, 4, 1, **in_gang())
    world.publish("n")
    world.create("needy", 4, spec={"priority": 10})
    pod, computed = world.state.pods["uid-needy"], list[int]()
    assert pod.request is not None
    query = world.policies.make_request(world.state.nodes, pod.request, pod.amounts)
    room = node_victims.view_node(world.state, "n", query)
    assert room is not None

    def count(lost: Collection[PodRecord]) -> node_victims.Cost:
        computed.append(len(lost))
        return compute_cost(lost)

    monkeypatch.setattr(node_victims, "compute_cost", count)
    ordered = sorted(room.pods.values(), key=room.make_loss_key)
    assert [room.get_priority(each) for each in ordered] == [1, 1, 1, 1, 2]
    assert sorted(computed) == [1, 4]


def test_of_equal_gangs_the_one_goes_whose_oldest_pod_started_last(world: PreemptionWorld) -> None:
    """Of the two pods here, a started last: it joined its gang late."""
    world.node("n", (8,))
    world.node("m", (8, 8))
    for name, gang, node, card, minute in (
        ("a", "g", "n", 0, 30),
        ("b", "h", "n", 0, 20),
        ("a-first", "g", "m", 0, 10),
        ("b-other", "h", "m", 1, 20),
    ):
        status = {"startTime": f"2027-01-15T07:{minute}:00Z"}
        world.run(node, name, card, 4, 1, status=status, **in_gang(gang))
    for name in "nm":
        world.publish(name)
    assert names(plan(world, 4)) == {"b"}
    assert world.preempt(world.create("urgent", 4, spec={"priority": 10}), n=["a"]) == {"n": (["b"], 0)}


def test_a_gang_with_a_pod_that_is_as_important_loses_none(world: PreemptionWorld) -> None:
    world.node("n", (8,))
    world.node("m", (8,))
    world.run("n", "a", 0, 8, 1, **in_gang())
    world.run("m", "other", 0, 8, 10, **in_gang())
    for name in "nm":
        world.publish(name)
    assert plan(world) is None
    world.delete("other")
    assert world.state.gangs == {("default", "g"): {"uid-a": world.state.pods["uid-a"]}}
    assert names(plan(world)) == {"a"}
