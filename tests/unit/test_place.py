"""Whole pods on one node's cards."""

import pytest

from allocator.cards import Card
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


def test_placement_and_charge():
    placement = place(node([100, 100]), pod(20, 40, 30), "least-used")
    assert placement == Placement(
        (("c0", ((0, 20),)), ("c1", ((1, 40),)), ("c2", ((0, 30),))),
        {0: 50, 1: 40},
    )


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
