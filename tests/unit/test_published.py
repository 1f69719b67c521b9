from collections.abc import Mapping

import pytest

from allocator.names import NODE_CARDS, NODE_HOLDS
from scheduler_plugin.cache.published_nodes import Exclusion, PublishedNode, read_published
from tests.cluster_builders import node, uuid


def test_a_node_with_everything() -> None:
    made = node(
        "n", (16, 80), (4, 10), models=("T4", "H100"), numa=(0, None), holds=("u1",), seen=9, revision=5
    )
    published = read_published(made, 1024)
    assert published.exclusion is Exclusion.NONE
    assert published.revision == 5
    assert (published.holds.seen, published.holds.uids) == (9, frozenset({"u1"}))
    assert (published.sizes, published.used, published.evictable) == ((16, 80), (4, 10), (16, 80))
    assert published.uuids == (uuid("n", 0), uuid("n", 1))
    assert (published.models, published.numa) == (("T4", "H100"), (0, -1))


def test_a_node_of_the_tests_may_have_the_longest_name() -> None:
    """Karpenter's kwok provider makes names of random words, some of them too long for a UUID."""
    name = "n" * 253
    assert read_published(node(name, (8,) * 16), 1024).exclusion is Exclusion.NONE
    assert uuid(name, 0) != uuid("n" * 252, 0)


def test_a_broken_or_cordoned_card_is_full() -> None:
    made = node("n", (8, 8, 8), (1, 2, 3), healthy=(False, True, True), cordon=f" {uuid('n', 2)},")
    published = read_published(made, 1024)
    assert published.used == (8, 2, 8)
    assert published.evictable == (0, 8, 0)


def test_an_instance_is_cordoned_with_its_card() -> None:
    """Else preemption ends its pods for room that the node gives to nobody."""
    made = node("n", (8, 8), (8, 2), parents=("GPU-x", "GPU-y"), cordon="GPU-x")
    published = read_published(made, 1024)
    assert (published.used, published.evictable) == ((8, 2), (0, 8))


def test_a_cordon_that_cannot_be_read_is_left_to_the_node() -> None:
    """It keeps the last one, and nobody is evicted for a card that may be among those."""
    published = read_published(node("n", (8, 8), (1, 8), cordon="no uuid at all!"), 1024)
    assert (published.used, published.evictable) == ((1, 8), (0, 0))


def test_words_without_inventory_are_enough() -> None:
    published = read_published(node("n", (8, 8), (1, 2), inventory=False), 1024)
    assert published.exclusion is Exclusion.NONE
    assert (published.sizes, published.used) == ((8, 8), (1, 2))
    assert published.uuids == ()


def test_words_without_holds_hold_nothing() -> None:
    made = node("n", (8,), (1,))
    assert made.metadata.annotations is not None
    del made.metadata.annotations[NODE_HOLDS]
    published = read_published(made, 1024)
    assert (published.holds.seen, published.holds.uids) == (-1, frozenset())


@pytest.mark.parametrize("allocatable", [None, {}, {"cpu": "4", "gpupack.io/gpu-memory-gib": "32"}], ids=repr)
def test_a_node_without_words(allocatable: dict[str, str | int] | None) -> None:
    made = node("n")
    made.status.allocatable = allocatable
    assert read_published(made, 1024) == PublishedNode(Exclusion.NO_WORDS)


@pytest.mark.parametrize(
    ("amount", "exclusion"),
    [
        ("0", Exclusion.NO_PLUGIN),
        (0, Exclusion.NO_PLUGIN),
        ("16", Exclusion.NONE),
        ("5k", Exclusion.NONE),
        (None, Exclusion.NONE),
        ("rubbish", Exclusion.NONE),
    ],
)
def test_words_whose_device_plugin_is_gone(amount: str | int | None, exclusion: Exclusion) -> None:
    made = node("n", (8, 8))
    assert made.status.allocatable is not None
    made.status.allocatable["gpupack.io/gpu-memory-512mib"] = 0
    if amount is not None:
        made.status.allocatable["gpupack.io/gpu-memory-gib"] = amount
    assert read_published(made, 1024).exclusion is exclusion


def test_units_of_broken_cards_are_not_missed() -> None:
    made = node("n", (8, 8), healthy=(False, False), allocatable_units=0)
    assert read_published(made, 1024).exclusion is Exclusion.NONE


def test_words_of_another_unit() -> None:
    assert read_published(node("n", unit_mib=512), 1024) == PublishedNode(Exclusion.OTHER_UNIT)
    assert read_published(node("n", unit_mib=512), 512).exclusion is Exclusion.NONE


@pytest.mark.parametrize(
    "change",
    [
        {"gpupack.io/packed-used-0": "9007199254740993"},
        {"gpupack.io/packed-layout": "2"},
        {"gpupack.io/packed-size-0": "1500m"},
        {"gpupack.io/packed-size-1": "1"},
    ],
    ids=repr,
)
def test_foreign_words(change: Mapping[str, str]) -> None:
    made = node("n", (8, 8))
    assert made.status.allocatable is not None
    made.status.allocatable.update(change)
    assert read_published(made, 1024) == PublishedNode(Exclusion.CORRUPT)


@pytest.mark.parametrize(
    "extra",
    [{NODE_CARDS: "["}, {NODE_CARDS: "[]"}, {NODE_HOLDS: "{}"}],
    ids=["inventory unreadable", "inventory of other cards", "holds unreadable"],
)
def test_foreign_annotations(extra: Mapping[str, str]) -> None:
    assert read_published(node("n", (8, 8), extra=extra), 1024) == PublishedNode(Exclusion.CORRUPT)


def test_a_size_that_no_request_reaches_is_corrupt() -> None:
    assert read_published(node("n", ((1 << 17) + 1,)), 1024) == PublishedNode(Exclusion.CORRUPT)
    assert read_published(node("n", (1 << 17,)), 1024).exclusion is Exclusion.NONE


def test_a_node_with_no_cards_is_readable() -> None:
    assert read_published(node("n", ()), 1024).exclusion is Exclusion.NONE
