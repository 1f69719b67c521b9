"""Pods that ask for percent of a card, in the extender: filter, scores, cards, claims and preemption."""

import json
from typing import Any

import numpy as np
import pytest

from allocator.names import PERCENT_RESOURCE, POD_ASSIGNED
from allocator.request import ContainerRequest, PodRequest
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy, score_nodes
from scheduler_plugin.scheduling.policies.registry import NODE_POLICIES, CardDemand
from scheduler_plugin.scheduling.reasons import FilterReason
from scheduler_plugin.scheduling.request import make_learning_request
from tests.cluster_builders import in_percent, node, pod, pod_object, uuid
from tests.extender_world import World


def share(*percent: int, cards: int = 1) -> PodRequest:
    containers = (ContainerRequest(f"c{i}", each * cards, "main") for i, each in enumerate(percent))
    return PodRequest(tuple(containers), cards, percent=True)


def asking(name: str, percent: int, **more: Any) -> dict[str, object]:
    return pod_object(name, containers=[in_percent(percent)], **more)


@pytest.fixture
def cluster() -> tuple[NodeArrays, RowArray]:
    """A node of two sizes, one of H100s, one of T4s, all half full, and an empty one of A100s."""
    nodes = NodeArrays()
    for name, sizes in (("both", (79, 14)), ("h100", (79, 79)), ("t4", (14, 14)), ("a100", (39, 39))):
        row = nodes.add_node(name)
        used = [0 if name == "a100" else size // 2 for size in sizes]
        nodes.set_cards(row, sizes, used, uuids=[uuid(name, card) for card in range(2)])
    return nodes, np.array([nodes.rows[name] for name in ("both", "h100", "t4", "a100")], dtype=np.intp)


def test_a_share_fits_by_each_cards_own_size(cluster) -> None:
    nodes, rows = cluster

    def fits(request: PodRequest) -> list[bool]:
        return filter_nodes(nodes, ClusterPolicies().make_request(nodes, request, ONE_POD), rows).tolist()

    assert fits(share(50)) == [True, True, True, True]
    # 52 percent of 14 units is 7, of 79 units 41, and 40 are free.
    assert fits(share(52)) == [True, False, True, True]
    assert fits(share(58)) == [False, False, False, True]
    assert fits(share(100)) == [False, False, False, True]
    assert fits(share(50, cards=2)) == [True, True, True, True]
    assert fits(share(100, cards=2)) == [False, False, False, True]
    assert fits(share(40, 40)) == [True, True, True, True]
    assert fits(share(40, 40, 40)) == [False, False, False, True]


def test_why_a_share_does_not_fit(cluster) -> None:
    nodes, rows = cluster
    found = explain_rejections(nodes, ClusterPolicies().make_request(nodes, share(100), ONE_POD), rows[:3])
    assert found.tolist() == [FilterReason.NOT_FREE] * 3
    (tiny,) = explain_rejections(nodes, ClusterPolicies().make_request(nodes, share(1), ONE_POD), rows[2:3])
    assert tiny == FilterReason.TOO_SMALL  # 0.14 units


@pytest.mark.parametrize("name", sorted(NODE_POLICIES.names()))
@pytest.mark.parametrize("card_policy", ["least-used", "fragmentation"])
def test_every_policy_is_asked_in_units_and_its_cards_have_room(cluster, name: str, card_policy: str) -> None:
    nodes, rows = cluster
    policies = ClusterPolicies(name, card_policy)
    for request in (share(50), share(25, cards=2), share(30, 20), share(100)):
        query = policies.make_request(nodes, request, ONE_POD)
        policy = policies.get_policy(request)
        fits = rows[filter_nodes(nodes, query, rows)]
        scores = score_nodes(policy, nodes, query, fits)
        assert np.isfinite(scores).any()
        for row in fits.tolist():
            placement = place_by_policy(policy, nodes, row, query)
            assert placement is not None
            assert all(units <= nodes.free[row, card] for card, units in placement.charge.items())


def test_on_cards_of_one_size_a_share_scores_as_its_units_do(cluster) -> None:
    nodes, rows = cluster
    units = PodRequest((ContainerRequest("c0", 39, "main"),))
    for name in NODE_POLICIES.names():
        for row in rows[1:2], rows[3:4]:
            asked = [ClusterPolicies(name), share(50)], [ClusterPolicies(name), units]
            as_share, as_units = (
                score_nodes(
                    policies.get_policy(each), nodes, policies.make_request(nodes, each, ONE_POD), row
                )
                for policies, each in asked
            )
            if nodes.size[row[0], 0] == 79:
                assert as_share.tolist() == as_units.tolist()


def test_policies_learn_units_of_the_cards_there_are(cluster) -> None:
    nodes, rows = cluster
    query = ClusterPolicies().make_request(nodes, share(50), ONE_POD)
    assert make_learning_request(nodes, query, rows[1:2]).demands == (CardDemand(39, 1),)
    assert make_learning_request(nodes, query, rows[:0]).demands in {
        (CardDemand(39, 1),),
        (CardDemand(7, 1),),
    }


def test_a_bound_share_counts_until_its_node_holds_it() -> None:
    state = ClusterState()
    state.apply_node(node("n", (44, 44), version=1), 0)
    assigned = {POD_ASSIGNED: json.dumps({"main": [[uuid("n", 1), 22]]})}
    bound = pod("p", containers=[in_percent(50)], node="n", version=2, annotations=assigned)
    state.apply_pod(bound, 0)
    row = state.nodes.rows["n"]
    assert state.nodes.free[row, :2].tolist() == [44, 22]
    # Not what the annotation says, but what the share costs: and where it cannot be true, on every card.
    lies = {POD_ASSIGNED: json.dumps({"main": [[uuid("n", 1), 1]]})}
    state.apply_pod(pod("p", containers=[in_percent(50)], node="n", version=3, annotations=lies), 0)
    assert state.nodes.free[row, :2].tolist() == [22, 22]
    state.apply_node(node("n", (44, 44), (0, 22), version=4, holds=["uid-p"]), 0)
    assert state.nodes.free[row, :2].tolist() == [44, 22]


def test_the_committer_takes_the_units_of_the_card_it_chose() -> None:
    state = ClusterState()
    state.apply_node(node("n", (79, 14), (40, 0), version=1), 0)
    state.apply_pod(pod("p", containers=[in_percent(100)], version=2), 0)
    commitment = Committer(state, ClusterPolicies()).assume("default", "p", "uid-p", "n", 0)
    assert json.loads(commitment.assigned or "") == {"main": [[uuid("n", 1), 14]]}
    assert state.nodes.free[state.nodes.rows["n"], :2].tolist() == [39, 0]


def test_reasons_name_the_share() -> None:
    world = World()
    world.node("n", (44, 44), (44, 23))
    refused = world.filter(asking("p", 50))
    assert refused["FailedNodes"] | refused["FailedAndUnresolvableNodes"] == {
        "n": "no card with 50 percent free"
    }
    world.node("n", (44, 44), (44, 22))
    assert world.filter(asking("p", 50))["NodeNames"] == ["n"]
    both = pod_object("q", containers=[in_percent(50), *pod_object("x", 8)["spec"]["containers"]])  # type: ignore[index]
    (text,) = set(world.filter(both)["FailedAndUnresolvableNodes"].values())
    assert "allowed: one of the two in a pod" in text


def test_a_kubelet_without_percent_takes_units_only() -> None:
    state = ClusterState()
    lite = node("n", (44,), version=1)
    lite.status.allocatable[PERCENT_RESOURCE] = "0"  # type: ignore[index]
    state.apply_node(lite, 0)
    rows = np.array([state.nodes.rows["n"]], dtype=np.intp)
    policies = ClusterPolicies()
    query = policies.make_request(state.nodes, share(50), ONE_POD)
    assert not filter_nodes(state.nodes, query, rows).any()
    assert explain_rejections(state.nodes, query, rows).tolist() == [FilterReason.NO_PLUGIN]
    assert place_by_policy(policies.get_policy(query.request), state.nodes, int(rows[0]), query) is None
    units = PodRequest((ContainerRequest("main", 8, "main"),))
    assert filter_nodes(state.nodes, policies.make_request(state.nodes, units, ONE_POD), rows).all()


def test_percent_and_units_of_one_number_do_not_wait_for_each_other() -> None:
    world = World()
    world.node("n", (79, 79))
    bound = pod("b", 30, node="n", version=9, annotations={"gpupack.io/gpu-model": "*"})
    world.state.apply_pod(bound, 0)
    assert world.filter(asking("p", 30))["NodeNames"] == ["n"]


def test_preemption_frees_a_whole_card_from_shares() -> None:
    world = World()
    for name, card, priority in (("a", 0, 1), ("b", 1, 2)):
        world.state.apply_pod(
            pod(
                name,
                containers=[in_percent(50)],
                node="n",
                version=2,
                annotations={POD_ASSIGNED: json.dumps({"main": [[uuid("n", card), 22]]})},
                spec={"priority": priority},
            ),
            0,
        )
    world.node("n", (44, 44), (22, 22), holds=["uid-a", "uid-b"])
    body = {
        "Pod": asking("p", 100, spec={"priority": 10}),
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "uid-b"}], "NumPDBViolations": 0}},
    }
    answer = json.loads(world.extender.preempt(json.dumps(body).encode(), 0))
    assert [each["UID"] for each in answer["NodeNameToMetaVictims"]["n"]["Pods"]] == ["uid-b"]


def test_cards_that_differ_are_scored_by_the_card_that_the_pod_gets() -> None:
    nodes = NodeArrays()
    row = nodes.add_node("n")
    nodes.set_cards(row, (79, 14), (0, 0), uuids=("a", "b"))
    policies = ClusterPolicies("best-fit", "most-used")
    query = policies.make_request(nodes, share(100), ONE_POD)
    scores = score_nodes(policies.get_policy(query.request), nodes, query, np.array([row], dtype=np.intp))
    assert np.isfinite(scores).all()
    placement = place_by_policy(policies.get_policy(query.request), nodes, row, query)
    assert placement is not None
    assert placement.charge in ({0: 79}, {1: 14})
