"""Claims that others allocated: what `fit`, `why`, `top` and the dashboard say is free agrees with filter."""

import json

import pytest

from allocator.names import CLAIM_LABEL, NODE_SERVES, SERVES_CLAIMS
from gpupack.dashboard.board import ClusterBoard
from gpupack.diagnose.why import explain_pod
from gpupack.inventory.objects import load_nodes
from gpupack.inventory.rows import build_rows
from gpupack.rebalance.moved_cluster import remove_from_words
from gpupack.whatif.changes import apply_changes
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitQuestion, answer_fit
from gpupack.whatif.objects import KubeClaim, KubeNode
from gpupack.whatif.snapshot import make_snapshot
from tests.cluster_builders import claim, claim_object, node_object, pod_object
from tests.unit.test_claim_cache import state_of_claims


def items(claims: dict[str, dict[int, int]] | None = None, waiting: int = 8) -> str:
    node = node_object("n", (16, 16), extra={NODE_SERVES: SERVES_CLAIMS}, allocatable_units=0, claims=claims)
    found = [
        node | {"kind": "Node"},
        pod_object("w", waiting) | {"kind": "Pod"},
        claim_object("one", (0, 10), version=1, pods=["x"]),
        claim_object("two", (1, 5), version=1),
        claim_object("asks", version=1),
    ]
    return json.dumps({"kind": "List", "items": found})


@pytest.mark.parametrize(("held", "free"), [({}, [6, 11]), ({"uid-one": {0: 10}}, [16, 11])])
def test_everybody_counts_what_filter_counts(held: dict[str, dict[int, int]], free: list[int]) -> None:
    cluster = Cluster.from_json(items(held))
    assert cluster.state.nodes.free[0, :2].tolist() == free
    extender = state_of_claims()
    for each in (claim("one", (0, 10), pods=["x"]), claim("two", (1, 5))):
        if each.metadata.uid not in held:
            extender.claims.apply(each, 0)
    assert extender.nodes.free[0, :2].tolist() == free

    (row,) = cluster.build_inventory()
    assert [16 - card.used_units - card.assumed_units for card in row.cards] == free
    (row,) = build_rows(load_nodes(items(held), pods=True))
    assert [16 - card.used_units - card.assumed_units for card in row.cards] == free
    board = ClusterBoard()
    board.replace_nodes(cluster.nodes.values())
    board.replace_pods(())
    board.replace_claims(cluster.claims.values())
    board.refresh()
    assert [card.free for card in board.tiles["n"].cards] == free
    assert board.get_cluster().state.nodes.free[0, :2].tolist() == free


def test_fit_and_why_know_of_claims() -> None:
    fits = answer_fit(Cluster.from_json(items()), FitQuestion(6))
    assert (fits.pods, fits.largest_units) == (2, 11)
    assert not explain_pod(Cluster.from_json(items(waiting=12)), "default", "w").fits
    assert explain_pod(Cluster.from_json(items(waiting=11)), "default", "w").fits == ("n",)


def test_changed_clusters_keep_their_claims() -> None:
    cluster = Cluster.from_json(items())
    cluster.put_node(_decoded(node_object("m", (16,)) | {"kind": "Node"}))
    changed, _ = apply_changes(cluster, ["m"], [])
    assert changed is not None
    for each in (changed, cluster.in_unit(2048).in_unit(1024)):
        assert each.state.nodes.free[each.state.nodes.rows["n"], :2].tolist() == [6, 11]


def test_words_without_a_pod_still_contain_the_claims() -> None:
    made = node_object("n", (16, 16), (10, 0), holds=["uid-p"], claims={"uid-one": {0: 10}})
    node = json.dumps({"items": [made | {"kind": "Node"}]})
    (found,) = Cluster.from_json(node).nodes.values()
    left = Cluster({"n": remove_from_words(found, "uid-p", {})}, {}, 1024)
    assert left.state.node_records["n"].held_claims == {"uid-one": {0: 10}}


def test_the_board_follows_claims_as_they_come_and_go() -> None:
    board = ClusterBoard()
    assert not board.serves_claims
    board.put_node(_decoded(json.loads(items())["items"][0]))
    board.replace_pods(())
    assert board.serves_claims
    cluster = board.get_cluster()

    def free() -> list[int]:
        board.refresh()
        assert cluster.state.nodes.free[0, :2].tolist() == [card.free for card in board.tiles["n"].cards]
        return [card.free for card in board.tiles["n"].cards]

    assert free() == [16, 16]
    board.put_claim(claim("one", (0, 10), version=2))
    assert free() == [6, 16]
    board.put_claim(claim("one", (1, 4), version=3))
    assert free() == [16, 12]
    board.drop_claim(claim("one", version=4))
    assert free() == [16, 16]


def _decoded(item: dict[str, object]) -> KubeNode:
    (node,) = Cluster.from_json(json.dumps({"items": [item]})).nodes.values()
    return node


def test_claims_of_a_file_are_read_by_their_kind() -> None:
    assert all(isinstance(each, KubeClaim) for each in Cluster.from_json(items()).claims.values())


def test_a_snapshot_says_how_many_claims_its_files_leave_out() -> None:
    """Those that the extender wrote belong to pods that are in the files."""
    told = "ResourceClaims with shares of cards are left out: pods ask by limits in these files"
    assert make_snapshot(Cluster.from_json(items())).notes == (f"2 {told}",)
    found = json.loads(items())
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "w", "uid": "uid-w", "controller": True}
    found["items"][2]["metadata"] |= {"labels": {CLAIM_LABEL: "true"}, "ownerReferences": [owner]}
    assert make_snapshot(Cluster.from_json(json.dumps(found))).notes == (f"1 {told}",)
