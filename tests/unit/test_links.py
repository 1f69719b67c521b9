"""NVLinks: from the driver or a profile, through the inventory's annotation, to the cards that are chosen."""

import json
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from allocator.records import CardRecord, dump_cards, load_cards, read_links, write_links
from deviceplugin.allocation.inventory import card_records, cards_in_units
from deviceplugin.errors import ProfileError
from deviceplugin.gpus.api.links import count_links
from deviceplugin.gpus.nvidia.links import read_links as read_from_driver
from deviceplugin.gpus.simulated.profile import load_profile, parse_profile
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.published_nodes import read_published
from tests.cluster_builders import node
from tests.nvml_world import Card, Driver, driver

__all__ = ["driver"]

BRIDGED = """
version: "1.0"
device_defaults: {name: Card, memory: {total_bytes: 10737418240}}
devices: [{index: 0, uuid: GPU-a}, {index: 1, uuid: GPU-b}, {index: 2, uuid: GPU-c}]
nvlink:
  device_links:
    - {index: 0, links: [{link: 0, remote_index: 2}, {link: 1, remote_index: 2}, {link: 2}]}
"""


@pytest.mark.parametrize(
    ("direct", "switched", "found"),
    [
        ({}, {}, {"a": (), "b": (), "c": ()}),
        ({"a": ["b", "b"], "b": ["a"]}, {}, {"a": (("b", 2),), "b": (("a", 2),), "c": ()}),
        (
            {},
            {"a": 12, "b": 12, "c": 11},
            {
                "a": (("b", 12), ("c", 11)),
                "b": (("a", 12), ("c", 11)),
                "c": (("a", 11), ("b", 11)),
            },
        ),
        ({"a": ["b"]}, {"a": 2, "b": 2}, {"a": (("b", 3),), "b": (("a", 3),), "c": ()}),
        ({"a": ["gone", "a"]}, {"a": 4}, {"a": (), "b": (), "c": ()}),
    ],
    ids=["none", "direct", "switched", "both", "elsewhere"],
)
def test_links_of_pairs(direct: Any, switched: Any, found: Any) -> None:
    assert count_links("abc", direct, switched) == found


def test_profiles_say_links_as_nvml_mock_does() -> None:
    a, b, c = (each.card for each in parse_profile("t", BRIDGED).cards)
    assert (a.links, b.links, c.links) == ((("GPU-c", 2),), (), (("GPU-a", 2),))
    for name, count in (("8xa100-40", 12), ("8xh100-80", 18), ("8xh200", 18), ("4xl40s", None)):
        cards = [each.card for each in load_profile(name).cards]
        assert {n for card in cards for _, n in card.links} == ({count} if count else set())


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("remote_index: 2", "remote_index: 7", "links[0].remote_index: 7; allowed: the devices' index"),
        ("{index: 0, links", "{index: 9, links", "index: 9; allowed: the devices' index"),
        ("remote_index: 2", "remote_index: 0", "links[0]: leads from card 0 to itself"),
        ("remote_index: 2", "remote_index: x", "links[0].remote_index: expected `int | null`, got `str`"),
    ],
)
def test_links_that_cannot_be(old: str, new: str, fault: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile("t", BRIDGED.replace(old, new, 1))
    assert f"nvlink.device_links[0].{fault}" in caught.value.faults


def test_the_driver_tells_of_each_end(driver: Driver) -> None:
    driver.cards = [
        Card("a", links=["00000000:1B:00.0", None, "00000000:1B:00.0", "switch", "switch"]),
        Card("b", links=["00000000:1A:00.0", "00000000:1A:00.0", "npu"]),
        Card("c", links=["switch"]),
        Card("d"),
    ]
    handles = {card.uuid: pynvml.nvmlDeviceGetHandleByIndex(at) for at, card in enumerate(driver.cards)}
    buses = {"a": "0000:1a:00.0", "b": "0000:1b:00.0", "c": "0000:1c:00.0", "d": ""}
    assert read_from_driver(handles, buses) == {
        "a": (("b", 2), ("c", 1)),
        "b": (("a", 2),),
        "c": (("a", 1),),
        "d": (),
    }


def test_links_travel_in_few_bytes_and_come_back() -> None:
    gpus = [each.card for each in load_profile("8xh100-80").cards]
    inventory = card_records(cards_in_units(gpus, 1024), gpus)
    text, without = dump_cards(inventory), dump_cards([replace(each, links="") for each in inventory])
    assert len(text) - len(without) == 8 * len(',"links":"iiiiiii0"')
    links = [read_links(record.links, 8) for record in load_cards(text)]
    assert links[2] == (18, 18, 0, 18, 18, 18, 18, 18)
    assert links == [card.links for card in cards_in_units(gpus, 1024)]


def test_annotations_without_links_are_as_they_were() -> None:
    text = dump_cards([CardRecord("GPU-a", 0, "T4", 14336, None, True)])
    assert set(json.loads(text)[0]) == {"uuid", "index", "model", "mib", "numa", "healthy"}
    assert load_cards(text)[0].links == ""


@pytest.mark.parametrize("links", ["0", "000000", "0i0"])
def test_links_of_another_number_of_cards_are_none(links: str) -> None:
    assert read_links(links, 2) == ()


def test_more_links_than_a_digit_holds_are_the_most_it_holds() -> None:
    assert write_links([0, 99, 1]) == "0z1"
    assert read_links("0z1", 3) == (0, 35, 1)
    assert write_links([0, 0]) == ""


def test_the_scheduler_reads_them() -> None:
    inventory = [CardRecord(f"GPU-{i}", i, "T4", 14336, 0, True, text) for i, text in enumerate(("04", "40"))]
    published = read_published(node("n", (14, 14), extra={"gpupack.io/cards": dump_cards(inventory)}), 1024)
    assert published.links == ((0, 4), (4, 0))
    nodes = NodeArrays(rows=1, cards=1)
    row = nodes.add_node("n")
    nodes.set_cards(row, published.sizes, published.used, uuids=published.uuids, links=published.links)
    before = int(nodes.version[row])
    assert [card.links for card in build_cards(nodes, row)] == [(0, 4), (4, 0)]
    nodes.set_cards(row, published.sizes, published.used, uuids=published.uuids)
    assert int(nodes.version[row]) > before
    assert [card.links for card in build_cards(nodes, row)] == [(), ()]
