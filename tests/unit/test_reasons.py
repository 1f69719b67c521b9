from dataclasses import replace

import numpy as np
import pytest

from allocator.quantity import format_memory
from allocator.request import ContainerRequest, Demand, PodRequest
from allocator.selector import Selector
from gpupack.whatif.kube_checks import HostRequirements
from gpupack.whatif.node_results import ORDER, _Sentences
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.extender.metrics import _REASONS
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes
from scheduler_plugin.scheduling.node_fit import Rejection
from scheduler_plugin.scheduling.reasons import Cure, FilterReason, format_event_text
from tests.ask_world import Node, Pod, World

ONE = (Demand((), 8, 1),)
TWO = (Demand((), 4, 2),)
COMPUTE = (Demand((), 8, 1, compute=30),)
MANY = (Demand((), 8, 1), Demand((), 4, 2))


@pytest.mark.parametrize(
    ("units", "unit_mib", "text"),
    [(8, 1024, "8 GiB"), (3, 512, "1536 MiB"), (4, 512, "2 GiB"), (1, 100, "100 MiB")],
)
def test_memory(units: int, unit_mib: int, text: str) -> None:
    assert format_memory(units, unit_mib) == text


@pytest.mark.parametrize(
    ("misfit", "demands", "text"),
    [
        (FilterReason.NOT_FREE, ONE, "no card with 8 GiB free"),
        (FilterReason.NOT_FREE, COMPUTE, "no card with 8 GiB and 30 percent of compute free"),
        (
            FilterReason.COMPUTE_NOT_FREE,
            COMPUTE,
            "no card with 8 GiB and 30 percent of compute free: compute is short",
        ),
        (FilterReason.NO_COMPUTE, COMPUTE, "no compute of its cards published by the node"),
        (FilterReason.NOT_FREE, TWO, "no 2 cards with 4 GiB free each"),
        (FilterReason.NOT_FREE, MANY, "no cards with 8 GiB + 2 x 4 GiB free"),
        (FilterReason.TOO_SMALL, ONE, "no healthy card of 8 GiB or more"),
        (FilterReason.TOO_SMALL, TWO, "no 2 healthy cards of 4 GiB or more"),
        (FilterReason.TOO_SMALL, MANY, "no healthy cards that hold 8 GiB + 2 x 4 GiB together"),
        (FilterReason.NOT_ADMITTED, ONE, "no card that the pod's gpu-model and gpu-uuid admit"),
        (FilterReason.NOT_ADMITTED, TWO, "no 2 cards that the pod's gpu-model and gpu-uuid admit"),
        (FilterReason.NOT_ADMITTED, MANY, "no cards that the pod's gpu-model and gpu-uuid admit"),
    ],
)
def test_reasons_name_the_request(misfit: FilterReason, demands: tuple[Demand, ...], text: str) -> None:
    assert format_event_text(misfit, demands, 1024) == text


@pytest.mark.parametrize("reason", list(FilterReason))
def test_every_reason_is_whole(reason: FilterReason) -> None:
    """A member alone gives a text, a sentence, a place in the order of `why`, a label of metrics, cures."""
    assert format_event_text(reason, ONE, 1024)
    cluster = World((Node("n", (16,)),), (Pod("p", 8),)).cluster
    pod = cluster.find_pod("default", "p")
    query = cluster.make_query(cluster.state.pods[pod.metadata.uid].request, HostRequirements.from_pod(pod))
    sentences = _Sentences(cluster, query)
    assert sentences.explain(Rejection(reason.json_name), cluster.rows, None, 0)
    assert ORDER.count(reason.json_name) == 1
    assert reason.metric_label in _REASONS
    assert reason.cures
    assert len(set(reason.cures)) == len(reason.cures)


def make_nodes(used: tuple[int, ...]) -> NodeArrays:
    """Node n with two cards of one model and one of another, and a node with a card of a third model."""
    nodes = NodeArrays()
    n = nodes.add_node("n")
    nodes.set_cards(n, (16, 16, 16), used, uuids=["GPU-0", "GPU-1", "GPU-2"], models=["A100", "A100", "L40S"])
    nodes.set_cards(nodes.add_node("other"), (16,), (16,), uuids=["GPU-3"], models=["T4"])
    return nodes


def fits(nodes: NodeArrays, asked: PodRequest) -> bool:
    query = ClusterPolicies().make_request(nodes, asked, ONE_POD)
    return bool(filter_nodes(nodes, query, np.array([nodes.rows["n"]]))[0])


def request(units: int, cards: int = 1, model: str = "") -> PodRequest:
    asked = PodRequest((ContainerRequest("main", units * cards, "main"),), cards=cards)
    return replace(asked, selector=Selector.parse(model, None)) if model else asked


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(8), FilterReason.NOT_FREE),
        (request(4, cards=2), FilterReason.CARD_RULES),
        (request(17), FilterReason.TOO_SMALL),
        (request(1, model="T4"), FilterReason.NOT_ADMITTED),
        (request(1, model="H900"), FilterReason.NO_SUCH_CARD),
    ],
)
def test_what_cures_a_reason_of_the_cards_does(asked: PodRequest, reason: FilterReason) -> None:
    full, emptied = make_nodes((16, 12, 12)), make_nodes((0, 0, 0))
    query = ClusterPolicies().make_request(full, asked, ONE_POD)
    assert not fits(full, asked)
    assert explain_rejections(full, query, np.array([full.rows["n"]])).tolist() == [reason]
    assert fits(emptied, asked) == (Cure.PODS_END in reason.cures)
    assert fits(full, request(1)) == (Cure.OTHER_REQUEST in reason.cures)


@pytest.mark.parametrize("reason", [reason for reason in FilterReason if reason.exclusion])
def test_no_end_of_pods_cures_the_exclusion_of_a_node(reason: FilterReason) -> None:
    emptied, asked = make_nodes((0, 0, 0)), request(1)
    emptied.exclude_row(emptied.rows["n"], Exclusion(reason.exclusion or 0))
    query = ClusterPolicies().make_request(emptied, asked, ONE_POD)
    assert explain_rejections(emptied, query, np.array([emptied.rows["n"]])).tolist() == [reason]
    assert not fits(emptied, asked)
    assert Cure.PODS_END not in reason.cures


def test_every_exclusion_of_a_node_has_one_reason() -> None:
    found = [reason.exclusion for reason in FilterReason if reason.exclusion is not None]
    assert sorted(found) == sorted(exclusion for exclusion in Exclusion if exclusion)


def test_texts_tell_reasons_apart() -> None:
    texts = [format_event_text(reason, ONE, 1024) for reason in FilterReason]
    assert len(set(texts)) == len(texts) == len(FilterReason)
