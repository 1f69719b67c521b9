"""The extender's state, event by event; each test is one rule of the accounting."""

import json
from typing import Any

import pytest

from allocator.names import COMPUTE_RESOURCE, POD_ASSIGNED
from scheduler_plugin.cache.charges import TOMBSTONE_S, Charge, ChargeRules, NodeRecord
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.state import ClusterState
from tests.cluster_builders import container, node, pod, uuid
from tests.state_world import assigned, assumed, bound, compute_free, free, state_with


@pytest.fixture
def state() -> ClusterState:
    return state_with()


def test_a_bound_pod_counts_where_its_binding_says(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    assert assumed(state) == [0, 8]
    assert free(state) == [16, 8]


def computing(percent: int, units: int = 8) -> list[dict[str, object]]:
    return [container(units=units, resources={COMPUTE_RESOURCE: str(percent)})]


def test_compute_counts_with_the_units_until_the_node_publishes_both() -> None:
    state = ClusterState()
    state.apply_node(node("n", (16, 16), compute=(10, 20)), 0)
    assert compute_free(state) == [90, 80]
    state.apply_pod(bound("a", 8, 1, containers=computing(30)), 0)
    assert (free(state), compute_free(state)) == ([16, 8], [90, 50])
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"], compute=(10, 50)), 0)
    assert (free(state), compute_free(state)) == ([16, 8], [90, 50])
    assert state.nodes.compute.assumed[0].sum() == 0


def test_compute_of_a_pod_that_waits_for_its_binding_and_of_one_that_vanished() -> None:
    state = ClusterState()
    state.apply_node(node("n", (16, 16), compute=(0, 0)), 0)
    state.apply_pod(pod("a", containers=computing(30)), 0)
    made = state.assume("uid-a", "n", {"main": ((uuid("n", 0), 8),)}, 0)
    assert compute_free(state) == [70, 100]
    state.forget(made, 0)
    assert compute_free(state) == [100, 100]
    state.apply_pod(bound("a", 8, 1, version=7, containers=computing(30)), 0)
    state.delete_pod(bound("a", 8, 1, version=8, containers=computing(30)), "8", 0)
    assert compute_free(state) == [100, 70]
    state.expire_tombstones(TOMBSTONE_S)
    assert compute_free(state) == [100, 100]


def test_compute_of_a_pod_whose_cards_are_not_known_counts_on_every_card_that_could_take_it() -> None:
    state = ClusterState()
    state.apply_node(node("n", (16, 4, 8), compute=(0, 0, 0), compute_limit=200), 0)
    state.apply_pod(bound("a", 8, containers=computing(30)), 0)
    assert (free(state), compute_free(state)) == ([8, 4, 0], [170, 200, 170])


def test_a_node_that_does_not_publish_compute_has_none_and_a_card_out_of_service_neither(
    state: ClusterState,
) -> None:
    assert compute_free(state) == [0, 0]
    state.apply_node(node("n", (16, 16), version=6, compute=(0, 10), cordon=uuid("n", 0)), 0)
    assert compute_free(state) == [0, 90]


def test_a_node_that_goes_back_to_words_without_compute_and_forth_loses_nothing() -> None:
    state = ClusterState()
    state.apply_node(node("n", (16, 16), (0, 8), holds=["uid-a"], compute=(0, 30)), 0)
    state.apply_pod(bound("a", 8, 1, containers=computing(30)), 0)
    state.apply_pod(bound("b", 8, 0, containers=computing(20)), 0)
    assert compute_free(state) == [80, 70]
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    assert max(compute_free(state)) <= 0
    state.apply_node(node("n", (16, 16), (0, 8), version=7, holds=["uid-a"], compute=(0, 30)), 0)
    assert compute_free(state) == [80, 70], "the node has not heard of b yet"
    state.apply_node(node("n", (16, 16), (8, 8), version=8, holds=["uid-a", "uid-b"], compute=(20, 30)), 0)
    assert compute_free(state) == [80, 70]


def test_a_pod_that_waits_or_asks_for_nothing_does_not_count(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8), 0)
    state.apply_pod(pod("b", node="n", containers=[{"name": "c"}]), 0)
    assert assumed(state) == [0, 0]


def test_a_pod_stops_counting_when_its_node_holds_its_uid(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    assert assumed(state) == [0, 0]
    assert free(state) == [16, 8]


def test_the_order_of_node_and_pod_does_not_matter(state: ClusterState) -> None:
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    state.apply_pod(bound("a", 8, 1), 0)
    assert free(state) == [16, 8]


def test_it_is_a_predicate_not_a_latch(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    state.apply_node(node("n", (16, 16), version=7), 0)
    assert assumed(state) == [0, 8]


def test_words_of_a_newer_resource_version_count_though_their_revision_went_back() -> None:
    state = ClusterState()
    state.apply_node(node("n", (16, 16), (0, 0), version=5, revision=(1 << 53) - 1), 0)
    state.apply_node(node("n", (16, 16), (0, 8), version=6, revision=7), 0)
    assert free(state) == [16, 8]
    state.apply_node(node("n", (16, 16), (0, 0), version=4, revision=(1 << 53) - 1), 0)
    assert free(state) == [16, 8]


def test_a_pod_of_the_same_name_is_another_pod(state: ClusterState) -> None:
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    state.apply_pod(bound("a", 8, 1, uid="another"), 0)
    assert assumed(state) == [0, 8]


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {POD_ASSIGNED: "rubbish"},
        assigned(0, 8, name="other-node"),
        assigned(0, 4),
        assigned(0, 8, container_name="other"),
    ],
    ids=["no annotation", "rubbish", "cards of another node", "other units", "other container"],
)
def test_a_pod_bound_without_us_counts_on_every_card_that_could_take_it(annotations: dict[str, str]) -> None:
    state = state_with(16, 4, 8)
    state.apply_pod(pod("a", 8, node="n", version=5, annotations=annotations), 0)
    assert assumed(state) == [8, 0, 8]


def test_several_containers_count_each() -> None:
    state = state_with(16, 4)
    state.apply_pod(pod("a", node="n", version=5, containers=[container("x", 8), container("y", 3)]), 0)
    assert assumed(state) == [11, 3]


def test_an_init_container_s_pod_counts_its_peak_once() -> None:
    state = state_with(16, 16)
    text = json.dumps({"i": [[uuid("n", 0), 6]], "x": [[uuid("n", 0), 4]]})
    state.apply_pod(
        pod(
            "a",
            node="n",
            version=5,
            init=[container("i", 6)],
            containers=[container("x", 4)],
            annotations={POD_ASSIGNED: text},
        ),
        0,
    )
    assert assumed(state) == [6, 0]


@pytest.mark.parametrize("more", [{"healthy": (False, True)}, {"used": (12, 0)}], ids=["unhealthy", "filled"])
def test_claims_on_a_card_that_cannot_serve_them_count_there_alone(
    state: ClusterState, more: dict[str, Any]
) -> None:
    """The node refuses these pods, it serves nobody elsewhere than the scheduler said."""
    state.apply_pod(bound("a", 8, 0), 0)
    state.apply_node(node("n", (16, 16), version=6, **more), 0)
    assert assumed(state) == [8, 0]
    state.apply_pod(bound("b", 12, 1), 0)
    assert assumed(state) == [8, 12]


def test_a_pod_with_impossible_annotations_counts(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, node="n", version=5, annotations={"gpupack.io/cards": "0"}), 0)
    assert assumed(state) == [8, 8]


def test_a_pod_that_ends_held_leaves_nothing(state: ClusterState) -> None:
    state.apply_node(node("n", (16, 16), (0, 8), version=6, seen=5, holds=["uid-a"]), 0)
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_pod(bound("a", 8, 1, version=9, phase="Succeeded"), 0)
    assert assumed(state) == [0, 0]


@pytest.mark.parametrize("how", ["deleted", "failed", "vanished"])
def test_a_pod_that_ends_unheld_leaves_a_tombstone(state: ClusterState, how: str) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    if how == "deleted":
        state.delete_pod(bound("a", 8, 1, version=9), "9", 100)
    elif how == "failed":
        state.apply_pod(bound("a", 8, 1, version=9, phase="Failed"), 100)
    else:
        state.replace_pods([], "9", 100)
    assert assumed(state) == [0, 8]
    state.apply_node(node("n", (16, 16), version=10, seen=8), 101)
    assert assumed(state) == [0, 8]
    state.apply_node(node("n", (16, 16), version=11, seen=9), 102)
    assert assumed(state) == [0, 0]


def test_no_tombstone_where_the_words_are_newer(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16), version=12, seen=9), 0)
    state.delete_pod(bound("a", 8, 1, version=9), "9", 0)
    assert assumed(state) == [0, 0]


def test_a_tombstone_ends_with_time(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.delete_pod(bound("a", 8, 1, version=9), "9", 100)
    state.expire_tombstones(100 + TOMBSTONE_S - 1)
    assert assumed(state) == [0, 8]
    state.expire_tombstones(100 + TOMBSTONE_S)
    assert assumed(state) == [0, 0]


def test_a_failed_pod_that_is_deleted_later_leaves_no_second_tombstone(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_pod(bound("a", 8, 1, version=9, phase="Failed"), 0)
    state.apply_pod(bound("a", 8, 1, version=10, phase="Failed"), 0)
    state.apply_node(node("n", (16, 16), version=11, seen=9), 0)
    state.delete_pod(bound("a", 8, 1, version=12, phase="Failed"), "12", 0)
    assert assumed(state) == [0, 0]
    assert state.pods == {}


def test_a_pod_that_never_asked_leaves_no_tombstone(state: ClusterState) -> None:
    plain = pod("b", node="n", version=5, containers=[{"name": "c"}])
    state.apply_pod(plain, 0)
    state.delete_pod(plain, "6", 0)
    assert state.node_records["n"].tombstones == {}


def test_claims_outlive_the_node_object(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.delete_node("n", "6", 0)
    assert "n" not in state.nodes.rows
    state.apply_node(node("n", (16, 16), version=7), 0)
    assert assumed(state) == [0, 8]


def test_without_that_rule_they_are_lost() -> None:
    class Forgetful(ChargeRules):
        def keeps_charges_without_node(self) -> bool:
            return False

    state = ClusterState(rules=Forgetful())
    state.apply_node(node("n", (16, 16)), 0)
    state.apply_pod(bound("a", 8, 1), 0)
    state.delete_node("n", "6", 0)
    state.apply_node(node("n", (16, 16), version=7), 0)
    assert assumed(state) == [0, 0]


def test_a_held_pod_counts_again_when_its_node_is_made_anew_without_holds(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    state.delete_node("n", "7", 0)
    state.apply_node(node("n", (16, 16), version=8, seen=0), 0)
    assert assumed(state) == [0, 8]


def test_a_pod_that_ends_while_its_node_is_away_leaves_a_tombstone(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.delete_node("n", "6", 0)
    state.delete_pod(bound("a", 8, 1, version=7), "7", 0)
    state.apply_node(node("n", (16, 16), version=8, seen=6), 0)
    assert assumed(state) == [0, 8]


def test_a_name_without_node_and_pods_is_forgotten(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.delete_node("n", "6", 0)
    state.delete_pod(bound("a", 8, 1, version=7), "7", 0)
    assert "n" in state.node_records
    state.expire_tombstones(TOMBSTONE_S)
    assert state.node_records == {}


def test_a_pod_bound_to_a_node_that_is_not_known_yet_counts_once_it_is() -> None:
    state = ClusterState()
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16)), 0)
    assert assumed(state) == [0, 8]


def test_a_node_whose_words_break_is_excluded_and_comes_back(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    row = state.nodes.rows["n"]
    state.apply_node(node("n", None, version=6), 0)
    assert state.nodes.exclusion[row] == Exclusion.NO_WORDS
    version = int(state.nodes.version[row])
    state.apply_node(node("n", None, version=7), 0)
    assert int(state.nodes.version[row]) == version
    state.apply_node(node("n", (16, 16), version=8), 0)
    assert assumed(state) == [0, 8]


def test_a_pod_that_is_seen_bound_as_it_was_assumed_leaves_the_row_as_it_is() -> None:
    """Each Binding would cost the sum over the node's pods twice."""
    sums: list[str] = []

    class Counted(ChargeRules):
        def sum_by_card(self, record: NodeRecord, charges: list[Charge]) -> tuple[list[int], list[int]]:
            sums.append(record.name)
            return super().sum_by_card(record, charges)

    for card, cpu, again in ((1, "1", 0), (0, "1", 1), (1, "2", 1)):
        state = ClusterState(rules=Counted())
        state.apply_node(node("n", (16, 16)), 0)
        state.apply_pod(pod("a", containers=[container(units=8)]), 0)
        state.assume("uid-a", "n", {"main": ((uuid("n", 1), 8),)}, 0)
        sums.clear()
        seen = [container(units=8, cpu=cpu)]
        state.apply_pod(pod("a", node="n", version=7, containers=seen, annotations=assigned(card, 8)), 0)
        assert len(sums) == again
        assert assumed(state) == ([8, 0] if card == 0 else [0, 8])
        assert state.get_assumed("uid-a") is None
        assert state.nodes.cpu_used[0] == 1000 * int(cpu)
