"""Whole pods on one node's cards."""

from dataclasses import replace

import pytest

from allocator.cards import Card
from allocator.exact import fit_together
from allocator.place import Placement, place
from allocator.request import ContainerRequest, PodRequest
from allocator.selector import Selector


def node(free, size=100, numa=None):
    return [
        Card(i, f"GPU-{i}", "L40S", size, size - units, numa=numa[i] if numa else None)
        for i, units in enumerate(free)
    ]


def pod(*units, **fields):
    return PodRequest(tuple(ContainerRequest(f"c{i}", n, "main") for i, n in enumerate(units)), **fields)


def chosen(placement):
    return None if placement is None else [shares[0][0] for _, shares in placement.containers]


# Free per cent of each card, and two containers of 20 and 40: the cases of nano-gpu's own tests.
@pytest.mark.parametrize(
    ("free", "pack", "spread"),
    [
        ([100, 100], [0, 0], [0, 1]),
        ([20, 100], [0, 1], [1, 1]),
        ([10, 100], [1, 1], [1, 1]),
        ([10, 50], None, None),
    ],
)
def test_two_containers(free, pack, spread):
    assert chosen(place(node(free), pod(20, 40), "most-used")) == pack
    assert chosen(place(node(free), pod(20, 40), "least-used")) == spread


@pytest.mark.parametrize(
    ("free", "units", "cards"),
    [
        pytest.param([5, 5], (2, 2, 4), [0, 0, 1], id="the second small one beside the first"),
        pytest.param([5, 4], (2, 5), [1, 0], id="the emptiest card is for who needs all of it"),
        pytest.param([9, 7, 5], (5, 4, 4, 9), [None], id="too much in all"),
        pytest.param([9, 7, 5], (4, 3, 5, 9), [1, 1, 2, 0], id="all full"),
    ],
)
def test_what_the_policy_prefers_is_left_where_a_later_container_needs_it(free, units, cards):
    expected = None if None in cards else cards
    assert chosen(place(node(free), pod(*units), "least-used")) == expected


def test_of_what_leaves_the_others_room_the_policy_has_its_choice():
    """Two of 3, and 5: only card 0 has 5 free. The small ones go where the policy likes it, of the others."""
    cards = node([5, 3, 4, 4])
    assert chosen(place(cards, pod(3, 3, 5), "least-used")) == [2, 3, 0]
    assert chosen(place(cards, pod(3, 3, 5), "most-used")) == [1, 2, 0]


def test_several_cards_of_several_containers_are_found_together():
    placement = place(node([2, 4, 4]), pod(4, 8, cards=2), "least-used")
    assert placement is None
    placement = place(node([2, 6, 4]), pod(4, 8, cards=2), "least-used")
    assert [[card for card, _ in shares] for _, shares in placement.containers] == [[1, 0], [1, 2]]


def test_cards_near_each_other_are_taken_where_only_some_leave_room():
    """Card 0 is for the last container. Of cards that are alike those of one NUMA node are taken."""
    cards = node([100, 60, 60, 60], numa=[0, 1, 2, 1])
    assert chosen(place(cards, pod(40, 50, 90), "least-used")) == [1, 3, 0]


def test_a_pod_made_to_be_hard_is_given_up():
    """Amounts that fill 16 cards to the last unit, if they do: nobody waits until that is known."""
    units = [100 + (number * 529) % 97 for number in range(48)]
    free = [sum(units) // 16 + (number < sum(units) % 16) for number in range(16)]
    found = fit_together([(1000, each, 0) for each in free], [(each, 1, 0) for each in units])
    assert found == (None, False)
    assert place(node(free, size=1000), pod(*units), "least-used") is None
    # Some room more, and it is found.
    assert place(node([each + 50 for each in free], size=1000), pod(*units), "least-used") is not None


def test_placement_and_charge():
    placement = place(node([100, 100]), pod(20, 40, 30), "least-used")
    assert placement == Placement(
        (("c0", ((0, 20),)), ("c1", ((1, 40),)), ("c2", ((0, 30),))),
        {0: 50, 1: 40},
    )


def test_a_pod_gets_cards_that_have_memory_and_compute():
    """The first card has the memory alone, so the second container goes beside the first one."""
    cards = [replace(card, compute_used=used) for card, used in zip(node([16, 16]), (80, 0), strict=True)]
    asks = [ContainerRequest(f"c{at}", 4, "main", compute) for at, compute in enumerate((60, 40))]
    placement = place(cards, PodRequest(tuple(asks)), "most-used")
    assert (placement.charge, placement.compute) == ({1: 8}, {1: 100})
    assert place(cards, PodRequest((*asks, ContainerRequest("c2", 1, "main", 30))), "most-used") is None


def test_who_asks_for_no_compute_does_not_look_at_it():
    card = replace(*node([16]), compute_limit=0, compute_used=30)
    assert place([card], pod(16), "most-used").compute == {}
    assert place([card], PodRequest((ContainerRequest("c", 1, "main", 1),)), "most-used") is None


def test_compute_that_moves_one_container_moves_another():
    """By memory alone both would fit on either card, in any order."""
    cards = [replace(card, compute_used=used) for card, used in zip(node([10, 10]), (0, 50), strict=True)]
    asks = [ContainerRequest(f"c{at}", 5, "main", compute) for at, compute in enumerate((50, 60))]
    assert chosen(place(cards, PodRequest(tuple(asks)), "least-used")) == [1, 0]


def test_several_cards_for_each_container():
    placement = place(node([100, 50, 100]), pod(40, 60, cards=2), "most-used")
    assert placement == Placement((("c0", ((1, 20), (0, 20))), ("c1", ((1, 30), (0, 30)))), {1: 50, 0: 50})


def test_init_containers_share_one_card_at_the_effective_cost():
    request = PodRequest(
        (
            ContainerRequest("prepare", 50, "init"),
            ContainerRequest("proxy", 10, "sidecar"),
            ContainerRequest("main", 45, "main"),
        )
    )
    placement = place(node([54, 55]), request, "most-used")
    assert placement == Placement(
        (("prepare", ((1, 50),)), ("proxy", ((1, 10),)), ("main", ((1, 45),))), {1: 55}
    )
    assert place(node([54, 54]), request, "most-used") is None


def test_the_pods_own_policy_and_selector_win():
    cards = node([100, 60])
    assert chosen(place(cards, pod(20), "least-used")) == [0]
    assert chosen(place(cards, pod(20, card_policy="most-used"), "least-used")) == [1]
    assert chosen(place(cards, pod(20, selector=Selector(excluded_uuids=("GPU-0",))), "least-used")) == [1]
    assert place(cards, pod(70, selector=Selector(excluded_uuids=("GPU-0",))), "least-used") is None


def test_containers_stay_near_each_other_where_cards_are_equal():
    cards = node([100, 100, 100], numa=[0, 1, 0])
    assert chosen(place(cards, pod(20, 20), "least-used")) == [0, 2]


def test_positions_not_the_drivers_numbers():
    cards = [Card(7, "GPU-7", "T4", 14, 14), Card(3, "GPU-3", "T4", 14, 0)]
    assert place(cards, pod(4), "least-used") == Placement((("c0", ((1, 4),)),), {1: 4})
