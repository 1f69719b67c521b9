"""Claims in the extender's cache: each test is one rule of what they are charged, and until when."""

import pytest

from allocator.claims import ClaimObject
from allocator.names import NODE_HOLDS, NODE_SERVES, SERVES_CLAIMS
from allocator.records import Holds, dump_holds
from kubeapi.objects import Node
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.pod_cards import read_pod_cards
from scheduler_plugin.cache.state import ClusterState
from tests.cluster_builders import claim, node, pod
from tests.state_world import assumed, compute_free, free

SERVES = {NODE_SERVES: SERVES_CLAIMS}


def of_claims(version: int = 1, *used: int, **options: object) -> Node:
    return node(
        "n", (16, 16), used or (0, 0), version=version, extra=SERVES, **{"compute": (0, 0), **options}
    )


def state_of_claims(*claims: ClaimObject) -> ClusterState:
    state = ClusterState()
    state.apply_node(of_claims(), 0)
    for each in claims:
        state.claims.apply(each, 0)
    return state


def with_live_pod() -> ClusterState:
    state = state_of_claims()
    state.apply_pod(pod("p", node="n", containers=[{"name": "main"}], version=4), 0)
    state.claims.apply(claim("c", (0, 10), pods=["p"]), 0)
    return state


def test_a_claim_counts_from_its_allocation_whoever_made_it() -> None:
    state = state_of_claims(claim("c", version=3))
    assert assumed(state) == [0, 0]
    state.claims.apply(claim("c", (1, 10), version=4, pods=["p"]), 0)
    assert free(state) == [16, 6]


def test_it_counts_no_more_once_the_words_contain_it() -> None:
    state = state_of_claims(claim("c", (1, 10), pods=["p"]))
    state.apply_node(of_claims(6, 0, 10, holds=["uid-p"], claims={"uid-c": {1: 10}}), 0)
    assert (assumed(state), free(state)) == ([0, 0], [16, 6])


def test_words_that_hold_its_pod_for_another_claim_do_not_contain_it() -> None:
    state = state_of_claims(claim("one", (0, 4), pods=["p"]), claim("two", (1, 4), pods=["p"]))
    state.apply_node(of_claims(6, 4, 0, holds=["uid-p"], claims={"uid-one": {0: 4}}), 0)
    assert free(state) == [12, 12]


def test_words_that_contain_what_a_claim_had_before_do_not_contain_what_it_has_now() -> None:
    state = with_live_pod()
    state.apply_node(of_claims(6, 10, 0, holds=["uid-p"], claims={"uid-c": {0: 10}}), 0)
    state.claims.apply(claim("c", version=7), 0)
    state.claims.apply(claim("c", (1, 4), version=8, pods=["q"]), 0)
    assert free(state) == [6, 12]
    state.claims.apply(claim("c", version=9), 0)
    state.claims.apply(claim("c", (0, 12), version=10, pods=["q"]), 0)
    assert free(state)[0] == 4


def test_what_the_node_has_let_go_counts_while_it_is_allocated() -> None:
    state = with_live_pod()
    state.apply_node(of_claims(6, 10, 0, holds=["uid-p"], claims={"uid-c": {0: 10}}), 0)
    ended = pod("p", node="n", containers=[{"name": "main"}], phase="Succeeded", version=7)
    state.apply_pod(ended, 0)
    state.apply_node(of_claims(8), 0)
    assert free(state) == [6, 16]
    state.claims.apply(claim("c", version=9), 0)
    assert free(state) == [16, 16]


@pytest.mark.parametrize(
    ("amount", "units"),
    [(None, 16), ("1500Mi", 2), ("nonsense", 16), ("900Gi", 16), ("0", 0)],
    ids=["whole card", "part of a unit", "unreadable", "more than the card", "nothing"],
)
def test_the_amount_of_a_share(amount: str | None, units: int) -> None:
    state = state_of_claims(claim("c", (0, amount)))
    assert assumed(state) == [units, 0]


def test_the_compute_of_a_claim_counts_like_its_units() -> None:
    """From its allocation until the words contain it, of which they may contain what it had before."""
    state = state_of_claims()
    state.apply_pod(pod("p", node="n", containers=[{"name": "main"}], version=4), 0)
    state.claims.apply(claim("d", (0, 4), (0, 4), (1, 2), pods=["p"], version=6, compute=30), 0)
    assert compute_free(state) == [40, 70]
    held = {"holds": ["uid-p"], "claims": {"uid-d": {0: 8, 1: 2}}}
    compute = {"compute": (60, 30), "claims_compute": {"uid-d": {0: 60, 1: 30}}}
    state.apply_node(of_claims(7, 8, 2, **held, **compute), 0)
    assert compute_free(state) == [40, 70]
    state.claims.apply(claim("d", version=8), 0)
    state.claims.apply(claim("d", (0, 4), (0, 4), (1, 2), pods=["p"], version=9, compute=40), 0)
    assert (compute_free(state), assumed(state)) == ([20, 60], [0, 0])
    state.claims.apply(claim("d", version=10), 0)
    assert compute_free(state) == [20, 60], "it may have been prepared with what the words do not contain"
    state.claims.apply(claim("d", (0, 8), (1, 2), pods=["p"], version=11), 0)
    assert compute_free(state) == [20, 60]


def test_the_compute_of_a_claim_that_vanished_counts_until_the_words_have_seen_its_pods_end() -> None:
    state = with_live_pod()
    state.claims.apply(claim("c", (0, 10), pods=["p"], version=6, compute=30), 0)
    state.apply_node(of_claims(7, 10, 0, holds=["uid-p"], claims={"uid-c": {0: 10}}), 0)
    state.claims.delete(claim("c"), "8", 0)
    assert compute_free(state) == [70, 100], "the words lack its compute"
    state.expire_tombstones(TOMBSTONE_S)
    assert compute_free(state) == [100, 100]


@pytest.mark.parametrize(
    ("amount", "percent"),
    [(None, 0), ("0", 0), ("1500m", 2), ("-3", 0), ("nonsense", 1000), ("4k", 1000)],
    ids=[
        "none",
        "nothing",
        "part of a percent",
        "less than nothing",
        "unreadable",
        "more than any card gives",
    ],
)
def test_the_compute_of_a_share(amount: str | None, percent: int) -> None:
    state = state_of_claims(claim("c", (0, 1), compute=amount))
    assert compute_free(state) == [100 - percent, 100]


def test_a_claim_that_the_extender_wrote_for_a_pod_is_that_pods_charge() -> None:
    state = state_of_claims(claim("c", (0, 10), of_pod="p", pods=["p"]))
    assert assumed(state) == [0, 0]


def test_a_claim_that_only_looks_as_if_the_extender_had_written_it_counts() -> None:
    """Whoever may create claims writes label, owner and name; the IDs of shares he does not."""
    state = state_of_claims()
    written = claim("c", (0, 10), of_pod="p", pods=["p"])
    for share_id in ("", "7d0a3c5e-5d3f-4b0e-9a39-2f6d2f0c5a11"):
        (result,) = written.results or ()
        result.share_id = share_id
        state.claims.apply(written, 0)
        assert assumed(state) == [10, 0]
    (result,) = written.results or ()
    result.share_id = result.make_share_id("uid-another")
    state.claims.apply(written, 0)
    assert assumed(state) == [10, 0]


def test_claims_of_other_drivers_and_unknown_devices_have_none_of_our_cards() -> None:
    state = state_of_claims(claim("c", (0, 10), driver="gpu.nvidia.com"), claim("d", (7, 10)))
    assert assumed(state) == [0, 0]


def test_a_node_that_publishes_no_uuids_counts_a_share_on_every_card() -> None:
    state = ClusterState()
    state.apply_node(node("n", (16, 8), extra=SERVES, inventory=False), 0)
    state.claims.apply(claim("c", (0, 10)), 0)
    assert free(state) == [6, 0]


def test_the_order_of_node_and_claim_does_not_matter() -> None:
    state = ClusterState()
    state.claims.apply(claim("c", (1, 10)), 0)
    assert not state.claims.is_wanted
    state.apply_node(of_claims(), 0)
    assert state.claims.is_wanted
    assert free(state) == [16, 6]


def test_a_claim_that_is_older_than_the_known_one_or_gone_is_ignored() -> None:
    state = state_of_claims(claim("c", (0, 10), version=9), claim("c", version=8))
    assert assumed(state) == [10, 0]
    state.claims.delete(claim("c"), "12", 0)
    state.claims.apply(claim("c", (0, 10), version=11), 0)
    assert assumed(state) == [0, 0]


@pytest.mark.parametrize("how", ["deleted by force", "deallocated", "other cards", "not listed"])
def test_a_claim_that_vanishes_under_a_bound_pod_counts_until_the_words_tell(how: str) -> None:
    state = with_live_pod()
    if how == "deleted by force":
        state.claims.delete(claim("c"), "7", 0)
    elif how == "deallocated":
        state.claims.apply(claim("c", version=7), 0)
    elif how == "not listed":
        state.claims.replace([], "7", 0)
    else:
        state.claims.apply(claim("c", (1, 10), version=7, pods=["p"]), 0)
        state.claims.apply(claim("c", version=8), 0)
    assert assumed(state)[0] == 10
    state.apply_node(of_claims(8, 10, 0, seen=5, holds=["uid-p"], claims={"uid-c": {0: 10}}), 0)
    assert (assumed(state)[0], free(state)[0]) == (0, 6)
    state.apply_node(of_claims(9, seen=5), 0)
    assert free(state)[0] == 16


def test_it_counts_no_longer_than_a_tombstone_where_the_node_says_nothing() -> None:
    state = with_live_pod()
    state.claims.delete(claim("c"), "7", 0)
    state.expire_tombstones(TOMBSTONE_S - 1)
    assert assumed(state) == [10, 0]
    state.expire_tombstones(TOMBSTONE_S)
    assert assumed(state) == [0, 0]


@pytest.mark.parametrize("first", ["pod", "claim"])
def test_it_counts_until_the_words_have_seen_its_pod_end(first: str) -> None:
    state = with_live_pod()
    ended = pod("p", node="n", containers=[{"name": "main"}], phase="Succeeded", version=6)
    if first == "pod":
        state.apply_pod(ended, 0)
    state.claims.apply(claim("c", version=9), 0)
    if first == "claim":
        state.apply_pod(ended, 0)
    assert assumed(state) == [10, 0]
    state.apply_node(of_claims(10, seen=6), 0)
    assert assumed(state) == [0, 0]


def test_a_claim_of_pods_of_other_nodes_or_of_none_leaves_nothing_behind() -> None:
    state = state_of_claims()
    state.apply_pod(pod("far", node="m", containers=[{"name": "main"}]), 0)
    state.claims.apply(claim("c", (0, 10), pods=["far"]), 0)
    state.claims.apply(claim("d", (1, 10)), 0)
    state.claims.delete(claim("c"), "9", 0)
    state.claims.delete(claim("d"), "9", 0)
    assert assumed(state) == [0, 0]


def test_claims_count_again_when_a_deleted_node_comes_back() -> None:
    state = state_of_claims(claim("c", (0, 10)))
    state.delete_node("n", "6", 0)
    state.apply_node(of_claims(7), 0)
    assert assumed(state) == [10, 0]
    state.delete_node("n", "8", 0)
    state.claims.delete(claim("c"), "9", 0)
    assert "n" not in state.node_records


def test_after_a_restore_of_etcd_lists_of_older_claims_are_believed() -> None:
    state = state_of_claims(claim("c", (0, 10), version=50), claim("d", (1, 4), version=60, pods=["x"]))
    assert state.claims.replace([claim("c", (0, 3), version=20)], "55", 0)
    assert assumed(state) == [3, 4]
    state.expire_tombstones(TOMBSTONE_S)
    assert assumed(state) == [3, 0]


@pytest.mark.parametrize(("pods", "freed"), [(["p"], {0: 14}), (["p", "q"], {0: 4})])
def test_what_a_pod_holds_of_a_claim_that_others_share_stays_when_it_goes(
    pods: list[str], freed: dict[int, int]
) -> None:
    """The pod asks for 4 by its limits, too; the words count all of it as the pod's."""
    state = ClusterState()
    holds = Holds(9, frozenset({"uid-p"}), {"uid-p": {0: 14}}, {"uid-c": {0: (10, 0)}})
    extra = {**SERVES, NODE_HOLDS: dump_holds(holds)}
    state.apply_node(node("n", (16, 16), (14, 0), version=9, extra=extra), 0)
    state.apply_pod(pod("p", 4, node="n", version=4), 0)
    state.claims.apply(claim("c", (0, 10), pods=pods), 0)
    assert read_pod_cards(state.nodes, state.node_records["n"]).get_freed_units("uid-p") == freed
