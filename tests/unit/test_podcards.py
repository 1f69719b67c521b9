"""The cards of a pod that has a node: one rule, and everybody who asks gets the same answer."""

import json

import msgspec
import pytest

from allocator.names import NODE_CARDS, NODE_HOLDS, PERCENT_RESOURCE, POD_ALLOCATION, POD_ASSIGNED, POD_CARDS
from allocator.podcards import (
    assigned_units,
    first_assigned_units,
    published_units,
    unheld_units,
    units_of_pod,
)
from allocator.records import Holds, dump_allocation, dump_assigned, dump_holds
from allocator.request import ContainerRequest, PodRequest
from gpupack.dashboard.board import ClusterBoard
from gpupack.inventory.objects import load_nodes
from gpupack.inventory.rows import build_rows
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.what_if import PodCardUsage
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.preemption.node_victims import view_node
from tests.cluster_builders import container, in_percent, node_object, pod_object, uuid


def request(units=8, cards=1, percent=False, kind="main"):
    return PodRequest((ContainerRequest("main", units, kind),), cards=cards, percent=percent)


UUIDS, SIZES = ("GPU-a", "GPU-b", "GPU-c"), (16, 16, 0)
CARD = {"a": "GPU-a", "b": "GPU-b", "c": "GPU-c", "x": "GPU-gone"}


@pytest.mark.parametrize(
    ("asked", "shares", "expected"),
    [
        (request(8), [("a", 8)], {0: 8}),
        (request(8), [("a", 7)], None),
        (request(8), [("x", 8)], {}),
        (request(8), [("c", 8)], {}),
        (request(8, 2), [("a", 4), ("b", 4)], {0: 4, 1: 4}),
        (request(8, 2), [("x", 4), ("b", 4)], {1: 4}),
        (request(8, 2), [("c", 4), ("b", 4)], {1: 4}),
        (request(8, 2), [("b", 4)], None),
        (request(50, percent=True), [("a", 8)], {0: 8}),
        (request(50, percent=True), [("a", 50)], None),
        (request(100, 2, percent=True), [("x", 20), ("b", 8)], {1: 8}),
        (request(100, 2, percent=True), [("c", 20), ("b", 8)], {1: 8}),
        (request(50, percent=True, kind="init"), [("x", 20)], {}),
    ],
    ids=[
        "units", "other-units", "card-gone", "no-units", "two", "one-of-two-gone", "one-of-two-without-units",
        "too-few", "percent", "percent-as-units", "percent-gone", "percent-without-units", "init-gone",
    ],
)  # fmt: skip
def test_what_an_assignment_says_of_the_cards_that_are_left(asked, shares, expected):
    assignment = {"main": tuple((CARD[card], units) for card, units in shares)}
    assert assigned_units(asked, assignment, UUIDS, SIZES) == expected


@pytest.mark.parametrize(
    ("assigned", "allocated", "expected"),
    [
        ("a", "b", {0: 8}),
        (None, "b", {1: 8}),
        ("x", "b", {1: 8}),
        ("x", None, {}),
        ("c", "b", {}),
        (None, None, {}),
    ],
    ids=["as-charged", "bound-by-others", "card-gone", "gone-unserved", "without-units", "nobody-says"],
)
def test_a_pod_that_is_not_held_is_where_it_is_charged(assigned, allocated, expected):
    named = [None if card is None else {"main": ((CARD[card], 8),)} for card in (assigned, allocated)]
    assert unheld_units(request(8), *named, UUIDS, SIZES) == expected


def test_the_first_assignment_counts_that_can_be_of_the_request():
    wrong, right = {"main": (("GPU-a", 5),)}, {"main": (("GPU-b", 8),)}
    assert first_assigned_units(request(8), (None, wrong, right), UUIDS, SIZES) == {1: 8}
    assert first_assigned_units(request(8), (None, wrong), UUIDS, SIZES) == {}


def test_what_is_published_of_cards_without_units_is_nobodys():
    assert published_units({0: 4, 2: 3, 7: 1}, SIZES) == {0: 4}


def test_a_whole_pod_counts_in_units_of_the_largest_card():
    assert units_of_pod(request(8, 2), SIZES) == 8
    assert units_of_pod(request(100, 2, percent=True), SIZES) == 16
    assert units_of_pod(request(1, percent=True), SIZES) == 16
    assert units_of_pod(request(50, percent=True), ()) == 0


def build(pods, *, sizes=(16, 16), used=(0, 0), holds=None, gone=()):
    """A node "n" whose inventory lacks some cards that pods name, and its pods."""
    extra = {NODE_HOLDS: dump_holds(Holds(50, frozenset(holds or ()), holds or {}))}
    made = node_object("n", sizes, used, version=50, extra=extra, allocatable_units=sum(sizes))
    records = json.loads(made["metadata"]["annotations"][NODE_CARDS])
    for card in gone:
        records[card]["uuid"] = f"GPU-new-{card}"
    made["metadata"]["annotations"][NODE_CARDS] = json.dumps(records)
    # The kubelet offers percent as well.
    made["status"]["allocatable"][PERCENT_RESOURCE] = str(100 * len(sizes))
    return made, pods


def bound(name, asked, *shares, cards=1, key=POD_ASSIGNED):
    given = {"main": tuple((uuid("n", card), units) for card, units in shares)}
    text = dump_assigned(given) if key == POD_ASSIGNED else dump_allocation(f"uid-{name}", given)
    return pod_object(
        name,
        node="n",
        containers=[asked],
        annotations={key: text, **({POD_CARDS: str(cards)} if cards > 1 else {})},
        phase="Running",
        version=40,
    )


def by_top(made, pods):
    """Units by card position and UID as `top` shows them, and those on no card."""
    items = [{**made, "kind": "Node"}, *({**pod, "kind": "Pod"} for pod in pods)]
    (row,) = build_rows(load_nodes(json.dumps({"items": items}), pods=True))
    found = {}
    for position, card in enumerate(row.cards):
        for pod in card.pods:
            found.setdefault(pod.uid, {})[position] = pod.units
    return found, {pod.uid: pod.units for pod in row.pods}


def cluster_of(made, pods):
    nodes = [msgspec.convert({**made, "kind": "Node"}, Node)]
    return Cluster.from_objects(nodes, [msgspec.convert({**pod, "kind": "Pod"}, Pod) for pod in pods])


def by_why(cluster):
    held = PodCardUsage(cluster)
    return {
        uid: dict(held.get_freed_units(record))
        for uid, record in cluster.state.pods.items()
        if held.get_freed_units(record)
    }


def by_preemption(cluster):
    query = cluster.policies.make_request(cluster.state.nodes, request(1), ONE_POD)
    room = view_node(cluster.state, "n", query)
    return {
        uid: {card: units for card, (units, _) in freed.items()} for uid, freed in room.freed.items() if freed
    }


UNITS, PERCENT = container("main", 8), in_percent(50)


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (build([bound("p", UNITS, (0, 8))]), {0: 8}),
        (build([bound("p", PERCENT, (0, 8))]), {0: 8}),
        (build([bound("p", PERCENT, (0, 8), key=POD_ALLOCATION)]), {0: 8}),
        (build([bound("p", PERCENT, (0, 8))], used=(8, 0), holds={"uid-p": {0: 8}}), {0: 8}),
        (build([bound("p", UNITS, (0, 4), (1, 4), cards=2)], gone=(0,)), {1: 4}),
        (build([bound("p", in_percent(100), (0, 8), (1, 8), cards=2)], gone=(0,)), {1: 8}),
        (build([bound("p", in_percent(100), (0, 8), (1, 8), cards=2)], sizes=(0, 16)), {1: 8}),
        (
            build(
                [bound("p", UNITS, (0, 4), (1, 4), cards=2)], used=(0, 4), gone=(0,), holds={"uid-p": {1: 4}}
            ),
            {1: 4},
        ),
        # What it costs is as of when it came: its card had 10 units then.
        (build([bound("p", PERCENT, (0, 5))], used=(5, 0), holds={"uid-p": {0: 5}}), {0: 5}),
        (
            build(
                [bound("p", in_percent(100), (0, 5), (1, 5), cards=2)],
                used=(0, 5),
                gone=(0,),
                holds={"uid-p": {1: 5}},
            ),
            {1: 5},
        ),
        (build([bound("p", UNITS, (0, 8))], gone=(0,)), {}),
        (build([bound("p", UNITS, (0, 8))], sizes=(0, 16), holds={"uid-p": {}}), {}),
        (build([bound("p", UNITS, (1, 4))]), {}),
    ],
    ids=[
        "units", "percent", "percent-allocated", "percent-held", "one-of-two-gone", "percent-one-of-two-gone",
        "percent-one-without-units", "held-one-gone", "percent-of-a-card-that-grew", "percent-held-one-gone",
        "gone", "without-units", "impossible",
    ],
)  # fmt: skip
def test_a_pods_cards_are_the_same_for_top_why_and_preemption(world, expected):
    cluster = cluster_of(*world)
    answers = [by_top(*world)[0], by_why(cluster), by_preemption(cluster)]
    assert answers == [{"uid-p": expected} if expected else {}] * 3


@pytest.mark.parametrize(
    ("world", "mib"),
    [
        (build([bound("p", PERCENT, (0, 8))]), 8 * 1024),
        # Its cards are not known yet: percent are no units.
        (build([bound("p", PERCENT, (0, 9))]), 8 * 1024),
        # Its card has lost its units, and the node says that it holds none.
        (build([bound("p", UNITS, (0, 8))], sizes=(0, 16), holds={"uid-p": {}}), 0),
    ],
    ids=["percent", "percent-nowhere", "card-without-units"],
)
def test_what_is_promised_to_a_pod(world, mib):
    made, pods = world
    board = ClusterBoard()
    board.replace_nodes([msgspec.convert({**made, "kind": "Node"}, Node)])
    board.replace_pods([msgspec.convert({**pod, "kind": "Pod"}, Pod) for pod in pods])
    board.refresh()
    assert sum(seat.promised for seat in board.pod_memory["n"] if seat.uid == "uid-p") == mib


def test_what_others_fill_frees_nothing_for_certain():
    world = build([bound("p", UNITS, (0, 8))], used=(16, 8), holds={"uid-p": {0: 8}})
    cluster = cluster_of(*world)
    assert by_why(cluster) == by_preemption(cluster) == {}


def test_a_full_card_may_be_full_of_a_pod_whose_cards_are_not_known():
    world = build([bound("p", UNITS, (0, 8)), bound("q", UNITS, (1, 3))], used=(16, 0))
    world[0]["metadata"]["annotations"][NODE_HOLDS] = dump_holds(Holds(50, frozenset({"uid-p", "uid-q"})))
    cluster = cluster_of(*world)
    assert by_why(cluster) == by_preemption(cluster) == {"uid-p": {0: 8}}


def test_assigned_pods_count_in_top_as_in_the_extender():
    """A pod that was bound and is not in the words yet: rows and sums said different things."""
    made, pods = build([bound("p", UNITS, (0, 8)), bound("q", UNITS, (1, 3))])
    items = [{**made, "kind": "Node"}, *({**pod, "kind": "Pod"} for pod in pods)]
    (row,) = build_rows(load_nodes(json.dumps({"items": items}), pods=True))
    nodes = cluster_of(made, pods).state.nodes
    assert [card.free_units for card in row.cards] == nodes.free[nodes.rows["n"]][:2].tolist() == [0, 8]
    assert [card.in_use_units for card in row.cards] == [16, 8]
