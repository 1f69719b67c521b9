"""What containers were given, in MiB, where the cards change under them."""

from types import SimpleNamespace

import pytest

from allocator.cards import Card
from allocator.ids import device_id, percent_id
from allocator.ledger import BookEntry, Ledger
from deviceplugin.enforcement.granted_memory import Shares


def card(size: int) -> Card:
    return Card(0, "c0", "M", size_units=size, used_units=0, healthy=size > 0)


@pytest.mark.parametrize("make", [device_id, percent_id])
def test_who_has_a_card_that_comes_back_has_its_share_again_and_never_one_of_nothing(make) -> None:
    """A pod with a share of 0 MiB would be evicted for what it uses."""
    ledger = Ledger([card(0)])
    shares = Shares(SimpleNamespace(ledger=ledger), 1024)
    ids = frozenset(make("c0", slot) for slot in range(10))
    ledger.read_book([BookEntry("a", "main", "r", ids)], 1.0)
    assert shares.follow() == ({"a"}, set())
    assert shares.of("a") == {"main": {}}
    ledger.set_cards([card(20)])
    assert shares.follow() == ({"a"}, set())
    assert shares.of("a") == {"main": {"c0": (10 if make is device_id else 2) * 1024}}
    assert shares.follow() == (set(), set())
