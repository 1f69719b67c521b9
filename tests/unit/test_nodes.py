import numpy as np
import pytest

from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.row_changes import MAX_RECENT_CHANGES
from scheduler_plugin.errors import StateError


def check(nodes: NodeArrays) -> None:
    """The class's invariant."""
    assert (nodes.occupied == np.minimum(nodes.size, nodes.used + nodes.assumed)).all()
    assert (nodes.free == nodes.size - nodes.occupied).all()
    assert (-np.sort(-nodes.free, axis=1) == nodes.free_order.T).all()
    assert (nodes.gpu_capacity == nodes.size.sum(axis=1)).all()
    assert (nodes.gpu_used == nodes.occupied.sum(axis=1)).all()
    assert not nodes.size[~nodes.usable].any()
    ranked = sorted(nodes.rows, key=lambda name: nodes.name_rank[nodes.rows[name]])
    assert ranked == sorted(nodes.rows) == nodes.index.sorted_names
    for name, row in nodes.rows.items():
        assert nodes.names[row] == name
        assert nodes.index.quoted[row] == f'"{name}"'.encode()


@pytest.fixture
def nodes() -> NodeArrays:
    return NodeArrays()


def test_a_new_row_has_no_words(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    assert nodes.exclusion[row] == Exclusion.NO_WORDS
    assert not nodes.usable[row]
    check(nodes)


def test_cards_set_everything_that_follows(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    nodes.set_cards(row, (16, 80), (4, 10), uuids=("a", "b"), models=("T4", "H100"), numa=(0, -1))
    nodes.set_assumed(row, (2, 0))
    assert nodes.free[row, :2].tolist() == [10, 70]
    assert nodes.free_order[:2, row].tolist() == [70, 10]
    assert nodes.gpu_capacity[row] == 96
    assert nodes.gpu_used[row] == 16
    assert nodes.evictable[row, :2].tolist() == [16, 80]
    assert [nodes.model_names[model] for model in nodes.model[row, :2]] == ["T4", "H100"]
    assert nodes.model[row, 2:].tolist() == [-1] * 6
    check(nodes)


def test_free_is_never_negative(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    nodes.set_cards(row, (8,), (6,))
    nodes.set_assumed(row, (6,))
    assert nodes.free[row, 0] == 0
    assert nodes.occupied[row, 0] == 8
    check(nodes)


def test_fewer_cards_leave_nothing_behind(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    nodes.set_cards(row, (8, 8, 8), (1, 2, 3), models=("m", "m", "m"))
    nodes.set_assumed(row, (1, 1, 1))
    nodes.set_cards(row, (8,), (1,), models=("m",))
    assert nodes.size[row].sum() == 8
    assert nodes.assumed[row].tolist() == [1] + [0] * 7
    assert nodes.model[row, 1:].tolist() == [-1] * 7
    check(nodes)


def test_every_change_counts_one_version_and_no_change_none(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    nodes.set_cards(row, (8, 8), (0, 0), uuids=("a", "b"))
    version, inventory = int(nodes.version[row]), int(nodes.inventory.version[row])
    nodes.set_cards(row, (8, 8), (0, 0), uuids=("a", "b"))
    nodes.set_assumed(row, (0, 0))
    nodes.amounts.set_capacity(row, NOTHING)
    nodes.amounts.set_requested(row, NOTHING)
    assert int(nodes.version[row]) == version
    nodes.set_cards(row, (8, 8), (0, 1), uuids=("a", "b"))
    nodes.set_assumed(row, (0, 1))
    nodes.amounts.set_capacity(row, Amounts(cpu_milli=4000))
    nodes.amounts.set_requested(row, Amounts(memory_bytes=7))
    assert int(nodes.version[row]) == version + 4
    assert int(nodes.inventory.version[row]) == inventory
    nodes.set_cards(row, (8, 8), (0, 1), uuids=("a", "c"))
    assert int(nodes.version[row]) == version + 5
    assert int(nodes.inventory.version[row]) == inventory + 1


def test_a_row_is_used_again_with_versions_that_go_on() -> None:
    nodes = NodeArrays(rows=1)
    row = nodes.add_node("n1")
    nodes.set_cards(row, (8,), (0,))
    nodes.amounts.set_capacity(row, Amounts(1, 1, 1))
    version = int(nodes.version[row])
    nodes.remove_node("n1")
    assert nodes.exclusion[row] == Exclusion.VACANT
    assert nodes.names[row] == ""
    check(nodes)
    assert nodes.add_node("n2") == row
    assert int(nodes.version[row]) > version
    assert nodes.cpu_capacity[row] == 0
    assert nodes.row_count == 1


def test_rows_grow_by_doubling_and_keep_their_contents() -> None:
    nodes = NodeArrays(rows=2, cards=1)
    for index in range(5):
        row = nodes.add_node(f"n{index}")
        nodes.set_cards(row, (8, 4), (index, 0), models=("a", f"b{index}"))
        nodes.amounts.set_requested(row, Amounts(index, index, index))
    assert nodes.row_count == 8
    for index in range(5):
        row = nodes.rows[f"n{index}"]
        assert nodes.used[row, 0] == index
        assert nodes.cpu_used[row] == index
        assert nodes.model_names[nodes.model[row, 1]] == f"b{index}"
    assert set(nodes.exclusion[5:].tolist()) == {Exclusion.VACANT}
    check(nodes)


def test_more_cards_widen_every_row() -> None:
    nodes = NodeArrays(cards=2)
    first = nodes.add_node("n1")
    nodes.set_cards(first, (8, 8), (1, 2))
    second = nodes.add_node("n2")
    nodes.set_cards(second, (4,) * 16, (0,) * 16, numa=(1,) * 16)
    assert nodes.size.shape[1] == 16
    assert nodes.free[first].tolist() == [7, 6] + [0] * 14
    assert nodes.numa[first].tolist() == [-1] * 16
    check(nodes)


def test_names_keep_their_order_however_they_come(nodes: NodeArrays) -> None:
    for name in ("m", "z", "a", "n", "mm", "b"):
        nodes.add_node(name)
        check(nodes)
    nodes.remove_node("m")
    check(nodes)


def test_ranks_are_dealt_anew_when_a_gap_is_used_up(nodes: NodeArrays) -> None:
    nodes.add_node("a")
    nodes.add_node("b")
    for length in range(1, 80):
        nodes.add_node("a" + "a" * length + "z")
    for length in range(80, 160):
        nodes.add_node("b" * length)
    check(nodes)


def test_excluding_empties_the_row_and_says_why(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    nodes.set_cards(row, (8,), (1,), uuids=("a",), models=("m",))
    nodes.set_assumed(row, (1,))
    nodes.exclude_row(row, Exclusion.CORRUPT)
    assert nodes.exclusion[row] == Exclusion.CORRUPT
    assert nodes.uuids[row] == ()
    check(nodes)
    nodes.set_cards(row, (8,), (1,))
    assert nodes.usable[row]
    assert nodes.assumed[row].sum() == 0


@pytest.mark.parametrize("name", ["", "n1"])
def test_a_name_gets_one_row_only(nodes: NodeArrays, name: str) -> None:
    nodes.add_node("n1")
    with pytest.raises(StateError, match="no row yet"):
        nodes.add_node(name)


def test_removing_needs_a_row() -> None:
    with pytest.raises(StateError, match="has no row"):
        NodeArrays().remove_node("n1")


def test_the_epoch_follows_names_only(nodes: NodeArrays) -> None:
    row = nodes.add_node("n1")
    epoch = nodes.index.epoch
    nodes.set_cards(row, (8,), (0,))
    assert nodes.index.epoch == epoch
    nodes.remove_node("n1")
    assert nodes.index.epoch == epoch + 1


def test_changed_rows_are_listed_until_they_are_too_many() -> None:
    """Each once; then versions must be compared."""
    arrays = NodeArrays(rows=4, cards=1)
    first, second = arrays.add_node("a"), arrays.add_node("b")
    before = arrays.changes.count
    changed = arrays.changes.list_since(before)
    assert changed is not None
    assert changed.tolist() == []
    for cpu in range(1, 4):
        arrays.amounts.set_capacity(second, Amounts(cpu_milli=cpu))
    arrays.amounts.set_capacity(first, Amounts(cpu_milli=1))
    changed = arrays.changes.list_since(before)
    assert changed is not None
    assert changed.tolist() == sorted([first, second])
    for cpu in range(MAX_RECENT_CHANGES):
        arrays.amounts.set_capacity(first, Amounts(cpu_milli=cpu + 2))
    assert arrays.changes.list_since(before) is None
