"""Policies of plug-ins that give what is no costs, scores or cards: named where it comes in."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from allocator.cards import Card
from allocator.errors import CardPolicyError
from allocator.policies import CARD_POLICIES
from allocator.policy import choose
from allocator.request import ContainerRequest, PodRequest
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.amounts import ONE_POD, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError, PolicyError
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.queue.controller import status
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy, score_nodes
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from tests.cluster_builders import container, node, pod, pod_object
from tests.ledger_world import World
from tests.ledger_world import pod as ledger_pod
from tests.other_policies import offered
from tests.queue_world import QueueWorld

NAN = float("nan")
NAMED = 'card policy "broken" of others 1.0: '


def failing(*_):
    raise ZeroDivisionError("by zero")


COSTS = [
    pytest.param(lambda cards, _: [NAN] * len(cards), "cost of card 0 for 3 units is nan", id="nan"),
    pytest.param(lambda cards, _: [1.0], "1 costs for 2 cards", id="short"),
    pytest.param(lambda cards, _: [1.0] * 3, "3 costs for 2 cards", id="long"),
    pytest.param(lambda cards, _: ["1"] * len(cards), 'cost of card 0 for 3 units is "1"', id="text"),
    pytest.param(lambda cards, _: [None] * len(cards), "cost of card 0 for 3 units is None", id="none"),
    pytest.param(lambda cards, _: None, "costs for 3 units cannot be had: TypeError", id="nothing"),
    pytest.param(failing, "costs for 3 units cannot be had: ZeroDivisionError: by zero", id="fails"),
]


def request(*units, **more):
    return PodRequest(tuple(ContainerRequest(f"c{i}", n, "main") for i, n in enumerate(units)), **more)


def broken(**attributes):
    return offered(CARD_POLICIES, broken=lambda _: SimpleNamespace(**attributes))


@pytest.mark.parametrize(("costs", "what"), COSTS)
def test_costs_that_are_none_are_named(costs, what):
    cards = [Card(i, f"GPU-{i}", "", 8, 0) for i in range(2)]
    with broken(costs=costs), pytest.raises(CardPolicyError) as caught:
        choose(cards, 3, 1, "broken")
    assert str(caught.value).startswith(NAMED + what)
    assert str(caught.value).endswith("allowed: one number a card, not nan")


def test_what_a_card_costs_that_does_not_fit_does_not_matter():
    cards = [Card(0, "GPU-0", "", 8, 8), Card(1, "GPU-1", "", 8, 0), Card(2, "GPU-2", "", 8, 0)]
    for others in (1, np.int64(1), float("inf")):
        with broken(costs=lambda cards, _, others=others: [NAN, others, 0.5]):
            assert choose(cards, 3, 2, "broken") == (2, 1)


ARRAYS = [
    pytest.param(
        {"array_costs": lambda size, free, _: size * NAN}, "array_costs for 3 units have nan", id="nan"
    ),
    pytest.param(
        {"array_costs": lambda size, free, _: size[:, :1]}, "array_costs of shape (2, 1)", id="shape"
    ),
    pytest.param({"array_costs": failing}, "array_costs for 3 units cannot be had: ZeroDivision", id="fails"),
    pytest.param(
        {"by_fill": True, "costs": lambda cards, _: [NAN] * len(cards)},
        "cost of card 3 for 3 units is nan",
        id="fill",
    ),
    pytest.param({"by_fill": True, "costs": lambda cards, _: [1.0]}, "1 costs for 9 cards", id="short table"),
]


def arrays():
    nodes = NodeArrays()
    for name in ("a", "b"):
        nodes.set_cards(nodes.add_node(name), (8, 8), (4, 0))
        nodes.amounts.set_capacity(nodes.rows[name], Amounts(110, 8000, 1 << 30))
    return nodes


@pytest.mark.parametrize(("attributes", "what"), ARRAYS)
def test_costs_of_many_nodes_that_are_none_are_named(attributes, what):
    nodes = arrays()
    with broken(**{"costs": lambda cards, _: [0.0] * len(cards), **attributes}):
        query = ClusterPolicies(card_policy_name="broken").make_request(nodes, request(3, 6), ONE_POD)
        with pytest.raises(CardPolicyError) as caught:
            filter_nodes(nodes, query, np.arange(2))
    assert str(caught.value).startswith(NAMED + what)


@pytest.mark.parametrize(
    ("scores", "what"),
    [
        pytest.param(lambda *_: np.array([NAN, 1.0]), "score of a node is nan", id="nan"),
        pytest.param(lambda *_: np.zeros(1), r"scores of shape \(1,\) for 2 nodes", id="short"),
        pytest.param(lambda *_: None, r"scores of shape \(\) for 2 nodes", id="nothing"),
        pytest.param(failing, "scores cannot be had: ZeroDivisionError: by zero", id="fails"),
    ],
)
def test_scores_that_are_none_are_named(scores, what):
    nodes = arrays()
    query = ClusterPolicies().make_request(nodes, request(3), ONE_POD)
    with pytest.raises(PolicyError, match=f"node policy SimpleNamespace of types: {what}"):
        score_nodes(SimpleNamespace(epoch=0, score=scores), nodes, query, np.arange(2))


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param(((),), id="none"),
        pytest.param(((0, 1),), id="two"),
        pytest.param(((5,),), id="not there"),
        pytest.param(((-1,),), id="before the first"),
        pytest.param(((0,),), id="not free"),
        pytest.param((), id="no demand"),
        pytest.param(((1,), (1,)), id="a demand too many"),
    ],
)
def test_cards_that_a_node_policy_may_not_take_are_never_charged(cards):
    nodes = arrays()
    query = ClusterPolicies().make_request(nodes, request(6), ONE_POD)
    policy = SimpleNamespace(epoch=0, score=None, choose_cards=lambda *_: cards)
    with pytest.raises(PolicyError, match="cards"):
        place_by_policy(policy, nodes, 0, query)
    policy.choose_cards = lambda *_: ((1,),)
    assert place_by_policy(policy, nodes, 0, query).charge == {1: 6}


def test_bind_refuses_and_takes_nothing():
    state = ClusterState()
    policies = ClusterPolicies("least-requested", "least-used")
    state.apply_node(node("n", (16, 16), (8, 0), version=2), 0)
    with broken(costs=lambda cards, _: [NAN] * len(cards)):
        state.apply_pod(pod("p", 8, version=3, annotations={"gpupack.io/card-policy": "broken"}), 0)
        with pytest.raises(CommitError, match=f"pod default/p: {NAMED}cost of card 0 for 8 units is nan"):
            Committer(state, policies).assume("default", "p", "uid-p", "n", 0)
    assert state.get_assumed("uid-p") is None
    assert state.nodes.assumed[0].sum() == 0


@pytest.mark.parametrize(
    ("scores", "what"),
    [
        pytest.param(lambda *_: np.array([NAN]), "score of a node is nan, of 1 nodes", id="nan"),
        pytest.param(lambda *_: np.zeros(2), r"scores of shape \(2,\) for 1 nodes", id="long"),
    ],
)
def test_scores_for_pods_without_cards_are_checked_too(scores, what):
    """All nodes got 0 in silence, or an index that does not exist."""
    state, policy = ClusterState(), SimpleNamespace(epoch=0, score=scores, ranks_plain_pods=True)
    state.apply_node(node("n", (16, 16), version=2), 0)
    plain = pod_object("p", containers=[{"name": "main", "resources": {}}])
    body = json.dumps({"Pod": plain, "NodeNames": ["n"]}).encode()
    with offered(NODE_POLICIES, odd=lambda _: policy):
        extender = Extender(state, ClusterPolicies("odd"), 16, rank_all_pods=True)
        with pytest.raises(PolicyError, match=what):
            extender.prioritize(body, 0)


@pytest.mark.parametrize("units", [(8,), (8, 4, 16)], ids=["one container", "several"])
def test_the_queue_holds_such_a_pod_says_why_and_goes_on_with_the_others(units):
    world = QueueWorld()
    world.node("n", (16, 16), (4, 0))
    many = [container(f"c{at}", each) for at, each in enumerate(units)]
    notes = {"gpupack.io/card-policy": "broken"}
    with broken(costs=lambda cards, _: [NAN] * len(cards)):
        uid = world.pod("p", containers=many, annotations=notes)
        world.pod("q", 3)
        assert world.admitted() == ["q"]
        found = status.explain_pod(world.queue, world.queue.queued_pods[uid], 0)
        assert (found.reason, found.message[: len(NAMED)]) == (status.WaitReason.REFUSED, NAMED)


def test_the_queue_says_no_more_what_another_policy_returned():
    """A pod that waits for room after the policy was replaced was refused in the words of the former one."""
    odd = SimpleNamespace(epoch=0, score=lambda _nodes, _query, rows: np.full(len(rows), NAN))
    with offered(NODE_POLICIES, odd=lambda _: odd):
        world = QueueWorld(policy="odd")
        world.node("n", (16, 16))
        uid = world.pod("p", 8)

        def reason():
            assert world.admitted() == []
            return status.explain_pod(world.queue, world.queue.queued_pods[uid], 0).reason

        assert reason() is status.WaitReason.REFUSED
        world.node("n", (16, 16), (16, 16))
        world.configure("queues: [{name: a}]\nnodePolicy: least-requested")
        assert reason() is status.WaitReason.ROOM


def test_a_pod_that_is_bound_is_served_by_the_default_policy():
    world = World.of(8, 8)
    bound = ledger_pod("a", 3)
    object.__setattr__(bound.request, "card_policy", "broken")
    with broken(costs=lambda cards, _: [NAN] * len(cards)):
        world.bind(bound)
        assert world.hand(3, "a") == {"c0": 3}
