"""`gpupack top`: rows from kubectl's JSON, and what people see of them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.names import resource_name
from allocator.records import CardRecord, dump_cards
from gpupack.errors import InputError
from gpupack.inventory import CardRow, NodeRow, build_rows, load_nodes, render
from tests.integration.top_world import card
from tests.kubectl_nodes import CARDS, INVENTORY, REVISION, listed, node


def alive(name, cards, unit_mib=1024, error=None, **more):
    """Make the row of a node that is well."""
    units = sum(card.size_units for card in cards)
    resource = resource_name(unit_mib)
    plain = {"ready": True, "resource": resource, "offered_units": units, "known_units": units}
    return NodeRow(name, cards, unit_mib, error, **{**plain, "usable": True, "revision": REVISION, **more})


def test_rows():
    nodes = listed(
        node("b", [44, 44], [4, 44], {CARDS: INVENTORY}),
        node("cpu-only"),
        node("a", [14, 14], [0, 7], unit_mib=512),
    )
    assert build_rows(nodes) == [
        alive("a", (CardRow(0, None, None, 14, 0), CardRow(1, None, None, 14, 7)), 512),
        alive(
            "b", (CardRow(4, "GPU-a", "NVIDIA L40S", 44, 4), CardRow(5, "GPU-b", None, 44, 44, healthy=False))
        ),
    ]


def test_gpus_of_another_device_plugin():
    nodes = build_rows(
        listed(node("n", [44], [4], **{"nvidia.com/gpu": "4"}), node("whole-gpus", **{"nvidia.com/gpu": "4"}))
    )
    (row,) = nodes
    assert (row.error, row.foreign_gpus) == (None, {"nvidia.com/gpu": 4})
    for output in ("table", "wide"):
        text = render(nodes, output)
        assert "another device plugin offers nvidia.com/gpu: 4 here" in text
        assert "keep it off this node" in text
    assert json.loads(render(nodes, "json"))[0]["foreign_gpus"] == {"nvidia.com/gpu": 4}


def test_cordoned_cards():
    (row,) = build_rows(
        listed(node("n", [44, 44], [44, 4], {CARDS: INVENTORY, "gpupack.io/cordon": "GPU-a,GPU-x"}))
    )
    assert [card.cordoned for card in row.cards] == [True, False]
    assert row.error is None


def test_instances_are_cordoned_with_their_card_for_its_reason():
    instances = [CardRecord(f"MIG-{at}", 0, "MIG", 9728, 0, True, parent=f"GPU-{at}") for at in "xy"]
    annotations = {
        CARDS: dump_cards(instances),
        "gpupack.io/cordon": "GPU-x",
        "gpupack.io/cordon-reasons": '{"GPU-x":"ECC","GPU-y":"old"}',
    }
    (row,) = build_rows(listed(node("n", [9, 9], [9, 0], annotations)))
    assert [(card.cordoned, card.cordon_reason) for card in row.cards] == [(True, "ECC"), (False, "")]


def test_words_in_capacity_alone_are_shown():
    """The scheduler does not read them there."""
    only = node("n", [44], [4])
    only["status"]["allocatable"] = {resource_name(1024): "44"}
    (row,) = build_rows(listed(only))
    assert row.cards == (CardRow(0, None, None, 44, 4),)
    assert (row.without_daemon, row.takes_pods) == (False, False)
    assert "not in allocatable" in row.error


BARE = (CardRow(0, None, None, 44, 4), CardRow(1, None, None, 44, 44))


@pytest.mark.parametrize(
    ("annotations", "resources", "cards", "problem"),
    [
        ({}, {"gpupack.io/packed-layout": "3"}, (), "layout header 3 has version 3"),
        ({}, {"gpupack.io/packed-used-0": "45"}, (), "card 0 has 45 of 44 units used"),
        ({}, {"gpupack.io/packed-size-0": "1.5"}, (), 'quantity "1.5"; allowed: a whole number'),
        ({CARDS: "soup"}, {}, BARE, 'annotation gpupack.io/cards is "soup": not JSON'),
        ({CARDS: "[]"}, {}, BARE, "annotation gpupack.io/cards has 0 cards"),
        ({"gpupack.io/cordon": "no card"}, {}, BARE, 'annotation gpupack.io/cordon holds "no card"'),
        (
            {"gpupack.io/cordon": "?", CARDS: "?"},
            {},
            BARE,
            'cordon holds "?"; allowed: a comma list of card UUIDs; a',
        ),
    ],
)
def test_one_bad_node_leaves_the_others_alone(annotations, resources, cards, problem):
    bad = node("bad", [44, 44], [4, 44], annotations)
    for kind in ("capacity", "allocatable"):
        bad["status"][kind].update(resources)
    broken, good = build_rows(listed(bad, node("good", [44], [0])))
    assert broken.cards == cards
    assert problem in broken.error
    assert broken.unit_mib == (1024 if cards else None)
    assert good == alive("good", (CardRow(0, None, None, 44, 0),))


@pytest.mark.parametrize("wrap", [json.dumps, lambda value: json.dumps(value, indent=4).encode()])
def test_loading(wrap):
    nodes = listed(node("n", [44, 44], [4, 44], {CARDS: INVENTORY}), node("cpu-only"))
    assert build_rows(load_nodes(wrap(nodes))) == build_rows(nodes)


def test_a_single_node_can_be_loaded():
    single = node("n", [44], [4])
    assert build_rows(load_nodes(json.dumps(single))) == build_rows(single) == build_rows(listed(single))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the input is empty"),
        (" \n", "the input is empty"),
        ("soup", "the input is not JSON"),
        ('{"items": [', "the input is not JSON"),
        ('{"items": 5, soup', "the input is not JSON"),
        (b'{"items": "\xff"}', "the input "),
        ("[" * 100_000, "the input is not JSON"),
        ("\ud800", "the input is not JSON"),
        ("[]", "the input does not hold nodes (Expected `object`, got `array`)"),
        ("5", "the input does not hold nodes"),
        ("null", "the input does not hold nodes"),
        ("{}", "the input does not hold nodes (Object missing required field `items`)"),
        ('{"items": {}}', "the input does not hold nodes (Expected `array`, got `object` - at `$.items`)"),
        ('{"items": [{}]}', "the input holds a node without a name"),
        ('{"items": [{"metadata": {"name": 5}}]}', "`$.items[0].metadata.name`"),
        ('{"items": [{"kind": "Pod", "metadata": {"name": "p"}}]}', 'the input holds a "Pod", "p"'),
        ('{"kind": "Pod", "metadata": {"name": "p"}}', 'the input holds a "Pod", "p"'),
        (f'{{"items": {"9" * 5000}}}', "the input does not hold nodes (Number out of range - at `$.items`)"),
    ],
)
def test_rubbish_is_refused_in_one_line(text, problem):
    with pytest.raises(InputError) as caught:
        build_rows(load_nodes(text))
    message = str(caught.value)
    assert problem in message
    assert message.endswith("allowed: the output of `kubectl get nodes -o json`")
    assert "\n" not in message


MIXED = [
    NodeRow("broken", (), None, "layout header 3 has version 3; allowed: 1"),
    alive("half", (CardRow(0, None, None, 14, 7),), error="annotation bad"),
    alive(
        "node-1",
        (
            CardRow(0, "GPU-a", "NVIDIA L40S", 44, 0),
            CardRow(1, "GPU-b", "NVIDIA L40S", 44, 44, healthy=False, held_units=4),
            CardRow(2, "GPU-c", "NVIDIA L40S", 0, 0, cordoned=True),
        ),
        512,
    ),
]
SUMS = [
    "gpupack.io/gpu-memory-512mib: 0/44 in use, whole cards free: 1, largest free card: 44",
    "gpupack.io/gpu-memory-gib: 7/14 in use, whole cards free: 0, largest free card: 7",
]


def test_table():
    assert render(MIXED, "table").splitlines() == [
        "NODE    STATUS   UNIT     USED  CARDS",
        "broken  Unknown  -        -     layout header 3 has version 3; allowed: 1",
        "half    Ready    1 GiB    7/14  ██░░ 7/14  annotation bad",
        "node-1  Ready    512 MiB  4/88  ░░░░ 0/44  ▎░░░ 4/44!  ████ 0/0*",
        "! unhealthy  * cordoned",
        *SUMS,
    ]


def test_wide():
    assert render([replace(MIXED[0], error="layout header"), *MIXED[1:]], "wide").splitlines() == [
        "NODE    STATUS   CARD  UNIT     USED       STATE      MEMORY  MODEL        UUID",
        "broken  Unknown  -     -        -          -          -       -            -      layout header",
        "half    Ready    0     1 GiB    ██░░ 7/14  ok         -       -            -      annotation bad",
        "node-1  Ready    0     512 MiB  ░░░░ 0/44  ok         -       NVIDIA L40S  GPU-a",
        "node-1  Ready    1     512 MiB  ▎░░░ 4/44  unhealthy  -       NVIDIA L40S  GPU-b",
        "node-1  Ready    2     512 MiB  ████ 0/0   cordoned   -       NVIDIA L40S  GPU-c",
        *SUMS,
    ]


def test_json_is_the_documented_form():
    well = {
        "ready": True,
        "unschedulable": False,
        "daemon": True,
        "takes_pods": True,
        "revision": REVISION,
        "foreign_gpus": {},
    }
    assert json.loads(render(MIXED[1:], "json")) == [
        {"node": "half", "cards": [card(7)], "unit_mib": 1024, "error": "annotation bad", **well},
        {
            "node": "node-1",
            "cards": [
                {
                    **card(used, size, f"GPU-{letter}", "NVIDIA L40S"),
                    "index": index,
                    "in_use_units": 4 if index == 1 else used,
                    "held_units": 4 if index == 1 else None,
                    "healthy": index != 1,
                    "cordoned": index == 2,
                }
                for index, letter, size, used in ((0, "a", 44, 0), (1, "b", 44, 44), (2, "c", 0, 0))
            ],
            "unit_mib": 512,
            "error": None,
            **well,
        },
    ]


@pytest.mark.parametrize("output", ["table", "wide"])
def test_nothing_to_show(output):
    assert render([], output) == "No node publishes GPU cards."
    assert render([], "json") == "[]"


@pytest.mark.parametrize(("used", "colour"), [(0, "32"), (32, "32"), (33, "33"), (43, "33"), (44, "31")])
def test_colours_by_fill(used, colour):
    row = alive("n", (CardRow(0, None, None, 44, used),))
    plain, coloured = (render([row], "table", colour=on) for on in (False, True))
    assert "\x1b" not in plain
    assert f"\x1b[{colour}m" in coloured
    for code in ("\x1b[0m", "\x1b[1m", f"\x1b[{colour}m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain


def test_errors_are_coloured():
    assert "\x1b[31mannotation bad\x1b[0m" in render(MIXED, "wide", colour=True)


@pytest.mark.parametrize(
    ("used", "bar"),
    [
        (0, "░░░░"),
        (1, "░░░░"),
        (2, "▏░░░"),
        (10, "█░░░"),
        (13, "█▎░░"),
        (20, "██░░"),
        (39, "███▉"),
        (40, "████"),
    ],
)
def test_bars(used, bar):
    row = NodeRow("n", (CardRow(0, None, None, 40, used),), 1024, None)
    assert f"  {bar} {used}/40" in render([row], "table")


def test_wide_characters_keep_columns_aligned():
    lines = render(
        [NodeRow("節点", BARE, 1024, None), NodeRow("node", BARE, 1024, None)], "table"
    ).splitlines()
    assert lines[1].replace("節点", "node") == lines[2]


def test_control_sequences_stay_off_the_terminal():
    inventory = dump_cards([CardRecord("GPU-a", 0, "\x1b[2JL40S\n", 45459, 0, True)])
    found = build_rows(listed(node("n\x1b[31m", [44], [4], {CARDS: inventory})))
    assert "\x1b" not in render(found, "wide")
    assert len(render(found, "wide").splitlines()) == 3


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=16))
def test_every_card_is_shown_as_published(pairs):
    sizes = [max(pair) for pair in pairs]
    used = [min(pair) for pair in pairs]
    found = build_rows(listed(node("n", sizes, used)))
    assert [(card.size_units, card.used_units) for card in found[0].cards] == list(
        zip(sizes, used, strict=True)
    )
    (record,) = json.loads(render(found, "json"))
    assert [(card["size_units"], card["used_units"]) for card in record["cards"]] == list(
        zip(sizes, used, strict=True)
    )
    for size, units in zip(sizes, used, strict=True):
        assert f" {units}/{size}" in render(found, "table")
    assert f": {sum(used)}/{sum(sizes)} in use" in render(found, "table")


def test_thousands_of_nodes():
    many = listed(*(node(f"node-{i:04}", [79] * 8, [i % 80] * 8) for i in reversed(range(2000))))
    found = build_rows(load_nodes(json.dumps(many)))
    assert [row.node for row in found] == [f"node-{i:04}" for i in range(2000)]
    assert len(render(found, "table").splitlines()) == 2002
    assert len(render(found, "wide").splitlines()) == 16_002
    assert len(json.loads(render(found, "json"))) == 2000
