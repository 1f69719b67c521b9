import pytest

from allocator.cards import Card
from allocator.policies.fragmentation import broken, fragmentation
from allocator.policy import choose


def cards(used, size=100):
    return [Card(i, f"GPU-{i}", "A", size, u) for i, u in enumerate(used)]


def test_never_where_it_does_not_fit():
    assert fragmentation(cards([95, 100]), 6) == [float("inf")] * 2
    assert choose(cards([95, 94]), 6, 1, "fragmentation") == (1,)


def test_nothing_is_known_so_cards_are_kept_whole():
    # f (1.1 - 0.1 f / size), and 24.5 = 1 + 0.5 + 3 + 20 of it.
    assert [broken(100, free) for free in (0, 50, 100)] == [0, 50 * 1.05, 0]
    assert fragmentation(cards([50, 0]), 50) == pytest.approx([-24.5 * 52.5, 24.5 * 52.5])
    assert choose(cards([0, 10, 40, 0]), 4, 1, "fragmentation") == (2,)
    # 60 fit on the card in use only just, and on a whole one: no whole one is opened.
    assert choose(cards([0, 40]), 60, 1, "fragmentation") == (1,)


def test_nothing_is_known_so_the_smallest_whole_card_is_opened():
    whole = [Card(i, f"GPU-{i}", "A", size, 0) for i, size in enumerate([79, 14, 44])]
    assert choose(whole, 4, 1, "fragmentation") == (1,)
    assert choose(whole, 20, 1, "fragmentation") == (2,)
