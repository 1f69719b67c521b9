"""Of equally good cards those that lie near each other: NUMA nodes first, then NVLinks, then positions."""

from dataclasses import replace
from itertools import combinations, product
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator import topology
from allocator.cards import Card
from allocator.place import place
from allocator.policy import choose
from allocator.request import ContainerRequest, PodRequest
from allocator.topology import links_between, nearest, rearranged

PAIRS = ((0, 2), (1, 3))
"""Two bridges, as between PCIe cards."""

# The first four cards of a DGX-1 (V100): every two are linked, some with two links.
CUBE = ((0, 1, 1, 2), (1, 0, 2, 1), (1, 2, 0, 2), (2, 1, 2, 0))


def bridges(count, pairs, links=4):
    return [
        tuple(links if (i, j) in pairs or (j, i) in pairs else 0 for j in range(count)) for i in range(count)
    ]


def node(used, numa=None, links=None, size=16):
    return [
        Card(
            i,
            f"GPU-{i}",
            "L40S",
            size,
            units,
            numa=numa[i] if numa else None,
            links=links[i] if links else (),
        )
        for i, units in enumerate(used)
    ]


@pytest.mark.parametrize(
    ("used", "numa", "links", "count", "chosen"),
    [
        pytest.param([0] * 4, [0, 1, 1, 1], None, 2, (1, 2), id="not torn over two nodes"),
        pytest.param([0] * 4, [0, 0, 1, 1], None, 3, (0, 1, 2), id="three need both"),
        pytest.param([0] * 4, None, bridges(4, PAIRS), 2, (0, 2), id="a bridge"),
        pytest.param([4, 0, 0, 0], None, bridges(4, PAIRS), 2, (1, 3), id="the other bridge"),
        pytest.param([0] * 4, [0, 0, 1, 1], bridges(4, PAIRS), 2, (0, 1), id="NUMA before links"),
        pytest.param([0] * 4, None, CUBE, 2, (0, 3), id="two links rather than one"),
        pytest.param([0] * 4, None, CUBE, 3, (0, 2, 3), id="most links in all"),
        pytest.param([0] * 4, None, bridges(4, set(combinations(range(4), 2)), 18), 2, (0, 1), id="a switch"),
        pytest.param([4, 0, 4, 4], None, bridges(4, PAIRS), 2, (1, 3), id="linked with the one that is sure"),
        pytest.param([0, 4, 0, 0], None, bridges(4, [(0, 1)]), 2, (0, 2), id="never outranks the policy"),
    ],
)
def test_golden_choices(used, numa, links, count, chosen):
    assert sorted(choose(node(used, numa, links), 4, count, "least-used")) == sorted(chosen)


@st.composite
def scenes(draw):
    count = draw(st.integers(1, 7))
    linked = {pair: draw(st.integers(0, 2)) for pair in combinations(range(count), 2)}
    cards = node(
        [0] * count,
        [draw(st.sampled_from([None, 0, 1, 2])) for _ in range(count)],
        [tuple(linked.get((min(i, j), max(i, j)), 0) for j in range(count)) for i in range(count)],
    )
    kinds = [draw(st.integers(0, 2)) for _ in range(count)]
    groups = [[i for i in range(count) if kinds[i] == kind] for kind in set(kinds)]
    return cards, [(members, draw(st.integers(0, len(members)))) for members in groups]


@given(scenes(), st.sets(st.integers(0, 2)))
def test_the_choice_is_the_best_of_all_sets(scene, near):
    cards, groups = scene

    def rank(chosen):
        return (
            len({cards[at].numa for at in chosen} - near),
            -links_between(cards, chosen),
            tuple(sorted(chosen)),
        )

    sets = (sum(parts, ()) for parts in product(*(combinations(members, n) for members, n in groups)))
    assert nearest(cards, groups, near) == min(map(rank, sets))[2]


@given(scenes(), st.sets(st.integers(0, 2)))
def test_sets_that_are_too_many_to_compare_are_grown_and_fit_all_the_same(scene, near):
    cards, groups = scene
    with patch.object(topology, "MOST_SETS", 0):
        chosen = nearest(cards, groups, near)
    assert [sum(at in members for at in chosen) for members, _ in groups] == [count for _, count in groups]
    best = nearest(cards, groups, near)
    nodes = [len({cards[at].numa for at in each} - near) for each in (chosen, best)]
    assert nodes[0] == nodes[1]
    assert links_between(cards, chosen) <= links_between(cards, best)


def test_many_cards_are_grown_and_no_server_has_so_many_nodes():
    pairs = [(i, i + 16) for i in range(16)]
    cards = node([0] * 32, None, bridges(32, pairs))
    chosen = nearest(cards, [(range(32), 8)])
    assert links_between(cards, chosen) == 16
    assert nearest(node([0] * 12, list(range(12))), [(range(12), 2)]) == (0, 1)


@given(
    scenes(),
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 3), st.sampled_from((0, 0, 20, 50))),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_rearranging_leaves_the_same_cards_to_whoever_comes_next(scene, demands, data):
    cards, _ = scene
    asks_compute = any(compute for *_, compute in demands)
    if asks_compute:
        given_away = data.draw(st.lists(st.sampled_from((0, 60)), min_size=len(cards), max_size=len(cards)))
        cards = [replace(card, compute_used=used) for card, used in zip(cards, given_away, strict=True)]
    free = [[16 - card.used_units, card.compute_free] for card in cards]
    chosen = []
    for units, count, compute in demands:
        fitting = [at for at, left in enumerate(free) if left[0] >= units and left[1] >= compute]
        if len(fitting) < count:
            return
        taken = data.draw(st.permutations(fitting))[:count]
        for at in taken:
            free[at] = [free[at][0] - units, free[at][1] - compute]
        chosen.append(tuple(taken))
    found = rearranged(cards, demands, chosen, range(len(cards)))
    left = [[16 - card.used_units, card.compute_free] for card in cards]
    for (units, count, compute), positions in zip(demands, found, strict=True):
        assert len(set(positions)) == count
        for at in positions:
            left[at] = [left[at][0] - units, left[at][1] - compute]
    assert min(map(min, left)) >= 0
    assert sorted(left) == sorted(free)


def test_rearranging_keeps_to_the_cards_that_the_pod_admits():
    cards = node([0] * 4, [0, 1, 0, 1])
    assert rearranged(cards, [(4, 2, 0)], [(0, 1)], range(4)) == ((0, 2),)
    assert rearranged(cards, [(4, 2, 0)], [(0, 1)], [0, 1, 3]) == ((1, 3),)
    # What the first container left is what the second one was to get, wherever that lies now.
    assert rearranged(cards, [(4, 2, 0), (8, 1, 0)], [(0, 1), (1,)], range(4)) == ((0, 2), (0,))


def test_rearranging_keeps_to_cards_with_as_much_compute_for_a_pod_that_asks_for_some():
    cards = node([0] * 4, [0, 1, 0, 1])
    cards[2] = replace(cards[2], compute_used=50)
    assert rearranged(cards, [(4, 2, 60)], [(0, 1)], range(4)) == ((1, 3),)
    assert rearranged(cards, [(4, 2, 30)], [(0, 1)], range(4)) == ((1, 3),)
    assert rearranged(cards, [(4, 2, 0)], [(0, 1)], range(4)) == ((0, 2),)
    # With what the first container has of it, card 0 differs from card 3, and is no place for the second.
    assert rearranged(cards, [(4, 1, 60), (4, 1, 60)], [(0,), (1,)], range(4)) == ((0,), (1,))


def test_containers_of_a_pod_lie_near_each_other():
    pod = PodRequest(tuple(ContainerRequest(f"c{i}", 16, "main") for i in range(2)))
    placement = place(node([4, 0, 0, 0], [0, 1, 0, 1]), pod, "least-used")
    assert [shares for _, shares in placement.containers] == [((1, 16),), ((3, 16),)]
