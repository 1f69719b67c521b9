"""Filter, `least-requested` and `balanced`, with the numbers of their pages."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from allocator.registry import Entry
from allocator.request import PodRequest
from scheduler_plugin.cache.amounts import NOTHING, ONE_POD, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.pods import read_pod
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.policies import NODE_POLICIES, list_names, make_policy
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest
from tests.cluster_builders import MEMORY, pod

ASK = PolicyRequest(Amounts(1, 4, 10), (CardDemand(4, 1),))


def golden() -> NodeArrays:
    """Capacities cpu 40, mem 100, 4 cards x 16."""
    nodes = NodeArrays()
    for name, cpu, memory, used in (
        ("a", 10, 20, (8, 8, 0, 0)),
        ("b", 4, 10, (8, 8, 8, 4)),
        ("c", 16, 40, (12, 12, 12, 12)),
    ):
        row = nodes.add_node(name)
        nodes.set_cards(row, (16,) * 4, used)
        nodes.amounts.set_capacity(row, Amounts(110, 40, 100))
        nodes.amounts.set_requested(row, Amounts(0, cpu, memory))
    return nodes


def score(policy: str, nodes: NodeArrays, ask: PolicyRequest = ASK) -> dict[str, float]:
    rows = np.array(list(nodes.rows.values()), dtype=np.intp)
    return dict(zip(nodes.rows, make_policy(policy).score(nodes, ask, rows).tolist(), strict=True))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("least-requested", {"a": Fraction(77, 240), "b": Fraction(3, 10), "c": Fraction(29, 48)}),
        ("balanced", {"a": Fraction(13, 28800), "b": Fraction(1, 50), "c": Fraction(25, 1152)}),
    ],
)
def test_golden_scores(policy: str, expected: dict[str, Fraction]) -> None:
    scores = score(policy, golden())
    for name, value in expected.items():
        assert scores[name] == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize(("policy", "best"), [("least-requested", "b"), ("balanced", "a")])
def test_golden_choice(policy: str, best: str) -> None:
    scores = score(policy, golden())
    assert min(scores, key=lambda name: (scores[name], name)) == best


@pytest.mark.parametrize("policy", ["least-requested", "balanced"])
def test_a_class_without_capacity_is_dropped(policy: str) -> None:
    nodes = golden()
    bare = nodes.add_node("bare")
    nodes.set_cards(bare, (16,) * 4, (8, 8, 0, 0))
    nothing = nodes.add_node("nothing")
    scores = score(policy, nodes)
    # Only gpu-memory is left: f = 20/64, mean itself, variance 0.
    assert scores["bare"] == (0.3125 if policy == "least-requested" else 0.0)
    assert scores["nothing"] == 0.0
    assert nodes.rows["nothing"] == nothing


@pytest.mark.parametrize("policy", ["least-requested", "balanced"])
def test_equal_fractions_in_another_order_are_a_tie(policy: str) -> None:
    nodes = NodeArrays()
    for name, cpu, memory in (("a", 10, 70), ("b", 70, 10)):
        row = nodes.add_node(name)
        nodes.set_cards(row, (100,), (30,))
        nodes.amounts.set_capacity(row, Amounts(110, 100, 100))
        nodes.amounts.set_requested(row, Amounts(0, cpu, memory))
    scores = score(policy, nodes, PolicyRequest(NOTHING, (CardDemand(0, 1),)))
    assert scores["a"] == scores["b"]


@pytest.mark.parametrize(
    ("used", "units", "cards", "expected"),
    [
        ((12,) * 4, 6, 1, False),
        ((12, 12, 10, 12), 6, 1, True),
        ((12, 12, 10, 12), 6, 2, False),
        ((10, 10, 16, 16), 6, 2, True),
    ],
    ids=["the sum does not count", "one card", "one card of two", "two cards"],
)
def test_golden_filter(used: Sequence[int], units: int, cards: int, expected: bool) -> None:
    nodes = NodeArrays()
    row = nodes.add_node("n")
    nodes.set_cards(row, (16,) * 4, used)
    annotations = {"gpupack.io/cards": str(cards)}
    request = read_pod(pod("p", units * cards, annotations=annotations), MEMORY).request
    assert isinstance(request, PodRequest)
    query = ClusterPolicies().make_request(nodes, request, ONE_POD)
    assert filter_nodes(nodes, query, np.array([row])).tolist() == [expected]


def test_an_unknown_policy_names_what_exists() -> None:
    with pytest.raises(PolicyError, match=r'"fastest"; allowed: .*balanced.*least-req'):
        make_policy("fastest")
    assert set(list_names()) >= {"balanced", "least-requested"}


@pytest.mark.parametrize("policy", ["least-requested", "balanced"])
def test_plain_policies_take_no_other_parameters(policy: str) -> None:
    with pytest.raises(PolicyError, match='parameter "speed" does not exist; allowed: resources'):
        make_policy(policy, {"speed": "11"})


def test_a_name_is_registered_once() -> None:
    with pytest.raises(PolicyError, match='node policy "balanced": the name is taken by gpupack'):
        NODE_POLICIES.register(Entry("balanced", lambda _: make_policy("balanced"), ""))
