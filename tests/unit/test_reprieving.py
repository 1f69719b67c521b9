"""preempt beside PodDisruptionBudgets: who goes, in which order, and how many budgets that violates."""

from typing import Any

import pytest

from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from tests.cluster_builders import container
from tests.preemption_world import PreemptionWorld


@pytest.fixture
def world() -> PreemptionWorld:
    return PreemptionWorld()


def asking(world: PreemptionWorld, units: int = 8, priority: int = 10, **options: Any) -> dict[str, Any]:
    return world.create("needy", units, spec={"priority": priority}, **options)


def guard(world: PreemptionWorld, name: str, card: int, units: int, priority: int = 1, **more: Any) -> None:
    world.run("n", name, card, units, priority, labels={"app": "web"}, **more)
    world.publish("n")


def test_two_unguarded_pods_go_and_not_one_guarded(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(1, 4, 1), b=(1, 4, 1))
    guard(world, "guarded", 0, 8)
    world.budget("web", 0)
    # Of these two kube-scheduler has found that no budget is violated; no card is free without one of them.
    assert world.preempt(asking(world), n=["a"]) == {"n": (["b", "a"], 0)}


def test_a_guarded_pod_goes_where_nothing_else_helps_and_is_counted(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), important=(1, 8, 10), small=(0, 2, 1))
    guard(world, "guarded", 0, 6)
    world.budget("web", 0)
    assert world.preempt(asking(world), n=["small"]) == {"n": (["small", "guarded"], 1)}


@pytest.mark.parametrize(
    ("allowed", "disrupted", "victims", "violations"),
    [
        (0, (), ["c"], 0),
        (1, (), ["c"], 0),
        (2, (), ["b", "a"], 0),
        (1, ("a",), ["b", "a"], 0),
        (0, ("a", "b"), ["b", "a"], 0),
    ],
)
def test_a_budget_is_used_up_by_each_of_its_pods(
    world: PreemptionWorld, allowed: int, disrupted: tuple[str, ...], victims: list[str], violations: int
) -> None:
    world.node("n", (8, 8), c=(1, 8, 2))
    guard(world, "a", 0, 4)
    guard(world, "b", 0, 4)
    world.budget("web", allowed, disrupted)
    assert world.preempt(asking(world), n=["a"]) == {"n": (victims, violations)}


@pytest.mark.parametrize("named", [["static"], ["a"], ["b"]])
def test_the_end_of_a_static_pod_s_mirror_frees_nothing(world: PreemptionWorld, named: list[str]) -> None:
    """kube-scheduler takes it for any other pod; the kubelet runs on what it stands for."""
    world.node("n", (8, 8), a=(1, 4, 2), b=(1, 4, 2))
    world.run("n", "static", 0, 8, 1, annotations={"kubernetes.io/config.mirror": "x"})
    world.publish("n")
    assert world.preempt(asking(world), n=named) == {"n": (["b", "a"], 0)}


def test_what_kube_scheduler_counted_is_kept_with_its_victims(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(1, 8, 1))
    guard(world, "guarded", 0, 8)
    world.budget("web", 0)
    assert world.preempt(asking(world), 1, n=["guarded"]) == {"n": (["guarded"], 1)}


def test_the_most_important_victim_stands_first(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), low=(0, 2, 1), high=(0, 4, 3), middle=(0, 2, 2), king=(1, 8, 11))
    # kube-scheduler compares nodes by the first victim's priority.
    assert world.preempt(asking(world), n=["low"]) == {"n": (["high", "middle", "low"], 0)}


@pytest.mark.parametrize(
    ("early", "late", "victims"),
    [
        ({"startTime": "2027-01-15T07:00:00Z"}, {"startTime": "2027-01-15T07:30:00Z"}, ["late"]),
        ({"startTime": "2027-01-15T07:00:00Z"}, {}, ["late"]),
        ({}, {"startTime": "2027-01-15T07:00:00Z"}, ["early"]),
    ],
    ids=["both run", "one has not started", "the other one has not"],
)
def test_of_equals_the_one_goes_that_started_last(
    world: PreemptionWorld, early: dict[str, str], late: dict[str, str], victims: list[str]
) -> None:
    world.node("n", (8, 8), small=(0, 1, 1))
    world.run("n", "early", 0, 7, 1, status=early)
    world.run("n", "late", 1, 7, 1, status=late)
    world.publish("n")
    world.vanish("small")
    assert world.preempt(asking(world), n=[]) == {"n": (victims, 0)}


def test_a_victim_that_asks_for_no_cards_stays_one_with_its_violation(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(0, 4, 1), b=(1, 4, 2), c=(0, 4, 1))
    plain = [{"name": "c", "resources": {"requests": {"cpu": "39"}}}]
    world.create("plain", 0, node="n", containers=plain, spec={"priority": 4})
    # Its labels are not known here. kube-scheduler says that one of the two violates a budget.
    assert world.preempt(asking(world), 1, n=["plain", "a"]) == {"n": (["plain", "c", "a"], 1)}
    assert world.preempt(asking(world), 2, n=["gone", "a"]) == {"n": (["c", "a", "gone"], 1)}
    guard(world, "guarded", 1, 4, 1)
    world.budget("web", 0)
    assert world.preempt(asking(world), 1, n=["plain", "guarded"]) == {"n": (["plain", "c", "a"], 0)}


def test_cpu_that_a_victim_without_cards_frees_counts(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(0, 8, 1), b=(1, 8, 2))
    plain = [{"name": "c", "resources": {"requests": {"cpu": "38"}}}]
    world.create("plain", 0, node="n", containers=plain, spec={"priority": 1})
    needs = asking(world, cpu="30")
    assert world.preempt(needs, n=["plain"]) == {"n": (["plain", "a"], 0)}


def test_a_victim_needed_for_what_is_not_known_here_stays_one(world: PreemptionWorld) -> None:
    # The sum suffices without x: kube-scheduler evicts it for a port, an affinity or another resource.
    world.node("n", (8, 8, 8), x=(2, 1, 3), a=(0, 4, 1), b=(1, 4, 1), c=(0, 4, 2), d=(1, 4, 2), y=(2, 7, 4))
    assert world.preempt(asking(world), n=["x", "a", "b"]) == {"n": (["x", "c", "a"], 0)}


def test_without_budgets_known_only_kube_scheduler_s_victims_go(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(0, 4, 1), b=(1, 8, 1), c=(0, 4, 2))
    world.extender.budgets = DisruptionBudgets()
    assert world.preempt(asking(world), n=["a"]) == {}
    assert world.preempt(asking(world), n=["b"]) == {"n": (["b"], 0)}
    world.extender.budgets.replace([], "1")
    assert world.preempt(asking(world), n=["a"]) == {"n": (["b"], 0)}


def test_several_containers_on_two_cards(world: PreemptionWorld) -> None:
    world.node("n", (8, 8), a=(0, 6, 1), b=(1, 6, 1), c=(1, 2, 2))
    guard(world, "guarded", 0, 2)
    world.budget("web", 0)
    both = asking(world, containers=[container("x", 6), container("y", 8)])
    assert world.preempt(both, n=["a"]) == {"n": (["c", "b", "a"], 0)}
