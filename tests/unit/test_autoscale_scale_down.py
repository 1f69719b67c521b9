"""Which nodes are kept from scale-down, and what is written on them."""

import json

import msgspec
import pytest

from allocator.names import NODE_HOLDS, NODE_KEPT, NODE_SERVES, POD_GANG, POD_GANG_SIZE, SERVES_CLAIMS
from allocator.records import Holds, dump_holds, load_holds
from gpupack.autoscale.scale_down import (
    DO_NOT_DISRUPT,
    FEW_MOVES,
    MOST_FREED,
    SCALE_DOWN_DISABLED,
    KeepReason,
    KeptNode,
    find_node_changes,
    find_nodes_to_empty,
    find_nodes_to_keep,
)
from gpupack.autoscale.shapes import DAEMON_SET_POD_ANNOTATION
from kubeapi import objects
from tests.autoscale_world import Node, Pod, grown, of_daemon_set


def full_and_fragments():
    """The cluster of drains.py: both cards of n1 have a pod of 60, and 49 are free on each other card."""
    nodes = [Node(name, (80, 80)) for name in ("n1", "n2", "n3")]
    pods = [Pod("a", 60, "n1", (0,)), Pod("b", 60, "n1", (1,))]
    return nodes, [*pods, *(Pod(f"{n}-{c}", 31, n, (c,)) for n in ("n2", "n3") for c in (0, 1))]


@pytest.mark.parametrize(("priority", "kept"), [(0, []), (5, ["n1"])], ids=["equal", "small-first"])
def test_pods_are_moved_in_the_order_of_kube_scheduler(priority, kept):
    """Small pods of higher priority come first and share a card: the pair finds one free card only."""
    small = [Pod(name, 38, "n1", (card,), priority=priority) for card, name in enumerate("ab")]
    pair = Pod("pair", 60, "n1", (0, 1), count=2)
    world = grown([Node("n1", (80, 80)), Node("n2", (80, 80))], [pair, *small])
    assert list(find_nodes_to_keep(world.cluster)) == kept


def test_nodes_are_freed_together_or_not_at_all():
    """The pods of n2 fit on n3 and the other way round, but not both."""
    cluster = grown(*full_and_fragments()).cluster
    before = cluster.state.nodes.free.copy()
    kept = find_nodes_to_keep(cluster)
    assert sorted(kept) == ["n1", "n3"]
    assert kept["n1"] == KeptNode(KeepReason.NO_CARDS, "default/a")
    assert kept["n3"].reason is KeepReason.NO_CARDS
    assert (cluster.state.nodes.free == before).all(), "it was only tried"
    assert sorted(find_nodes_to_keep(cluster, freed_before=["n3"])) == ["n1", "n2"]


def test_a_node_without_pods_on_cards_is_nobodys_business():
    assert find_nodes_to_keep(grown([Node("n1"), Node("n2")]).cluster) == {}


def counts_as_of_daemon_set(item):
    item["metadata"]["annotations"][DAEMON_SET_POD_ANNOTATION] = "true"


@pytest.mark.parametrize("change", [of_daemon_set, counts_as_of_daemon_set])
def test_pods_of_daemon_sets_go_with_their_node(change):
    world = grown([Node("n1")], [Pod("d", 16, "n1", (0,))], d=change)
    assert find_nodes_to_keep(world.cluster) == {}


def test_other_nodes_must_be_ready_and_open_to_take_pods():
    pods = [Pod("a", 10, "n1", (0,))]
    assert find_nodes_to_keep(grown([Node("n1"), Node("n2")], pods).cluster) == {}
    for other in (
        Node("n2", ready=False),
        Node("n2", cordoned=True),
        Node("n2", taints=("x",)),
        Node("n2", cpu=0),
    ):
        pod = [Pod("a", 10, "n1", (0,), cpu=1)]
        assert list(find_nodes_to_keep(grown([Node("n1"), other], pod).cluster)) == ["n1"]


def test_so_many_nodes_may_go_at_one_time():
    nodes = [Node(f"n{at:03d}") for at in range(MOST_FREED + 10)]
    pods = [Pod(f"p{at}", 1, f"n{at:03d}", (0,)) for at in range(MOST_FREED + 5)]
    kept = find_nodes_to_keep(grown(nodes, pods).cluster)
    assert [each.reason for each in kept.values()] == [KeepReason.OTHERS_FIRST] * 5


def node(**annotations):
    made = {"kind": "Node", "metadata": {"name": "n1", "annotations": annotations}}
    return msgspec.json.decode(json.dumps(made), type=objects.Node)


KEPT = {"n1": KeptNode(KeepReason.NO_CARDS, "default/a")}


def test_what_we_wrote_is_removed_and_what_a_person_set_stays():
    (change,) = find_node_changes([node()], KEPT)
    ours = dict(change.annotations)
    assert ours == {
        NODE_KEPT: f"{SCALE_DOWN_DISABLED},{DO_NOT_DISRUPT}",
        SCALE_DOWN_DISABLED: "true",
        DO_NOT_DISRUPT: "true",
    }
    assert find_node_changes([node(**ours)], KEPT) == []
    (change,) = find_node_changes([node(**ours)], {})
    assert change.annotations == {NODE_KEPT: None, SCALE_DOWN_DISABLED: None, DO_NOT_DISRUPT: None}

    (change,) = find_node_changes([node(**{SCALE_DOWN_DISABLED: "true"})], KEPT)
    assert change.annotations == {NODE_KEPT: DO_NOT_DISRUPT, DO_NOT_DISRUPT: "true"}
    both = {SCALE_DOWN_DISABLED: "true", **change.annotations}
    (change,) = find_node_changes([node(**both)], {})
    assert change.annotations == {NODE_KEPT: None, DO_NOT_DISRUPT: None}
    assert find_node_changes([node(**{SCALE_DOWN_DISABLED: "true"})], {}) == []

    # A person's own is gone, and the node is kept all the same.
    (change,) = find_node_changes([node(**{NODE_KEPT: DO_NOT_DISRUPT, DO_NOT_DISRUPT: "true"})], KEPT)
    assert change.annotations == {
        NODE_KEPT: f"{DO_NOT_DISRUPT},{SCALE_DOWN_DISABLED}",
        SCALE_DOWN_DISABLED: "true",
    }
    # What we wrote and a person took away stays away.
    assert find_node_changes([node(**{NODE_KEPT: ours[NODE_KEPT], DO_NOT_DISRUPT: "true"})], KEPT) == []

    # A person has changed what we wrote: it is theirs now.
    (change,) = find_node_changes([node(**{**ours, SCALE_DOWN_DISABLED: "false"})], {})
    assert change.annotations == {NODE_KEPT: None, DO_NOT_DISRUPT: None}


def test_nodes_that_few_moves_would_empty_are_named():
    nodes = [Node(name) for name in ("n1", "n2", "n3")]
    pods = [Pod("a", 4, "n1", (0,)), *(Pod(f"b{at}", 2, "n2", (0,)) for at in range(FEW_MOVES + 1))]
    cluster = grown(nodes, pods).cluster
    kept = find_nodes_to_keep(cluster)
    assert "n1" not in kept
    assert find_nodes_to_empty(cluster, kept) == {"n1": 1}
    assert find_nodes_to_empty(cluster, {"n1": KeptNode(KeepReason.NO_CARDS)}) == {}


def test_a_node_with_a_pod_that_advise_does_not_move_is_not_named():
    def of_job(item):
        item["metadata"]["ownerReferences"][0]["kind"] = "Job"

    cluster = grown([Node("n1"), Node("n2")], [Pod("a", 4, "n1", (0,))], a=of_job).cluster
    kept = find_nodes_to_keep(cluster)
    assert kept == {}
    assert find_nodes_to_empty(cluster, kept) == {}


def test_a_node_with_a_pod_of_a_gang_is_kept():
    """Its drain would end one pod of the gang, and the others would keep their cards for nothing."""
    pods = [Pod("a", 4, "n1", (0,), policies=((POD_GANG, "g"), (POD_GANG_SIZE, "4")))]
    kept = find_nodes_to_keep(grown([Node("n1"), Node("n2")], pods).cluster)
    assert kept == {"n1": KeptNode(KeepReason.GANG, "default/a")}


def test_a_node_that_pods_with_claims_would_not_leave_is_not_named():
    def held_by_claim(item):
        holds = load_holds(item["metadata"]["annotations"][NODE_HOLDS])
        units = {**holds.units, "uid-claims": {1: 8}}
        text = dump_holds(Holds(holds.seen, frozenset(units), units))
        item["metadata"]["annotations"] |= {NODE_HOLDS: text, NODE_SERVES: SERVES_CLAIMS}

    def has_claim(item):
        item["spec"] |= {"containers": [{"name": "main"}], "resourceClaims": [{"name": "card"}]}

    pods = [Pod("a", 4, "n1", (0,)), Pod("claims", 8, "n1", (1,), held=False)]
    cluster = grown([Node("n1"), Node("n2")], pods, n1=held_by_claim, claims=has_claim).cluster
    assert find_nodes_to_empty(cluster, find_nodes_to_keep(cluster)) == {}
