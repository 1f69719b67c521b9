"""Cards that are kept for a pod: who sees them as taken, and who does not."""

import json
from typing import Any

import numpy as np
import pytest

from allocator.cards import pair_amounts
from allocator.names import COMPUTE_RESOURCE
from scheduler_plugin.cache.cards import find_current_positions
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.reservations import Reservation, Reservations
from tests.cluster_builders import container
from tests.cluster_builders import node as node_of
from tests.preemption_world import PreemptionWorld


@pytest.fixture
def world() -> PreemptionWorld:
    """One card is kept for a pod of priority 10."""
    world = PreemptionWorld()
    world.node("n", (8, 8), a=(0, 2, 1))
    world.state.reservations.add_reservation(Reservation("uid-needy", 10, "n", {1: (8, 0)}))
    return world


def pod(world: PreemptionWorld, units: int, priority: int, name: str = "p") -> dict[str, Any]:
    return world.create(name, units, spec={"priority": priority})


@pytest.mark.parametrize(
    ("name", "priority", "passes"),
    [("p", 9, False), ("p", 10, False), ("p", 11, True), ("needy", 10, True)],
    ids=["smaller", "same", "larger", "its own"],
)
def test_filter_and_prioritize(world: PreemptionWorld, name: str, priority: int, passes: bool) -> None:
    the_pod = pod(world, 8, priority, name)
    before = arrays(world.state.nodes)
    assert world.filter(the_pod) == (["n"] if passes else [])
    body = json.dumps({"Pod": the_pod, "NodeNames": ["n"]}).encode()
    world.extender.filter_results.pop(f"uid-{name}", None)
    (score,) = json.loads(world.extender.prioritize(body, 0))
    assert score == {"Host": "n", "Score": 10 if passes else 0}
    assert arrays(world.state.nodes) == before, "what was kept is seen by nobody else"


def arrays(nodes: NodeArrays) -> list[Any]:
    kinds = (
        nodes.compute_free,
        nodes.used,
        nodes.assumed,
        nodes.occupied,
        nodes.free,
        nodes.free_order,
        nodes.gpu_used,
    )
    return [kind.tolist() for kind in kinds]


@pytest.mark.parametrize(("percent", "passes"), [(40, True), (41, False)])
def test_compute_is_kept_too(percent: int, passes: bool) -> None:
    world = PreemptionWorld()
    world.state.apply_node(node_of("n", (8,), compute=(10,)), 0)
    world.state.reservations.add_reservation(Reservation("uid-needy", 10, "n", {0: (2, 50)}))
    asks = [container(units=4, resources={COMPUTE_RESOURCE: str(percent)})]
    before = arrays(world.state.nodes)
    assert world.filter(world.create("p", 4, containers=asks), ["n"]) == (["n"] if passes else [])
    assert arrays(world.state.nodes) == before


def test_what_was_scored_with_other_arrays_is_not_offered_again(world: PreemptionWorld) -> None:
    version = int(world.state.nodes.version[0])
    with world.state.reservations.charged_against(world.state.nodes, "uid-p", 1):
        inside = int(world.state.nodes.version[0])
    assert version < inside < world.state.nodes.version[0]


def test_a_fault_leaves_nothing_behind(world: PreemptionWorld) -> None:
    before = arrays(world.state.nodes)
    with (
        pytest.raises(ZeroDivisionError),
        world.state.reservations.charged_against(world.state.nodes, "uid-p", 1),
    ):
        raise ZeroDivisionError
    assert arrays(world.state.nodes) == before


def test_reservations_add_up_and_those_of_unknown_places_do_nothing() -> None:
    nodes = NodeArrays()
    row = nodes.add_node("n")
    nodes.set_cards(row, (8, 8), (1, 0))
    reservations = Reservations()
    for uid, node, units in (("a", "n", {0: 2, 7: 4}), ("b", "n", {0: 3}), ("c", "gone", {0: 3})):
        reservations.add_reservation(Reservation(uid, 1, node, pair_amounts(units, {})))
    with reservations.charged_against(nodes, "p", 1):
        assert nodes.free[row, :2].tolist() == [2, 8]
        assert not np.any(nodes.assumed[row, 2:])
    with reservations.charged_against(nodes, "a", 1):
        assert nodes.free[row, :2].tolist() == [4, 8]
    reservations.remove_reservation("b")
    reservations.remove_reservation("b")
    assert (len(reservations), reservations.get_reservation("b")) == (2, None)


def preempt(world: PreemptionWorld, the_pod: dict[str, Any], *victims: str) -> list[str]:
    proposed = {"n": {"Pods": [{"UID": f"uid-{name}"} for name in victims]}}
    body = json.dumps({"Pod": the_pod, "NodeNameToMetaVictims": proposed}).encode()
    answer = json.loads(world.extender.preempt(body, 0))["NodeNameToMetaVictims"]
    return [each["UID"] for each in answer["n"]["Pods"]] if answer else []


def test_kube_scheduler_evicts_nobody_for_a_pod_that_cards_are_kept_for(world: PreemptionWorld) -> None:
    left: list[str] = []
    world.extender.left_to_kube_scheduler.connect(left.append)
    assert preempt(world, pod(world, 8, 10, "needy"), "a") == []
    assert left == []
    # Another one may not have the card that is kept, and so needs the one of a.
    assert preempt(world, pod(world, 8, 10), "a") == ["uid-a"]
    assert left == ["uid-p"]


def test_nominated_pods_are_known_until_they_are_bound_or_gone() -> None:
    world = PreemptionWorld()
    world.node("n", (8,))
    for name in ("bound", "gone", "cleared"):
        made = world.create(name, 1, status={"nominatedNodeName": "n"})
        assert f"uid-{name}" in world.state.nominated
        world.version += 1
        made["metadata"]["resourceVersion"] = str(world.version)
        if name == "bound":
            made["spec"]["nodeName"] = "n"
            world.see(made)
        elif name == "cleared":
            made["status"]["nominatedNodeName"] = ""
            world.see(made)
        else:
            world.delete(name)
        assert world.state.nominated == set()


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        (("A", "B", "C"), ("A", "B", "C"), {1: 1, 2: 2}),
        (("A", "B", "C"), ("B", "C"), {1: 0, 2: 1}),
        (("A", "B", "C"), ("X", "A", "B", "C"), {1: 2, 2: 3}),
        (("A", "B", "C"), ("C", "A"), {2: 0}),
        (("A", "B"), ("B",), {1: 0}),
        ((), ("A", "B", "C"), {1: 1, 2: 2}),
        (("A", "B", "C"), (), {1: 1, 2: 2}),
    ],
    ids=[
        "the same",
        "one before is gone",
        "one before is new",
        "one of them is gone",
        "no such position",
        "unknown then",
        "unknown now",
    ],
)
def test_cards_are_found_again_by_uuid(
    then: tuple[str, ...], now: tuple[str, ...], found: dict[int, int]
) -> None:
    assert find_current_positions((1, 2), then, now) == found


def test_a_card_stays_kept_where_one_before_it_goes() -> None:
    nodes = NodeArrays()
    row = nodes.add_node("n")
    reservations = Reservations()
    reservations.add_reservation(Reservation("a", 1, "n", {1: (8, 0), 2: (3, 0)}, ("A", "B", "C")))
    nodes.set_cards(row, (8, 8), (0, 0), uuids=("B", "C"))
    with reservations.charged_against(nodes, "p", 1):
        assert nodes.free[row, :2].tolist() == [0, 5]
    nodes.set_cards(row, (8, 8), (0, 0), uuids=("A", "C"))
    with reservations.charged_against(nodes, "p", 1):
        assert nodes.free[row, :2].tolist() == [8, 5]
