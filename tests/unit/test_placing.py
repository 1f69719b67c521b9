from types import SimpleNamespace

import numpy as np
import pytest

from allocator.policies import CARD_POLICIES
from allocator.request import ContainerRequest, PodRequest
from allocator.selector import Selector
from scheduler_plugin.cache.amounts import ONE_POD, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy, score_nodes
from scheduler_plugin.scheduling.policies import NODE_POLICIES, make_policy
from scheduler_plugin.scheduling.policies.fragmentation import FragmentationPolicy
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from tests.other_policies import offered
from tests.policy_view import ask, view


def containers(*units):
    return tuple(ContainerRequest(f"c{number}", each, "main") for number, each in enumerate(units))


@pytest.fixture
def arrays():
    return view({"n": (8000, 1 << 30, [100] * 3, 0, 0, [0, 47, 65])})


def query(arrays, request, card_policy="fragmentation"):
    return ClusterPolicies(card_policy_name=card_policy).make_request(arrays, request, Amounts(1, 100, 100))


def test_the_node_policy_names_the_cards_it_scored(arrays):
    policy = FragmentationPolicy(
        TypicalWorkload.from_pods([ask(0, 0, (units, 1)) for units in (81, 47, 32, 65)])
    )
    row = arrays.rows["n"]
    placed = place_by_policy(policy, arrays, row, query(arrays, PodRequest(containers(32))))
    assert placed.containers == (("c0", ((2, 32),)),)
    assert placed.charge == {2: 32}
    two = place_by_policy(policy, arrays, row, query(arrays, PodRequest(containers(40, 40), cards=2)))
    assert two is not None
    assert sum(two.charge.values()) == 80
    assert [name for name, _ in two.containers] == ["c0", "c1"]


def test_other_card_policies_and_node_policies_choose_as_ever(arrays):
    row = arrays.rows["n"]
    request = PodRequest(containers(32))
    plain = place_by_policy(make_policy("fragmentation"), arrays, row, query(arrays, request, "least-used"))
    assert plain.charge == {0: 32}
    other = place_by_policy(make_policy("balanced"), arrays, row, query(arrays, request, "most-used"))
    assert other.charge == {2: 32}


@pytest.mark.parametrize("leaves", [True, False])
def test_a_card_policy_of_others_says_whether_node_policies_choose(arrays, leaves):
    """The first card, or where it leaves that to the node policy what the default would take."""
    first = SimpleNamespace(costs=lambda cards, _: [each.index for each in cards], node_policy_chooses=leaves)
    row, request = arrays.rows["n"], PodRequest(containers(32))
    policy = FragmentationPolicy(
        TypicalWorkload.from_pods([ask(0, 0, (units, 1)) for units in (81, 47, 32, 65)])
    )
    rows = np.array([row], dtype=np.intp)
    with offered(CARD_POLICIES, first=lambda _: first):
        asked = query(arrays, request, "first")
        assert place_by_policy(policy, arrays, row, asked).charge == ({2: 32} if leaves else {0: 32})
        assert place_by_policy(make_policy("balanced"), arrays, row, asked).charge == {0: 32}
        scores = [
            policy.score(arrays, one.policy_request, rows)[0] for one in (asked, query(arrays, request))
        ]
    assert (scores[0] == scores[1]) == leaves


def test_what_does_not_fit_has_no_placement(arrays):
    row = arrays.rows["n"]
    policy = make_policy("fragmentation")
    assert place_by_policy(policy, arrays, row, query(arrays, PodRequest(containers(101)))) is None
    nobody = PodRequest(containers(10), selector=Selector(uuids=("x",)))
    assert place_by_policy(policy, arrays, row, query(arrays, nobody)) is None
    arrays.exclude_row(row, Exclusion.CORRUPT)
    assert place_by_policy(policy, arrays, row, query(arrays, PodRequest(containers(10)))) is None
    assert np.count_nonzero(arrays.usable) == 0


@pytest.mark.parametrize("shares", [True, False])
def test_a_share_of_a_planned_card_is_had_only_where_the_node_offers_shares(shares):
    nodes = NodeArrays(rows=1)
    row = nodes.add_node("n")
    nodes.set_cards(row, [16], [0], uuids=["GPU-0"], percent=shares)
    share = query(nodes, PodRequest(containers(50), percent=True))
    placed = place_by_policy(make_policy("fragmentation"), nodes, row, share, ("GPU-0",))
    assert (placed is not None) == shares


def near_cards(numa, used=(0, 0, 0, 0)):
    nodes = NodeArrays(rows=1)
    row = nodes.add_node("n")
    uuids = [f"GPU-{card}" for card in range(4)]
    nodes.set_cards(row, [16] * 4, used, uuids=uuids, models=["A100"] * 4, numa=numa)
    return nodes, row


@pytest.mark.parametrize("learned", [None, TypicalWorkload.from_pods([ask(0, 0, (8, 1))])])
def test_cards_that_are_equal_to_the_node_policy_are_taken_near_each_other(learned):
    nodes, row = near_cards([0, 1, 1, 1])
    pair = query(nodes, PodRequest(containers(16), cards=2))
    placed = place_by_policy(FragmentationPolicy(learned), nodes, row, pair)
    assert set(placed.charge) == {1, 2}
    # As without it where nobody knows where the cards lie, and for a pod of one card.
    single = query(nodes, PodRequest(containers(8)))
    unknown, other = near_cards([-1] * 4)
    assert set(place_by_policy(FragmentationPolicy(learned), unknown, other, pair).charge) == {0, 1}
    assert place_by_policy(FragmentationPolicy(learned), nodes, row, single).charge == {0: 8}


def test_a_card_that_fits_better_goes_before_one_that_is_near():
    nodes, row = near_cards([0, 1, 1, 1], used=[12, 0, 0, 0])
    policy = FragmentationPolicy(TypicalWorkload.from_pods([ask(0, 0, (4, 1)), ask(0, 0, (16, 1))]))
    placed = place_by_policy(policy, nodes, row, query(nodes, PodRequest(containers(8), cards=2)))
    assert set(placed.charge) == {0, 1}


def test_near_cards_are_of_those_that_the_pod_names():
    nodes, row = near_cards([0, 1, 1, 0])
    pair = PodRequest(containers(8), cards=2, selector=Selector.parse(None, "!GPU-3"))
    placed = place_by_policy(FragmentationPolicy(), nodes, row, query(nodes, pair))
    assert set(placed.charge) == {1, 2}


@pytest.mark.parametrize(
    "selector", [Selector(), Selector.parse(None, "GPU-n-*")], ids=["any card", "by UUID"]
)
@pytest.mark.parametrize("card_policy", ["fragmentation", "least-used", "first"])
@pytest.mark.parametrize("name", sorted(set(NODE_POLICIES.names())))
def test_where_a_pod_fits_every_policy_ranks_the_node_and_finds_its_cards(name, card_policy, selector):
    """Two of 2 and one of 4 on cards of 5: taken one after the other the small ones use both cards."""
    nodes = NodeArrays()
    for node in ("n", "m"):
        nodes.set_cards(nodes.add_node(node), (5, 5), (0, 0), uuids=(f"GPU-{node}-0", f"GPU-{node}-1"))
        nodes.amounts.set_capacity(nodes.rows[node], Amounts(110, 8000, 1 << 30))
    first = SimpleNamespace(costs=lambda cards, _: [each.used_units for each in cards])
    with offered(CARD_POLICIES, first=lambda _: first):
        asked = ClusterPolicies(name, card_policy).make_request(
            nodes, PodRequest(containers(2, 2, 4), selector=selector), ONE_POD
        )
        policy = make_policy(name)
        rows = np.arange(2, dtype=np.intp)
        fits = filter_nodes(nodes, asked, rows)
        assert fits.tolist() == [True, selector.admits_all]
        assert np.isfinite(score_nodes(policy, nodes, asked, rows[fits])).all()
        placement = place_by_policy(policy, nodes, 0, asked)
    assert sorted(placement.charge.values()) == [4, 4]
    assert [units for _, ((_, units),) in placement.containers] == [2, 2, 4]
