from itertools import combinations_with_replacement, pairwise

import pytest

from allocator.errors import CardPolicyError
from allocator.pricing import MAX_SIZES, _leaving_row, hole_values


def test_halves_and_thirds_price_themselves():
    values = hole_values(12, {6: 2.0, 4: 1.0})
    assert values[3] == 0
    assert values[4] == pytest.approx(1 / 3)
    assert values[6] == pytest.approx(1 / 2)
    assert values[12] == 1


def test_what_nothing_fills_beside_is_free():
    # Cards of 81 + 16 leave 3; a 16 costs nothing while there are more 81 than 16.
    values = hole_values(100, {81: 10.0, 16: 1.0})
    assert values[81] == pytest.approx(1)
    assert values[16] == pytest.approx(0)


def test_a_scarce_partner_gets_a_price():
    values = hole_values(100, {65: 1.0, 32: 3.0})
    assert values[32] == pytest.approx(1 / 3)
    assert values[65] == pytest.approx(2 / 3)


def test_without_demand_every_unit_is_worth_the_same():
    assert hole_values(4, {}) == (0, 0.25, 0.5, 0.75, 1)
    assert hole_values(4, {5: 1.0, 0: 1.0, 2: 0.0}) == (0, 0.25, 0.5, 0.75, 1)


def test_sizes_are_read_in_their_common_step():
    assert hole_values(105, {50: 1.0}) == tuple([0.0] * 50 + [0.5] * 50 + [1.0] * 6)


def test_a_card_of_nothing_is_refused():
    with pytest.raises(CardPolicyError, match="card of 0 units; allowed: 1 or more"):
        hole_values(0, {1: 1.0})


@pytest.mark.parametrize(
    ("size", "demands"),
    [
        (20, {7: 3.0, 3: 5.0, 11: 2.0, 2: 0.5}),
        (
            100,
            {81: 107.0, 47: 75.0, 32: 33.0, 65: 25.0, 23: 14.0, 46: 13.0, 59: 8.0, 16: 7.0, 55: 7.0, 22: 6.0},
        ),
        (80, {units: 1.0 / units for units in range(1, 81)}),
    ],
)
def test_values_are_prices_that_no_filling_beats(size, demands):
    values = hole_values(size, demands)
    assert values[0] == 0
    assert values[size] == 1
    assert all(low <= high for low, high in pairwise(values))
    # Superadditive: two holes together are never worth less than apart.
    for a, b in combinations_with_replacement(range(size + 1), 2):
        if a + b <= size:
            assert values[a + b] >= values[a] + values[b] - 1e-6


def test_prices_are_the_dual_of_the_fewest_cards():
    # 3 of 60, 2 of 30, 2 of 40 on cards of 100: 60+40 twice, 60+30, 30 shares: 3 + 1/3 cards fractionally.
    demands = {60: 3.0, 40: 2.0, 30: 2.0}
    values = hole_values(100, demands)
    assert sum(values[units] * count for units, count in demands.items()) == pytest.approx(10 / 3)


def test_many_sizes_are_priced_together():
    demands = dict.fromkeys(range(1, 2 * MAX_SIZES + 1), 1.0)
    values = hole_values(2 * MAX_SIZES, demands)
    assert values[1] == 0
    assert 0 < values[MAX_SIZES] <= 1


def test_prices_of_an_unfinished_solution_are_usable(monkeypatch):
    monkeypatch.setattr("allocator.pricing._STEPS_PER_SIZE", 0)
    values = hole_values(10, {5: 1.0, 3: 1.0})
    assert values[10] == 1


def test_the_least_ratio_leaves_and_nothing_when_none_limits():
    assert _leaving_row([2.0, 1.0, 9.0], [1.0, 1.0, 0.0]) == 1
    assert _leaving_row([1.0, 1.0], [0.0, -1.0]) is None
