"""What containers were given, in MiB, where the cards change under them."""

from types import SimpleNamespace

import pytest

from allocator.cards import Card
from allocator.ids import device_id, percent_id
from allocator.ledger import CheckpointEntry, Ledger
from deviceplugin.enforcement.granted_memory import GrantedMemory
from tests.ledger_world import pod

SLOTS = {"a": range(3), "b": range(3, 6)}


def card(size: int) -> Card:
    return Card(0, "c0", "M", size_units=size, used_units=0, healthy=size > 0)


@pytest.mark.parametrize("make", [device_id, percent_id])
def test_who_has_a_card_that_comes_back_has_its_share_again_and_never_one_of_nothing(make) -> None:
    """A pod with a share of 0 MiB would be evicted for what it uses."""
    ledger = Ledger([card(0)])
    shares = GrantedMemory(SimpleNamespace(ledger=ledger), 1024)
    ids = frozenset(make("c0", slot) for slot in range(10))
    ledger.apply_checkpoint([CheckpointEntry("a", "main", "r", ids)], 1.0)
    assert shares.read() == {"a": {"main": {}}}
    ledger.set_cards([card(20)])
    given = shares.read()["a"]
    assert given == {"main": {"c0": (10 if make is device_id else 2) * 1024}}
    ledger.apply_checkpoint([CheckpointEntry(uid, "main", "r", ids) for uid in SLOTS], 2.0)
    assert shares.read().keys() == set(SLOTS)
    assert shares.read()["a"] is given


def test_what_a_restarted_kubelet_forgot_is_granted_also_where_another_pod_ends() -> None:
    """One pod more and one less: their number says nothing, and the checkpoint was not written."""
    ledger = Ledger([card(20)])
    shares = GrantedMemory(SimpleNamespace(ledger=ledger), 1024)
    wanted = {uid: frozenset(device_id("c0", slot) for slot in slots) for uid, slots in SLOTS.items()}
    ledger.apply_checkpoint([CheckpointEntry("a", "main", "r", wanted["a"])], 1.0)
    ledger.apply_pod_list([pod("b", 3, "c0")], 2.0, 2.0)
    ledger.apply_checkpoint([], 3.0)
    ledger.allocate(wanted["b"], 4.0, [("ns", "pod-b")])
    assert shares.read().keys() == {"a"}
    ledger.record_cgroup_probe({"a"}, (), 99.0)
    ledger.apply_kubelet_restart()
    assert shares.read() == {"b": {"main": {"c0": 3 * 1024}}}
