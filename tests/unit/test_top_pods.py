"""`gpupack top --pods`: which pod sits on which card, by the node's word, else by the pod's annotations."""

import json
from dataclasses import replace

import pytest

from allocator.names import COMPUTE_RESOURCE
from allocator.records import Holds, MemoryRecord, dump_allocation, dump_assigned, dump_holds
from gpupack.errors import InputError
from gpupack.inventory import PodRow, build_rows, load_nodes, render
from tests.ask_world import Node, Pod, World
from tests.kubectl_nodes import CARDS, INVENTORY, node

GIB = "gpupack.io/gpu-memory-gib"
ALLOCATION, ASSIGNED = "gpupack.io/allocation", "gpupack.io/assigned"


def pod(name, units=4, *, node_name="n", init=0, phase="Running", **annotations):
    def container(called, amount):
        return {"name": called, "resources": {"limits": {GIB: str(amount)} if amount else {}}}

    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}", "annotations": annotations},
        "spec": {
            **({"nodeName": node_name} if node_name else {}),
            "containers": [container("c", units)],
            "initContainers": [container("i", init)] if init else [],
        },
        "status": {"phase": phase},
    }


def read(*pods, holds=None):
    held = {"gpupack.io/holds": dump_holds(Holds(1, frozenset(holds), holds))} if holds else {}
    listed = {"items": [node("n", [44, 44], [4, 44], {CARDS: INVENTORY, **held}), node("cpu"), *pods]}
    (row,) = build_rows(load_nodes(json.dumps(listed), pods=True))
    return row


def on(row):
    return [[(pod.name, pod.units, pod.share) for pod in card.pods] for card in row.cards] + [
        [(pod.name, pod.units, pod.share) for pod in row.pods]
    ]


def annotated(key, *shares, uid="u-p"):
    assignment = {"c": shares}
    text = dump_allocation(uid, assignment) if key == ALLOCATION else dump_assigned(assignment)
    return {key: text}


A, B = ("GPU-a", 4), ("GPU-b", 4)


@pytest.mark.parametrize(
    ("pods", "holds", "expected"),
    [
        ([pod("p")], {"u-p": {0: 4}}, [[("p", 4, "allocated")], [], []]),
        ([pod("p", 8)], {"u-p": {0: 4, 1: 4}}, [[("p", 4, "allocated")], [("p", 4, "allocated")], []]),
        ([pod("p", **annotated(ALLOCATION, B))], {"u-p": {0: 4}}, [[("p", 4, "allocated")], [], []]),
        ([pod("p", **annotated(ALLOCATION, B))], {}, [[], [("p", 4, "allocated")], []]),
        ([pod("p", **annotated(ASSIGNED, B))], {}, [[], [("p", 4, "assigned")], []]),
        (
            # As the extender, whose totals these are: where the Binding says, until the words have the pod.
            [pod("p", **annotated(ALLOCATION, A), **annotated(ASSIGNED, B))],
            {},
            [[], [("p", 4, "assigned")], []],
        ),
        (
            [pod("p", **annotated(ALLOCATION, A), **annotated(ASSIGNED, ("GPU-x", 4)))],
            {},
            [[("p", 4, "allocated")], [], []],
        ),
        (
            [pod("p", **annotated(ALLOCATION, A, uid="other"), **annotated(ASSIGNED, B))],
            {},
            [[], [("p", 4, "assigned")], []],
        ),
        ([pod("p", **annotated(ASSIGNED, ("GPU-x", 4)))], {}, [[], [], [("p", 4, "unknown")]]),
        ([pod("p", **annotated(ASSIGNED, ("GPU-a", 5)))], {}, [[], [], [("p", 4, "unknown")]]),
        ([pod("p", **{ALLOCATION: "soup", ASSIGNED: "soup"})], {}, [[], [], [("p", 4, "unknown")]]),
        ([pod("p")], {}, [[], [], [("p", 4, "unknown")]]),
        ([pod("p", phase="Failed", **annotated(ASSIGNED, A))], {}, [[], [], []]),
        ([pod("p", phase="Succeeded")], {"u-p": {0: 4}}, [[("p", 4, "ending")], [], []]),
        ([], {"u-p": {0: 4}}, [[("", 4, "ending")], [], []]),
        ([pod("p", 0)], {}, [[], [], []]),
        ([pod("p", "8Gi")], {}, [[], [], []]),
        ([pod("p", node_name="other"), pod("waits", node_name=None)], {}, [[], [], []]),
    ],
    ids=[
        "held", "two-cards", "held-first", "allocation", "assigned", "assigned-first", "card-gone", "copied",
        "other-card", "other-units", "rubbish", "nothing", "over", "over-held", "gone", "asks-nothing",
        "asks-rubbish", "elsewhere",
    ],
)  # fmt: skip
def test_where_a_pod_sits(pods, holds, expected):
    assert on(read(*(pods or [pod("x", 0)]), holds=holds)) == expected


def test_an_init_container_is_not_added_to_those_after_it():
    both = {"i": [("GPU-a", 12)], "c": [("GPU-a", 6)]}
    row = read(pod("p", 6, init=12, **{ALLOCATION: dump_allocation("u-p", both)}))
    assert on(row)[0] == [("p", 12, "allocated")]


ROW = read(
    pod("b", **annotated(ASSIGNED, A)), pod("a"), pod("none", 5), holds={"u-a": {0: 3, 1: 1}, "u-x": {1: 9}}
)


def test_the_table_has_a_line_for_each_pod_on_each_card():
    assert render([ROW], "table", pods=True).splitlines() == [
        "NODE  CARD  USED        STATE      NAMESPACE  POD      UNITS  SHARE      USED MIB  MEMORY",
        "n     4     █▏░░ 13/44  ok         default    a        3      allocated  -         -",
        "n     4     █▏░░ 13/44  ok         default    b        4      assigned   -         -",
        "n     5     █▎░░ 15/44  unhealthy  -          UID u-x  9      ending     -         -",
        "n     5     █▎░░ 15/44  unhealthy  default    a        1      allocated  -         -",
        "n     -     -           -          default    none     5      unknown    -         -",
        f"{GIB}: 13/44 in use, whole cards free: 0, largest free card: 31",
    ]
    wide = render([ROW], "wide", pods=True).splitlines()
    assert wide[0].split()[-2:] == ["MODEL", "UUID"]
    assert wide[1].endswith("allocated  -         -       NVIDIA L40S  GPU-a")


def test_what_pods_really_use_is_told_by_their_annotation():
    driver, accounted = MemoryRecord("driver", 700, 25, "mps"), MemoryRecord("accounted")
    memory = {"main": {"GPU-a": driver, "GPU-b": accounted}, "side": {"GPU-a": driver, "GPU-b": driver}}

    def told(uid: str) -> str:
        return dump_allocation(uid, {"main": (("GPU-a", 4),)}, memory)

    row = read(
        pod("p", **{ALLOCATION: told("u-p")}),
        pod("copy", **{ALLOCATION: told("u-p")}),
        holds={"u-p": {0: 4, 1: 4}, "u-copy": {0: 4}},
    )
    used = [{each.name: (each.used_mib, each.held) for each in card.pods} for card in row.cards]
    assert [[each.used_compute for each in card.pods] for card in row.cards] == [[None, 50], [25]]
    # One container of which nobody can tell makes the pod's use unknown.
    assert used == [{"p": (1400, "driver"), "copy": (None, "")}, {"p": (None, "accounted")}]
    assert (
        render([row], "table", pods=True).splitlines()[2].endswith("allocated  1400      driver, compute mps")
    )
    (record,) = json.loads(render([row], "json", pods=True))
    assert record["cards"][0]["pods"][1]["used_mib"] == 1400
    assert [each["compute_held"] for each in record["cards"][0]["pods"]] == [None, "mps"]


def test_cards_and_nodes_without_pods_have_a_line_too():
    empty = read(pod("x", 0))
    bad = build_rows({"items": [node("bad", **{"gpupack.io/packed-layout": "3"})]})
    lines = render([*bad, empty], "table", pods=True).splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["bad", "-"], ["n", "4"], ["n", "5"]]
    assert "layout header" in lines[1]


def test_json():
    (record,) = json.loads(render([ROW], "json", pods=True))
    first = {"namespace": "default", "name": "a", "uid": "u-a", "units": 3, "share": "allocated"}
    first |= {"used_mib": None, "held": None, "compute": 0, "used_compute": None, "compute_held": None}
    assert record["cards"][0]["pods"][0] == first
    assert record["pods"] == [{**first, "name": "none", "uid": "u-none", "units": 5, "share": "unknown"}]
    (without,) = json.loads(render([ROW], "json"))
    assert "pods" not in without
    assert "pods" not in without["cards"][0]


def test_compute_of_cards_and_pods_stands_beside_units():
    """Of pods that the words hold, of one that they do not hold yet, and of a card that is out of use."""
    world = World(
        (Node("n", (16, 16)),),
        (
            Pod("held", 4, "n", (0,), compute=30),
            Pod("bound", 4, "n", (1,), held=False, compute=60),
            Pod("plain", 4, "n", (1,)),
        ),
    )
    (row,) = build_rows(load_nodes(world.text, pods=True))
    assert [(card.compute_in_use, card.compute_limit) for card in row.cards] == [(30, 100), (60, 100)]
    assert [[(pod.name, pod.compute) for pod in card.pods] for card in row.cards] == [
        [("held", 30)],
        [("bound", 60), ("plain", 0)],
    ]
    titles, *lines = render([row], "table", pods=True).splitlines()
    assert titles.split().count("COMPUTE") == 2
    assert ["30/100%" in line and "30%" in line for line in lines[:1]] == [True]
    assert "COMPUTE" in render([row], "wide")
    assert "COMPUTE" not in render(build_rows(load_nodes(World((Node("n"),)).text)), "wide")
    (record,) = json.loads(render([row], "json", pods=True))
    assert [card["compute_in_use"] for card in record["cards"]] == [30, 60]
    assert [pod["compute"] for card in record["cards"] for pod in card["pods"]] == [30, 60, 0]
    down = replace(row.cards[0], healthy=False)
    assert down.compute_in_use is None


def test_compute_is_on_the_cards_that_the_node_names_before_those_of_the_binding():
    """The kubelet gave another card, and the node has not written `allocation` yet."""
    moved = pod("p", **annotated(ASSIGNED, A))
    moved["spec"]["containers"][0]["resources"]["limits"][COMPUTE_RESOURCE] = "30"
    row = read(moved, holds={"u-p": {1: 4}})
    assert [[(pod.name, pod.compute) for pod in card.pods] for card in row.cards] == [[], [("p", 30)]]


def test_the_compute_that_a_pod_uses_stands_before_what_it_asks_for():
    row = read(pod("p"), holds={"u-p": {0: 4}})
    (mine,) = row.cards[0].pods
    cards = (replace(row.cards[0], pods=(replace(mine, compute=30, used_compute=41),)), *row.cards[1:])
    assert " 41/30% " in render([replace(row, cards=cards)], "table", pods=True)


def test_names_of_others_do_not_reach_the_terminal():
    row = read(pod("p\x1b[2J", **annotated(ASSIGNED, A)))
    assert row.cards[0].pods == (PodRow("default", "p?[2J", "u-p\x1b[2J", 4, "assigned"),)


@pytest.mark.parametrize(
    ("items", "pods", "said"),
    [
        (
            [pod("p")],
            False,
            'the input holds a "Pod", "p"; allowed: the output of `kubectl get n',
        ),
        ([node("n")], True, "the input holds no pods; allowed: the output of `kubectl get nodes,pods -A"),
        ([{"kind": "Service"}], True, 'the input holds a "Service", ""; allowed'),
        ([{**pod("p"), "spec": 5}], True, "- at `$.items[0].spec`"),
    ],
    ids=["only-pods", "none", "others", "rubbish"],
)
def test_files(items, pods, said):
    with pytest.raises(InputError) as caught:
        load_nodes(json.dumps({"items": items}), pods=pods)
    assert said in str(caught.value)


def test_pods_beside_nodes_are_left_out_when_nobody_asks():
    found = load_nodes(json.dumps({"items": [pod("p"), node("n"), {**pod("q"), "spec": 5}]}))
    assert build_rows(found) == build_rows(load_nodes(json.dumps({"items": [node("n")]})))
    assert found.pods is None
