"""The card choice on one node: golden cases of the specification and of peers."""

import pytest

from allocator.cards import Card
from allocator.errors import CardPolicyError, RequestError
from allocator.policies import CARD_POLICIES
from allocator.policy import choose, is_spreading
from allocator.selector import Selector


def node(used, sizes=16, **fields):
    sizes = [sizes] * len(used) if isinstance(sizes, int) else sizes
    return [
        Card(i, f"GPU-{i}", "L40S", size, units, **{name: values[i] for name, values in fields.items()})
        for i, (size, units) in enumerate(zip(sizes, used, strict=True))
    ]


@pytest.mark.parametrize(
    ("used", "sizes", "units", "count", "least", "most"),
    [
        pytest.param([8, 0, 12, 0], 16, 4, 1, (1,), (2,), id="4x1"),
        pytest.param([8, 0, 12, 0], 16, 4, 2, (1, 3), (2, 0), id="4x2"),
        pytest.param([8, 0, 12, 0], 16, 16, 1, (1,), (1,), id="16x1"),
        pytest.param([8, 0, 12, 14], 16, 4, 1, (1,), (2,), id="the fullest does not fit"),
        pytest.param([13, 14, 15, 16], 16, 4, 1, None, None, id="none"),
        pytest.param([4, 10], [16, 80], 20, 1, (1,), (1,), id="mixed 20x1"),
        pytest.param([4, 10], [16, 80], 8, 1, (0,), (1,), id="mixed 8x1"),
        pytest.param([4069, 8138, 12207, 0], 16276, 8138, 1, (3,), (1,), id="MiB"),
        pytest.param([0, 0], 4069, 8138, 1, None, None, id="the sum does not count"),
        pytest.param([12, 12, 12, 12], 16, 6, 1, None, None, id="sum 16, 6x1"),
        pytest.param([12, 12, 10, 12], 16, 6, 1, (2,), (2,), id="6x1"),
        pytest.param([12, 12, 10, 12], 16, 6, 2, None, None, id="6x2 short"),
        pytest.param([10, 10, 16, 16], 16, 6, 2, (0, 1), (0, 1), id="6x2"),
        pytest.param([], 16, 1, 1, None, None, id="no cards"),
        pytest.param([0, 0], 16, 1, 3, None, None, id="more cards than there are"),
    ],
)
def test_golden_choices(used, sizes, units, count, least, most):
    assert choose(node(used, sizes), units, count, "least-used") == least
    assert choose(node(used, sizes), units, count, "most-used") == most


@pytest.mark.parametrize(
    ("policy", "compute", "chosen"),
    [
        ("most-used", 0, 0),
        ("most-used", 30, 1),
        ("least-used", 0, 1),
        ("least-used", 30, 2),
        ("fragmentation", 0, 0),
        ("fragmentation", 30, 1),
    ],
)
def test_golden_choices_by_the_tighter_of_memory_and_compute(policy, compute, chosen):
    """The example of docs/policies/choosing.md: of the second card only compute is used."""
    cards = node([8, 0, 4], compute_used=[20, 70, 0])
    assert choose(cards, 4, 1, policy, compute=compute) == (chosen,)


@pytest.mark.parametrize("policy", CARD_POLICIES.names())
def test_cards_out_of_play(policy):
    cards = node([0, 0, 0, 0], healthy=[False, True, True, True], is_closed=[False, True, False, False])
    assert choose(cards, 4, 1, policy) in {(2,), (3,)}
    assert sorted(choose(cards, 4, 2, policy)) == [2, 3]
    assert choose(cards, 4, 3, policy) is None
    assert choose(cards, 4, 1, policy, Selector(uuids=("GPU-3",))) == (3,)
    assert choose(cards, 4, 1, policy, Selector(uuids=("GPU-0",))) is None


@pytest.mark.parametrize(
    ("used", "count", "near", "chosen"),
    [
        pytest.param([4, 4, 4, 4], 1, (), (0,), id="no preference"),
        pytest.param([4, 4, 4, 4], 1, (1,), (2,), id="near"),
        pytest.param([4, 4, 4, 4], 1, (7,), (0,), id="near nothing"),
        pytest.param([4, 4, 4, 4], 2, (), (0, 1), id="together"),
        pytest.param([0, 4, 4, 4], 2, (1,), (0, 1), id="the first pulls the second near, too"),
        pytest.param([4, 5, 4, 4], 2, (), (2, 3), id="the set on one node, not the first card"),
        pytest.param([4, 5, 4, 5], 2, (), (0, 2), id="never outranks the policy"),
        pytest.param([5, 5, 4, 5], 2, (), (2, 3), id="second near the first"),
        pytest.param([3, 4, 4, 4], 1, (1,), (0,), id="policy first"),
    ],
)
def test_near_breaks_ties_only(used, count, near, chosen):
    cards = node(used, numa=[0, 0, 1, 1])
    assert choose(cards, 4, count, "least-used", near=near) == chosen


def test_unknown_numa_is_near_nothing():
    assert choose(node([4, 4, 4], numa=[None, None, 0]), 4, 2, "least-used") == (0, 1)
    assert choose(node([4, 4, 4], numa=[None, 1, 0]), 4, 2, "least-used", near=[0]) == (2, 0)


def test_unknown_policy():
    with pytest.raises(CardPolicyError, match=f'card policy "best"; allowed: {CARD_POLICIES.allowed}$'):
        choose(node([0]), 1, 1, "best")


@pytest.mark.parametrize(("units", "count"), [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_impossible_requests(units, count):
    with pytest.raises(RequestError, match=f"request of {units} units on {count} cards"):
        choose(node([0]), units, count, "least-used")


def test_a_policy_without_parameters_takes_none():
    with pytest.raises(CardPolicyError, match='card policy "most-used" takes no parameters, got "speed"'):
        CARD_POLICIES.make("most-used", {"speed": "9"})


@pytest.mark.parametrize("name", CARD_POLICIES.names())
def test_a_policy_that_says_that_it_spreads_takes_the_emptiest_card(name):
    """A ResourceSlice lists the cards in an order that follows from this alone."""
    assert is_spreading(name) == (choose(node([9, 3, 0, 12]), 4, 1, name) == (2,))
