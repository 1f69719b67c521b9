"""The cluster state: late, repeated and missing events, commitments, host resources."""

import pytest

from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import StateError
from tests.cluster_builders import node, pod, uuid
from tests.state_world import assumed, bound, free, state_with


@pytest.fixture
def state() -> ClusterState:
    return state_with()


def test_an_older_pod_does_not_undo_a_newer_one(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1, version=9), 0)
    state.apply_pod(pod("a", 8, version=8), 0)
    assert assumed(state) == [0, 8]
    state.delete_pod(bound("a", 8, 1, version=7), "7", 0)
    assert assumed(state) == [0, 8]


def test_a_late_event_does_not_raise_the_dead(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16), version=20), 0)
    state.delete_pod(bound("a", 8, 1, version=9), "9", 0)
    state.apply_pod(bound("a", 8, 1, version=8), 0)
    assert assumed(state) == [0, 0]
    assert state.pods == {}


def test_a_deletion_that_comes_first_counts_too(state: ClusterState) -> None:
    state.delete_pod(bound("a", 8, 1, version=9), "9", 0)
    state.apply_pod(bound("a", 8, 1, version=8), 0)
    assert state.pods == {}


def test_nothing_older_than_a_list_is_new(state: ClusterState) -> None:
    state.replace_pods([bound("a", 8, 1)], "9", 0)
    state.apply_pod(bound("b", 8, 0, version=8), 0)
    assert assumed(state) == [0, 8]
    state.apply_pod(bound("b", 8, 0, version=10), 0)
    assert assumed(state) == [8, 8]


def test_an_old_list_removes_nothing_newer(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1, version=9), 0)
    state.apply_node(node("m", version=9), 0)
    state.replace_pods([], "8", 0)
    assert assumed(state) == [0, 8]
    state.replace_nodes([], "8", 0)
    assert set(state.nodes.rows) == {"m"}


def test_an_older_node_does_not_undo_a_newer_one(state: ClusterState) -> None:
    state.apply_node(node("n", (16, 16), (4, 4), version=9), 0)
    state.apply_node(node("n", (16, 16), version=8), 0)
    assert free(state) == [12, 12]
    state.delete_node("n", "8", 0)
    assert "n" in state.nodes.rows
    state.delete_node("n", "10", 0)
    state.delete_node("n", "10", 0)
    state.apply_node(node("n", version=9), 0)
    assert "n" not in state.nodes.rows


def test_a_complete_list_of_nodes(state: ClusterState) -> None:
    state.replace_nodes([node("m", version=3), node("o", version=4)], "5", 0)
    assert set(state.nodes.rows) == {"m", "o"}
    state.apply_node(node("n", version=5), 0)
    assert set(state.nodes.rows) == {"m", "o"}


def test_claims_count_again_when_the_device_plugin_is_back(state: ClusterState) -> None:
    state.apply_pod(bound("a", 8, 1), 0)
    state.apply_node(node("n", (16, 16), version=6, allocatable_units=0), 0)
    row = state.nodes.rows["n"]
    assert state.nodes.exclusion[row] == Exclusion.NO_PLUGIN
    assert not state.nodes.usable[row]
    state.apply_node(node("n", (16, 16), version=7, allocatable_units=32), 0)
    assert free(state) == [16, 8]


def test_a_heartbeat_changes_no_version(state: ClusterState) -> None:
    row = state.nodes.rows["n"]
    version = int(state.nodes.version[row])
    state.apply_node(node("n", (16, 16), version=6), 0)
    assert int(state.nodes.version[row]) == version


def test_the_ends_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_plugin.cache.versions.MAX_DELETIONS", 2)
    state = state_with()
    for number in range(4):
        state.delete_pod(bound(f"p{number}", 1, version=5), "5", 0)
    state.apply_pod(bound("p3", 8, 1, version=4), 0)
    assert state.pods == {}


def take(state: ClusterState, name: str = "a", units: int = 8, card: int = 1):
    return state.assume(f"uid-{name}", "n", {"main": ((uuid("n", card), units),)}, 0)


def test_a_commitment_counts_at_once(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    version = int(state.nodes.version[0])
    made = take(state)
    assert assumed(state) == [0, 8]
    assert state.get_assumed("uid-a") is made
    assert int(state.nodes.version[0]) > version
    assert state.nodes.cpu_used[0] == 1000


def test_a_refused_commitment_counts_no_longer(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    made = take(state)
    state.forget(made, 0)
    state.forget(made, 0)
    assert assumed(state) == [0, 0]
    assert state.get_assumed("uid-a") is None
    assert state.nodes.cpu_used[0] == 0


def test_a_commitment_becomes_a_bound_pod_and_counts_once(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    made = take(state)
    state.apply_pod(bound("a", 8, 1), 0)
    assert assumed(state) == [0, 8]
    assert state.nodes.cpu_used[0] == 1000
    state.forget(made, 0)
    assert assumed(state) == [0, 8]


def test_a_commitment_that_the_node_holds_already_counts_once(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.apply_node(node("n", (16, 16), (0, 8), version=6, holds=["uid-a"]), 0)
    assert free(state) == [16, 8]


def test_a_pod_that_changed_unbound_cannot_be_bound_in_the_old_version(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.apply_pod(pod("a", 8, version=3), 0)
    assert assumed(state) == [0, 8]
    state.apply_pod(pod("a", 8, version=4, labels={"changed": "yes"}), 0)
    assert assumed(state) == [0, 0]


def test_a_pod_whose_status_alone_has_changed_stays_assumed(state: ClusterState) -> None:
    """kube-scheduler nominates a node between filter and bind; the Binding is sent again for that."""
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.apply_pod(pod("a", 8, version=4, status={"nominatedNodeName": "n"}), 0)
    assert assumed(state) == [0, 8]


def test_a_pod_deleted_unbound_ends_its_commitment(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.delete_pod(pod("a", 8, version=4), "4", 0)
    assert assumed(state) == [0, 0]
    assert state.node_records["n"].tombstones == {}


def test_a_pod_deleted_after_an_unseen_binding_leaves_a_tombstone_there(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.delete_pod(bound("a", 8, 1, version=5), "5", 0)
    assert assumed(state) == [0, 8]
    assert state.get_assumed("uid-a") is None


def test_a_pod_that_vanished_between_lists_may_have_been_bound(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.replace_pods([], "9", 0)
    assert assumed(state) == [0, 8]
    state.expire_tombstones(TOMBSTONE_S)
    assert assumed(state) == [0, 0]


def test_a_commitment_outlives_the_node_object(state: ClusterState) -> None:
    state.apply_pod(pod("a", 8, version=3), 0)
    take(state)
    state.delete_node("n", "6", 0)
    state.apply_node(node("n", (16, 16), version=7), 0)
    assert assumed(state) == [0, 8]


@pytest.mark.parametrize("case", ["unknown", "bound", "ended", "taken", "no node"])
def test_only_a_waiting_pod_can_be_taken(state: ClusterState, case: str) -> None:
    if case == "bound":
        state.apply_pod(bound("a", 8, 1), 0)
    elif case == "ended":
        state.apply_pod(pod("a", 8, phase="Failed"), 0)
    elif case != "unknown":
        state.apply_pod(pod("a", 8), 0)
    if case == "taken":
        take(state)
    if case == "no node":
        state.delete_node("n", "2", 0)
    with pytest.raises(StateError, match="taken once"):
        take(state)


def test_cpu_and_memory_of_all_bound_pods_add_up(state: ClusterState) -> None:
    state.apply_pod(bound("a", 1, 1), 0)
    state.apply_pod(
        pod(
            "b",
            node="n",
            cpu="3",
            version=6,
            containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}],
        ),
        0,
    )
    assert state.nodes.cpu_used[0] == 4000
    assert state.nodes.cpu_capacity[0] == 40000
    assert state.nodes.memory_capacity[0] == 100 << 30
    state.delete_pod(bound("a", 1, 1, version=7), "7", 0)
    assert state.nodes.cpu_used[0] == 3000


def test_capacities_that_cannot_be_read_count_as_none() -> None:
    state = ClusterState()
    state.apply_node(node("n", cpu="many", memory="-5"), 0)
    assert state.nodes.cpu_capacity[0] == state.nodes.memory_capacity[0] == 0
    bare = node("m")
    bare.status.allocatable = None
    state.apply_node(bare, 0)
    assert state.nodes.cpu_capacity[state.nodes.rows["m"]] == 0
