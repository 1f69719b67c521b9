"""Questions that several parts of gpupack answer: they answer alike, because one rule has one home."""

import msgspec
import numpy as np
import pytest

from allocator.request import Demand
from gpupack.ask.groups import ORDER, WORDS
from gpupack.ask.hosts import Wish
from gpupack.ask.why import why
from scheduler_plugin.cluster.objects import Metadata
from scheduler_plugin.http.waiting import Refusal
from scheduler_plugin.placement.filtering import Misfit
from scheduler_plugin.placement.reasons import CLOSEST_FIRST, reason
from scheduler_plugin.queue.entering.pods import QueueNode, QueuePod, node_facts, node_rules
from scheduler_plugin.queue.places.labels import UNSCHEDULABLE
from tests.ask_world import Node, Pod, World


def allowed_by_queue(world, node, pod):
    facts = node_facts(msgspec.convert(world.node(node).object(world.pods), QueueNode))
    rules = node_rules(msgspec.convert(world.pod(pod).object(), QueuePod))
    return rules.allow(node, facts.labels, facts.taints, unschedulable=facts.unschedulable)


@pytest.mark.parametrize("tolerates", [(), (UNSCHEDULABLE.key,)], ids=["no-toleration", "toleration"])
@pytest.mark.parametrize(
    ("node", "found"),
    [
        (Node("n"), None),
        (Node("n", cordoned=True), "Cordoned"),
        (Node("n", taints=(UNSCHEDULABLE.key,)), "Taint"),
        (Node("n", cordoned=True, taints=(UNSCHEDULABLE.key,)), "Cordoned"),
    ],
    ids=["open", "cordoned", "taint-only", "both"],
)
def test_a_cordon_is_one_for_why_as_for_the_queue(node, found, tolerates):
    """The taint of a cordon without the cordon: `why` called the node open, the queue closed."""
    world = World((node,), (Pod("p", 8, tolerates=tolerates),))
    cluster = world.cluster
    blocks = cluster.hosts.blocks(Wish.of(cluster.find("default", "p")))

    assert (blocks["n"].reason if blocks else None) == (None if tolerates else found)
    assert allowed_by_queue(world, "n", "p") == (not blocks)
    answer = why(cluster, "default", "p")
    assert answer.fits == (() if blocks else ("n",))
    if not blocks:
        assert answer.state == "fits"
    elif found == "Taint":
        assert "the taint node.kubernetes.io/unschedulable:NoSchedule" in answer.nodes[0].text


def test_the_metric_of_waiting_pods_names_the_reason_that_stands_first_in_why():
    pairs = [(one, other) for one in CLOSEST_FIRST for other in CLOSEST_FIRST if one is not other]
    for pair in pairs:
        counts = dict.fromkeys(pair, 1)
        label = Refusal(Metadata("p"), counts, None, np.zeros(0, np.intp)).label
        first = min(pair, key=lambda misfit: ORDER.index(WORDS[misfit]))
        assert label == first.name.lower()


@pytest.mark.parametrize("misfit", [misfit for misfit in Misfit if misfit])
def test_every_reason_has_a_place_a_word_and_a_text(misfit):
    assert misfit in CLOSEST_FIRST
    assert ORDER.count(WORDS[misfit]) == 1
    assert reason(misfit, [Demand(("c",), 8, 1)], 1024)
