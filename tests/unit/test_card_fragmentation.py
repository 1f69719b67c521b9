import pytest

from allocator.cards import Card
from allocator.policies.fragmentation import as_demands, broken, fragmentation, hole_costs
from allocator.policy import choose


def cards(used, size=100):
    return [Card(i, f"GPU-{i}", "A", size, u) for i, u in enumerate(used)]


def test_cost_by_hand():
    # Demands of 50 and of 100, half and half; V(f) is 0, 1/2 from 50 on, 1 at 100.
    costs = hole_costs(100, as_demands({50: 1, 100: 1}))
    assert costs[0] == 0
    assert costs[100] == pytest.approx(0)
    # 50 free: fits 50 exactly; for 100 all of it is fragment: (50 + .5*50 + 3*50) / 2.
    assert costs[50] == pytest.approx(112.5)
    # 30 free: nothing fits: 30 + 15 + 90 for both, 20 * 30 lost.
    assert costs[30] == pytest.approx(135 + 600)


def test_fills_the_hole_that_fits_best():
    demands = as_demands({81: 10, 47: 7, 32: 3, 65: 3})
    # 53 free after a 47, 35 free after a 65: 32 belongs beside the 65.
    costs = fragmentation(cards([47, 65, 0]), 32, demands)
    assert costs.index(min(costs)) == 1


def test_opens_a_card_rather_than_spoil_a_hole():
    demands = as_demands({81: 10, 47: 7, 32: 3, 65: 3})
    costs = fragmentation(cards([47, 0]), 32, demands)
    assert costs.index(min(costs)) == 1


def test_never_where_it_does_not_fit():
    assert fragmentation(cards([95, 100]), 6) == [float("inf")] * 2
    assert choose(cards([95, 94]), 6, 1, "fragmentation") == (1,)


def test_nothing_is_known_so_cards_are_kept_whole():
    # f (1.1 - 0.1 f / size), and 24.5 = 1 + 0.5 + 3 + 20 of it.
    assert [broken(100, free) for free in (0, 50, 100)] == [0, 50 * 1.05, 0]
    assert hole_costs(100)[50] == pytest.approx(24.5 * 52.5)
    assert choose(cards([0, 10, 40, 0]), 4, 1, "fragmentation") == (2,)
    # 60 fit on the card in use only just, and on a whole one: no whole one is opened.
    assert choose(cards([0, 40]), 60, 1, "fragmentation") == (1,)


def test_nothing_is_known_so_the_smallest_whole_card_is_opened():
    whole = [Card(i, f"GPU-{i}", "A", size, 0) for i, size in enumerate([79, 14, 44])]
    assert choose(whole, 4, 1, "fragmentation") == (1,)
    assert choose(whole, 20, 1, "fragmentation") == (2,)


def test_eight_pods_of_4_gib_take_one_l40s():
    used = [0, 0, 0, 0]
    for _ in range(8):
        (card,) = choose(cards(used, 44), 4, 1, "fragmentation")
        used[card] += 4
    assert sorted(used) == [0, 0, 0, 32]


def test_demands_beyond_the_card_are_left_out():
    assert hole_costs(10, as_demands({5: 1, 20: 5})) == hole_costs(10, as_demands({5: 1}))
    assert as_demands({0: 1, 3: 0, 2: 1}) == ((2, 1),)
    # Of a card that none of them fits on nothing is known.
    assert hole_costs(10, as_demands({20: 5})) == hole_costs(10)
