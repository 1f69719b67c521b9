"""fragmentation keeps cards whole for pods that it has not seen yet."""

import numpy as np
import pytest

from allocator.policy import choose
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.scheduling.policies.fragmentation_scores import FragmentationScores
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from tests.policy_view import ask, place, view

FREE = 1 << 40


def pod(units, cpu=0):
    return ask(cpu, 0, (units, 1), card_policy="fragmentation")


def cluster(**sizes):
    """Empty nodes with cards of the sizes given, and ample cpu and memory."""
    return view({name: (10**6, FREE, cards, 0, 0, [0] * len(cards)) for name, cards in sizes.items()})


def put(policy, arrays, request, number):
    """Place a pod as the extender does; the node's name."""
    rows = np.flatnonzero(arrays.free_order[0] >= request.demands[0].units)
    row = int(rows[policy.score(arrays, request, rows).argmin()])
    place(arrays, row, policy.choose_cards(arrays, request, row), request)
    policy.pod_resolved(str(number), request)
    return next(name for name, at in arrays.rows.items() if at == row)


def used(arrays):
    """Units used of all cards that carry something."""
    amounts = (arrays.size - arrays.free)[arrays.size > 0]
    return sorted(amounts[amounts > 0].tolist())


def test_eight_pods_of_4_gib_on_empty_l40s_take_one_card():
    arrays = cluster(n=[44] * 4)
    for number in range(8):
        put(make_policy("fragmentation"), arrays, pod(4), number)
    assert used(arrays) == [32]
    # The same for one that learns on the way.
    arrays, policy = cluster(n=[44] * 4), make_policy("fragmentation")
    for number in range(11):
        put(policy, arrays, pod(4), number)
    assert used(arrays) == [44]


def test_five_pods_of_4_gib_on_six_cards_of_three_kinds_take_one_card_of_the_smallest():
    arrays, policy = cluster(a=[39, 39], l=[44, 44], t=[14, 14]), make_policy("fragmentation")
    assert {put(policy, arrays, pod(4), number) for number in range(3)} == {"t"}
    assert used(arrays) == [12]
    # The second T4 before a large card: those stay whole for pods that no T4 takes.
    assert {put(policy, arrays, pod(4), number) for number in range(3, 5)} == {"t"}
    assert used(arrays) == [8, 12]


@pytest.mark.parametrize("size", [14, 39, 44, 79, 141])
def test_whatever_single_size_it_has_learned_a_card_is_filled_before_another_is_opened(size):
    for units in range(1, size // 2 + 1):
        arrays, policy = cluster(n=[size] * 2), make_policy("fragmentation")
        for number in range(1000):
            policy.pod_resolved(f"seen-{number}", pod(units))
        for number in range(size // units):
            put(policy, arrays, pod(units), number)
        assert used(arrays) == [size // units * units], units


def test_what_it_knows_goes_before_what_it_has_not_seen():
    # Two 47 belong together, and three 32: a 32 does not go to the fullest card that takes it.
    policy = make_policy("fragmentation")
    for number, units in enumerate([81] * 100 + [47] * 70 + [32] * 30 + [65] * 30):
        policy.pod_resolved(f"seen-{number}", pod(units))
    arrays = cluster(n=[100] * 2)
    row = arrays.rows["n"]
    arrays.set_cards(row, [100] * 2, [47, 32])
    assert choose(build_cards(arrays, row), 32, 1, "most-used") == (0,)
    assert policy.choose_cards(arrays, pod(32), row) == ((1,),)
    # One that has learned nothing does the same as that policy.
    assert make_policy("fragmentation").choose_cards(arrays, pod(32), row) == ((0,),)


def test_a_given_workload_leaves_nothing_unseen():
    arrays = cluster(a=[100, 100])
    rows = np.array([0])
    given = FragmentationScores(TypicalWorkload.from_pods([pod(50)]))
    given.follow(arrays)
    arrays.set_cards(0, [100, 100], [50, 0])
    given.follow(arrays)
    assert given.value(rows).tolist() == [0.0]
