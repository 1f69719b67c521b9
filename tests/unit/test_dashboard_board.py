"""What the page shows of nodes: whose the units of a card are, and which records are made again."""

import json

import msgspec
import pytest

from benchmarks.dashboard import fill_board, node
from benchmarks.fleet import Fleet
from gpupack.dashboard.board import ClusterBoard
from gpupack.dashboard.page_hub import PageHub
from gpupack.dashboard.records import STATES, make_node_tile
from gpupack.dashboard.trend import COARSE, COARSE_S, EVERY_S, FINE, Trend, TrendPoint
from gpupack.inventory.records import CardRow, NodeRow, PodRow
from kubeapi.objects import Pod

GIB = 1024


def tile(card, **more):
    served = {"ready": True, "resource": "r", "offered_units": 80, "known_units": 80, "usable": True}
    row = NodeRow("n", (card,), GIB, None, **{**served, **more})
    return make_node_tile(row, {}).cards[0]


def pod(units, used_gib=None, name="p"):
    used = None if used_gib is None else int(used_gib * GIB)
    return PodRow("ns", name, f"uid-{name}", units, "allocated", used)


@pytest.mark.parametrize(
    ("card", "allocated", "overuse", "external", "free"),
    [
        (CardRow(0, "u", "m", 80, 0, held_units=0), 0, 0, 0, 80),
        (CardRow(0, "u", "m", 80, 30, held_units=20, pods=(pod(20),)), 20, 10, 0, 50),
        (CardRow(0, "u", "m", 80, 10, held_units=0), 0, 0, 10, 70),
        # The node says what each pod uses: what no pod's excess explains is others'.
        (CardRow(0, "u", "m", 80, 30, held_units=20, pods=(pod(20, 23.5),)), 20, 4, 6, 50),
        (CardRow(0, "u", "m", 80, 30, held_units=20, pods=(pod(20, 5),)), 20, 0, 10, 50),
        (CardRow(0, "u", "m", 80, 30, held_units=20, pods=(pod(10, 30), pod(10, None, "q"))), 20, 10, 0, 50),
        # A pod that was just bound is not in the words yet: the card may look fuller than it is, not emptier.
        (CardRow(0, "u", "m", 80, 0, held_units=0, assumed_units=30, pods=(pod(30),)), 30, 0, 0, 50),
        # One that got another card than it was assigned counts once the words say so, as in the extender.
        (CardRow(0, "u", "m", 80, 0, held_units=0, pods=(pod(30),)), 0, 0, 0, 80),
        # Processes of nobody's use 10, and a pod of 30 was just bound: the extender has 40 left.
        (CardRow(0, "u", "m", 80, 10, held_units=0, assumed_units=30, pods=(pod(30),)), 30, 10, 0, 40),
        # A pod that nobody says the cards of counts on each that it may be on, as in the extender.
        (CardRow(0, "u", "m", 80, 10, held_units=10, assumed_units=30, pods=(pod(10),)), 40, 0, 0, 40),
        (CardRow(0, "u", "m", 80, 10, assumed_units=30), 40, 0, 0, 40),
        # Neither holds nor pods can be read: what is used is somebody's.
        (CardRow(0, "u", "m", 80, 30), 30, 0, 0, 50),
        (CardRow(0, "u", "m", 80, 80, healthy=False, held_units=20, pods=(pod(20),)), 20, 0, 0, 0),
        (CardRow(0, "u", "m", 80, 80, cordoned=True, held_units=0), 0, 0, 0, 0),
    ],
)  # fmt: skip
def test_every_unit_of_a_card_is_somebodys(card, allocated, overuse, external, free):
    found = tile(card)
    assert (found.allocated, found.overuse, found.external, found.free) == (
        allocated,
        overuse,
        external,
        free,
    )
    assert STATES[found.state] == card.state


def test_a_node_that_takes_no_pods_has_nothing_free():
    assert tile(CardRow(0, "u", "m", 80, 0, held_units=0), unschedulable=True).free == 0


def test_only_what_looks_different_is_told():
    fleet, board = Fleet(3, uniform=True), ClusterBoard()
    fill_board(board, fleet)
    assert board.refresh() == {each.name for each in fleet.nodes}
    changed, same = fleet.nodes[:2]
    same.revision += 1
    fleet.place(changed, 4)
    for each in (changed, same):
        board.put_node(node(fleet.node_object(each)))
    assert board.refresh() == {changed.name}
    board.drop_node(board.nodes[changed.name])
    assert board.refresh() == {changed.name}
    assert changed.name not in board.tiles
    assert board.sum_cards().cards == 16


def test_a_pod_that_moves_is_on_one_node_only():
    fleet, board = Fleet(2, uniform=True), ClusterBoard()
    fill_board(board, fleet)
    board.refresh()
    one, two = fleet.nodes
    name, on = next(iter(one.pods.items()))
    key = (fleet.team(name), name)
    (card,) = on
    moved = board.pods[key]
    assert board.find_nodes_with_pod(f"{key[0]}/{name[:-1]}") != []
    board.drop_pod(moved)
    del one.pods[name]
    two.pods[name] = {card: 1}
    board.put_pod(msgspec.convert(fleet.pod_object(name, 1, two), Pod))
    for each in (one, two):
        board.put_node(node(fleet.node_object(each)))
    assert board.refresh() == {one.name, two.name}
    assert board.find_nodes_with_pod(name) == [two.name]


def test_pages_are_told_once_and_each_at_its_own_pace():
    fleet, board = Fleet(2, uniform=True), ClusterBoard()
    fill_board(board, fleet)
    live = PageHub(board, Trend(), {"problems": []})
    live.flush_nodes()
    with live.open_page() as quick, live.open_page() as slow:
        for number in range(5):
            fleet.place(fleet.nodes[0], 4)
            board.put_node(node(fleet.node_object(fleet.nodes[0])))
            live.flush_nodes()
            live.set_part("problems", [f"trouble {number // 2}"])
            if quick.has_changes.is_set():
                message = json.loads(live.encode_changes(quick))
                assert {each["name"] for each in message.get("nodes", ())} <= {fleet.nodes[0].name}
        assert json.loads(live.encode_changes(quick)) == {}
        message = json.loads(live.encode_changes(slow))
        assert [each["name"] for each in message["nodes"]] == [fleet.nodes[0].name]
        assert message["problems"] == ["trouble 2"]
    assert not live.is_watched


def test_the_trend_is_bounded_and_never_goes_back():
    trend = Trend()
    at = 0.0
    for _ in range(3 * FINE):
        at += EVERY_S
        trend.add(TrendPoint(int(at), 1, 0, 0, 0, 0, 0, 0, 0))
    points = [point.at for point in trend.list_points()]
    assert points == sorted(set(points))
    assert points[-1] - points[0] >= at - EVERY_S - COARSE_S
    assert len(points) <= FINE + COARSE
    trend.add(TrendPoint(int(at) - 1000, 1, 0, 0, 0, 0, 0, 0, 0))
    points = [point.at for point in trend.list_points()]
    assert points == sorted(set(points))
    assert points[-1] == int(at) - 1000
