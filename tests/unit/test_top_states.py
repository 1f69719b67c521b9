"""`gpupack top`: nodes and cards that do not serve pods, and what the cluster has left."""

import json
from dataclasses import replace

import msgspec
import pytest

from allocator.records import Holds, dump_holds
from deviceplugin.allocation.objects import NodeObject
from deviceplugin.publishing.node_publication import make_last_patch
from gpupack.errors import InputError
from gpupack.inventory import build_rows, render
from gpupack.inventory.rendering import RenderOptions, format_lines, sum_totals
from tests.kubectl_nodes import CARDS, INVENTORY, REVISION, listed, node

GIB = "gpupack.io/gpu-memory-gib"
HOLDS = dump_holds(Holds(1, frozenset({"u1", "u2"}), {"u1": {0: 4, 1: 1}, "u2": {1: 9}}))


def changed(name="n", *, allocatable=88, capacity=88, ready="True", unschedulable=False, **annotations):
    """Make a node with two cards of 44, of which the inventory calls the second unhealthy."""
    made = node(name, [44, 44], [4, 44], {f"gpupack.io/{key}": text for key, text in annotations.items()})
    made["status"]["allocatable"][GIB] = str(allocatable)
    made["status"]["capacity"][GIB] = str(capacity)
    made["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    made["spec"] = {"unschedulable": unschedulable}
    return made


def shown(*nodes, output="table", **more):
    body, footer = format_lines(
        build_rows(listed(*nodes)), RenderOptions(output, now_ms=lambda: REVISION + 3 * 3_600_000, **more)
    )
    return body[1:], footer


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, "Ready"),
        ({"ready": "False"}, "NotReady"),
        ({"ready": "Unknown"}, "NotReady"),
        ({"unschedulable": True}, "Ready,SchedulingDisabled"),
        ({"allocatable": 0}, "Ready,NoPlugin"),
        ({"allocatable": 0, "ready": "False", "unschedulable": True}, "NotReady,SchedulingDisabled,NoPlugin"),
    ],
    ids=["well", "not-ready", "unknown", "cordoned", "no-daemon", "all"],
)
@pytest.mark.parametrize("output", ["table", "wide"])
def test_the_status_says_who_takes_no_pods_and_the_sums_leave_these_out(how, status, output):
    body, footer = shown(changed(**how), output=output)
    assert [line.split()[1] for line in body] == [status] * (1 if output == "table" else 2)
    in_use, largest = ("48/88", 40) if not how else ("0/0", 0)
    assert footer[-1] == f"{GIB}: {in_use} in use, whole cards free: 0, largest free card: {largest}"
    (record,) = json.loads(render(build_rows(listed(changed(**how))), "json"))
    assert record["takes_pods"] is (not how)
    assert record["ready"] is (how.get("ready", "True") == "True")
    assert record["unschedulable"] is how.get("unschedulable", False)
    assert record["daemon"] is (how.get("allocatable") != 0)


@pytest.mark.parametrize(
    ("annotations", "takes"),
    [
        ({"cards": INVENTORY}, True),
        ({"cards": "soup"}, False),
        ({"cards": "[]"}, False),
        ({"holds": "soup"}, False),
        ({"cordon": "no card"}, True),
    ],
)
def test_a_node_that_the_scheduler_cannot_read_takes_no_pods(annotations, takes):
    (row,) = build_rows(listed(changed(**annotations)))
    assert row.takes_pods is takes
    assert sum_totals([row])[0].largest_free_card == (40 if takes else 0)


def test_a_node_with_a_card_of_an_impossible_size_takes_no_pods():
    (row,) = build_rows(listed(node("n", [(1 << 17) + 1], [0])))
    assert not row.takes_pods
    assert "a card's size is impossible" in row.error


def test_a_node_that_serves_claims_needs_no_units_of_its_kubelet():
    (row,) = build_rows(listed(changed(allocatable=0, capacity=0, serves="dra")))
    assert row.takes_pods
    assert not row.without_daemon


def test_a_node_without_daemon_says_so_and_how_old_its_words_are():
    (line,), _ = shown(changed(allocatable=0))
    assert line.endswith(f"no gpupack node daemon: the kubelet offers 0 {GIB}, its last words are 3h old")


@pytest.mark.parametrize(
    ("age_s", "said"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
)
def test_the_age_of_words(age_s, said):
    (row,) = build_rows(listed(changed(allocatable=0)))
    look = RenderOptions("table", now_ms=lambda: REVISION + 1000 * age_s)
    assert format_lines([row], look)[0][1].endswith(f", its last words are {said} old")


@pytest.mark.parametrize("revision", [5, REVISION + 10**12])
def test_a_revision_that_is_no_time_says_no_age(revision):
    (row,) = build_rows(listed(changed(allocatable=0)))
    ((_, line), _) = format_lines(
        [replace(row, revision=revision)], RenderOptions("table", now_ms=lambda: REVISION)
    )
    assert line.endswith(f"the kubelet offers 0 {GIB}")


def test_a_node_whose_daemon_wrote_its_last_patch():
    """Its words call every card full and unhealthy; who holds what still stands there."""
    made = node("n", [44, 44], [4, 10], {CARDS: INVENTORY, "gpupack.io/holds": HOLDS})
    text = json.dumps({**made, "metadata": {**made["metadata"], "resourceVersion": "1"}})
    patch = make_last_patch(msgspec.json.decode(text, type=NodeObject), 7)
    made["metadata"]["annotations"] |= patch["metadata"]["annotations"]
    for kind in ("capacity", "allocatable"):
        made["status"][kind] |= {key: str(value) for key, value in patch["status"][kind].items()}
    made["status"]["allocatable"][GIB] = "0"
    # For five minutes the kubelet keeps the capacity: nothing tells it from cards that are all dead.
    (line,), footer = shown(made)
    assert "▎░░░ 4/44!  ▉░░░ 10/44!  no card is healthy, or the node daemon has stopped" in line
    assert footer[-1].endswith("0/0 in use, whole cards free: 0, largest free card: 0")
    made["status"]["capacity"][GIB] = "0"
    (line,), footer = shown(made)
    assert "NoPlugin" in line
    assert "▎░░░ 4/44  ▉░░░ 10/44  no gpupack node daemon" in line
    assert len(footer) == 1


def test_a_card_out_of_use_shows_what_its_pods_hold():
    """The words call it full, which keeps pods away and tells nobody what would be lost."""
    (row,) = build_rows(listed(changed(cards=INVENTORY, holds=HOLDS, cordon="GPU-a")))
    assert [(card.used_units, card.held_units, card.in_use_units) for card in row.cards] == [
        (4, 4, 4),
        (44, 10, 10),
    ]
    records = json.loads(render([row], "json"))[0]["cards"]
    assert [(card["healthy"], card["cordoned"], card["in_use_units"]) for card in records] == [
        (True, True, 4),
        (False, False, 10),
    ]
    body, footer = shown(changed(cards=INVENTORY, holds=HOLDS, cordon="GPU-a"))
    assert "▎░░░ 4/44*  ▉░░░ 10/44!" in body[0]
    assert footer[0] == "! unhealthy  * cordoned"


@pytest.mark.parametrize(
    ("holds", "used", "problem"),
    [
        (dump_holds(Holds(1, frozenset({"u"}))), 44, None),
        (dump_holds(Holds(1, frozenset())), 0, None),
        ("soup", 44, "annotation gpupack.io/holds is"),
    ],
    ids=["release-before", "nobody", "rubbish"],
)
def test_holds_that_say_less(holds, used, problem):
    (row,) = build_rows(listed(changed(cards=INVENTORY, holds=holds)))
    assert row.cards[1].in_use_units == used
    assert (problem or "") in (row.error or "")
    assert (row.error is None) == (problem is None)


def test_a_labelled_node_that_never_had_a_daemon_is_shown():
    never = {"kind": "Node", "metadata": {"name": "n", "labels": {"gpupack.io/node": "true"}}}
    (line,), footer = shown(never)
    assert line.split()[:2] == ["n", "Unknown"]
    assert line.endswith("publishes no words: no daemon has run here")
    assert footer == []
    never["metadata"]["labels"]["gpupack.io/node"] = "false"
    assert build_rows(listed(never)) == []


def test_named_nodes():
    nodes = listed(changed("a"), changed("b"), node("cpu"), node("bad"))
    assert [row.node for row in build_rows(nodes, ["b", "a"])] == ["a", "b"]
    (cpu,) = build_rows(nodes, ["cpu"])
    assert cpu.error == "publishes no words: no daemon has run here"
    with pytest.raises(InputError, match=r'no node has the name "x", "y"'):
        build_rows(nodes, ["y", "a", "x"])


def test_sums_by_unit():
    found = build_rows(
        listed(
            node("a", [44, 44, 44], [0, 6, 44]),
            node("b", [79], [0], {"gpupack.io/cordon": "GPU-b"}),
            node("c", [158, 158], [0, 10], unit_mib=512),
            node("bad", **{"gpupack.io/packed-layout": "3"}),
            changed("off", unschedulable=True),
        )
    )
    assert [
        (each.resource, each.in_use_units, each.size_units, each.whole_cards_free, each.largest_free_card)
        for each in sum_totals(found)
    ] == [
        ("gpupack.io/gpu-memory-512mib", 10, 316, 1, 158),
        (GIB, 50, 211, 2, 79),
    ]
