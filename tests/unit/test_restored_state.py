"""The state after an etcd restore: lists of another history are believed, and nothing is given away twice."""

import json

import pytest

from allocator.names import POD_ASSIGNED
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.state import ClusterState
from tests.cluster_builders import node, pod, uuid


def bound(name: str, units: int, card: int, version: int, **options: object):
    text = json.dumps({"main": [[uuid("n", card), units]]})
    return pod(name, units, node="n", version=version, annotations={POD_ASSIGNED: text}, **options)


def free(state: ClusterState) -> list[int]:
    row = state.nodes.rows["n"]
    return state.nodes.free[row, : state.nodes.cards[row]].tolist()


def before() -> ClusterState:
    """One node as of version 900, which holds `held`; `late` is bound and not held yet."""
    state = ClusterState()
    state.replace_nodes([node("n", (16, 16), (8, 0), version=900, holds=["uid-held"])], "1000", 0)
    state.replace_pods([bound("held", 8, 0, 500), bound("late", 4, 1, 950)], "1000", 0)
    return state


def restored_node(**options):
    return node("n", (16, 16), version=300, revision=1, **options)


class CountedList(list):
    """A list that counts how often somebody goes through it."""

    loops = 0

    def __iter__(self):
        self.loops += 1
        return super().__iter__()


@pytest.fixture
def state() -> ClusterState:
    return before()


def test_a_first_list_is_gone_through_once() -> None:
    """Each loop over it decodes it anew, and nothing is known that it could contradict."""
    state = ClusterState()
    nodes, pods = CountedList([restored_node()]), CountedList([bound("held", 8, 0, 500)])
    state.replace_nodes(nodes, "1000", 0)
    state.replace_pods(pods, "1000", 0)
    assert (nodes.loops, pods.loops) == (1, 1)


def test_a_list_of_a_lower_version_is_believed_when_the_server_went_back(state: ClusterState) -> None:
    assert state.replace_pods([pod("new", 8, version=310)], "320", 1, restored=True)
    assert set(state.pods) == {"uid-new"}
    assert state.replace_nodes([restored_node(), node("m", (8,), version=305)], "320", 1, restored=True)
    assert set(state.nodes.rows) == {"n", "m"}
    assert state.node_records["n"].version == 300
    state.apply_pod(pod("new", 8, version=330, node="m"), 2)
    state.delete_pod(pod("new", 8, version=330, node="m"), "340", 3)
    state.apply_node(node("n", (16, 16), (5, 5), version=331), 40)
    assert free(state) == [11, 11]


def test_without_that_a_lower_version_is_late_news(state: ClusterState) -> None:
    state.apply_node(restored_node(), 1)
    assert not state.replace_pods([], "320", 1)
    assert set(state.pods) == {"uid-held", "uid-late"}
    assert free(state) == [8, 12]


@pytest.mark.parametrize("nodes_first", [True, False])
def test_pods_that_the_restored_server_does_not_know_count_on_until_their_node_has_spoken(
    state: ClusterState,
    nodes_first: bool,
) -> None:
    if nodes_first:
        state.replace_nodes([restored_node()], "320", 1, restored=True)
    state.replace_pods([], "320", 1, restored=True)
    if not nodes_first:
        state.replace_nodes([restored_node()], "320", 1, restored=True)
    assert free(state) == [8, 12]
    # The daemon has the new list: its words hold what still runs.
    state.apply_node(node("n", (16, 16), (8, 0), version=330, seen=320), 2)
    assert free(state) == [8, 16]


def test_they_count_no_longer_than_a_tombstone_when_the_node_says_nothing(state: ClusterState) -> None:
    state.replace_pods([], "320", 1, restored=True)
    state.replace_nodes([restored_node()], "320", 1, restored=True)
    state.expire_tombstones(TOMBSTONE_S)
    assert free(state) == [8, 12]
    state.expire_tombstones(1 + TOMBSTONE_S)
    assert free(state) == [16, 16]


def test_a_seen_of_before_the_restore_ends_no_tombstone(state: ClusterState) -> None:
    state.replace_pods([], "320", 1, restored=True)
    state.replace_nodes([restored_node(seen=950)], "320", 1, restored=True)
    assert free(state) == [8, 12]
    # A daemon that has not noticed writes what it had seen in a history that is no more.
    state.apply_node(node("n", (16, 16), version=330, seen=950), 2)
    assert free(state) == [8, 12]


def test_a_pod_that_lost_its_binding_waits_again_and_counts_where_it_was(state: ClusterState) -> None:
    told = []
    state.pod_resolved.connect(lambda record: told.append(record.uid))
    state.replace_pods([bound("held", 8, 0, 200), pod("late", 4, version=250)], "320", 1, restored=True)
    state.replace_nodes([restored_node(holds=["uid-held"], used=(8, 0))], "320", 1, restored=True)
    assert state.pods["uid-late"].node == ""
    assert free(state) == [8, 12]
    state.assume("uid-late", "n", {"main": ((uuid("n", 0), 4),)}, 2)
    assert free(state) == [4, 12]
    assert told == []


def test_a_commitment_ends_and_counts_like_a_pod_that_was_bound(state: ClusterState) -> None:
    state.apply_pod(pod("p", 8, version=1010), 1)
    take = state.assume("uid-p", "n", {"main": ((uuid("n", 1), 8),)}, 1)
    state.replace_pods([bound("held", 8, 0, 200), pod("p", 8, version=210)], "320", 2, restored=True)
    assert state.get_assumed("uid-p") is None
    state.forget(take, 2)
    assert free(state) == [8, 4]
    state.expire_tombstones(2 + TOMBSTONE_S)
    assert free(state) == [8, 16]


def test_a_pod_that_asks_for_nothing_leaves_nothing_behind(state: ClusterState) -> None:
    state.apply_pod(pod("web", node="n", version=1010, containers=[{"name": "c"}]), 1)
    state.replace_pods([bound("held", 8, 0, 200)], "320", 2, restored=True)
    assert state.node_records["n"].tombstones.keys() == {"uid-late"}


def test_a_deleted_pod_that_is_back_is_known_again(state: ClusterState) -> None:
    state.delete_pod(bound("late", 4, 1, 950), "960", 1)
    state.delete_node("n", "961", 1)
    state.replace_pods([bound("late", 4, 1, 250)], "320", 1, restored=True)
    state.replace_nodes([restored_node()], "320", 1, restored=True)
    assert "uid-late" in state.pods
    assert "n" in state.nodes.rows


def test_a_list_that_shows_the_past_of_what_is_known_is_of_another_history(state: ClusterState) -> None:
    assert state.replace_pods([bound("held", 8, 0, 400)], "1100", 1)
    assert free(state) == [8, 12]
    assert "uid-late" not in state.pods
    assert state.replace_nodes([restored_node()], "1100", 1)
    assert state.node_records["n"].version == 300


def test_a_list_that_began_before_a_pod_was_read_is_of_the_same_history(state: ClusterState) -> None:
    state.apply_pod(bound("late", 4, 1, 1200), 1)
    assert not state.replace_pods([bound("held", 8, 0, 500), bound("late", 4, 1, 950)], "1100", 1)
    assert state.pods["uid-late"].version == 1200
