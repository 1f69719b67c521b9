"""Questions that several parts of gpupack answer: they answer alike, because one rule has one home."""

import itertools

import msgspec
import numpy as np
import pytest

from allocator.names import NODE_HOLDS, POD_ALLOCATION, POD_ASSIGNED
from allocator.records import Holds, dump_allocation, dump_assigned, dump_holds
from gpupack.api import rank
from gpupack.diagnose.evictions import can_start_without
from gpupack.diagnose.why import explain_pod
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import HostRequirements
from gpupack.whatif.node_results import ORDER
from gpupack.whatif.what_if import PodCardUsage, WhatIf
from kubeapi import objects
from kubeapi.objects import ObjectMeta
from kubeapi.selectors import UNSCHEDULABLE
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.extender.unschedulable_pods import UnschedulablePod
from scheduler_plugin.preemption.node_victims import view_node
from scheduler_plugin.scheduling.node_fit import can_run_on
from scheduler_plugin.scheduling.reasons import FilterReason
from tests.ask_world import Node, Pod, World
from tests.cluster_builders import node_object, pod_object, uuid
from tests.queue_world import QueueWorld


def allowed_by_queue(world, node, pod):
    facts = msgspec.convert(world.node(node).object(world.pods), objects.Node).traits
    rules = msgspec.convert(world.pod(pod).object(), objects.Pod).spec.node_rules
    return can_run_on(facts, rules)


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
    blocks = cluster.kube_checks.find_rejections(HostRequirements.from_pod(cluster.find_pod("default", "p")))

    assert (blocks["n"].reason if blocks else None) == (None if tolerates else found)
    assert allowed_by_queue(world, "n", "p") == (not blocks)
    answer = explain_pod(cluster, "default", "p")
    assert answer.fits == (() if blocks else ("n",))
    if not blocks:
        assert answer.state == "fits"
    elif found == "Taint":
        assert "the taint node.kubernetes.io/unschedulable:NoSchedule" in answer.nodes[0].text


def test_the_metric_of_waiting_pods_names_the_reason_that_stands_first_in_why():
    for pair in itertools.permutations(FilterReason, 2):
        label = UnschedulablePod(ObjectMeta("p"), dict.fromkeys(pair, 1), None, np.zeros(0, np.intp)).label
        first = min(pair, key=lambda reason: ORDER.index(reason.json_name))
        assert label == first.metric_label


def test_the_end_of_a_pod_frees_no_more_of_a_card_that_became_smaller_than_others_leave():
    """Words stop at a card's size: 6 and 1 units on one of 4 were 4, of which the end of the 6 freed all."""
    units = {"uid-large": {0: 6}, "uid-small": {0: 1}}
    holds = {NODE_HOLDS: dump_holds(Holds(1, frozenset(units), units))}
    pods = [Pod("large", 6, "n", (0,)), Pod("small", 1, "n", (0,))]
    waiting = Pod("w", 4, priority=1)
    made = [node_object("n", (4,), (4,), extra=holds) | {"kind": "Node"}]
    cluster = Cluster.from_json(
        msgspec.json.encode({"items": made + [pod.object() for pod in (*pods, waiting)]})
    )
    state = cluster.state
    record = state.pods["uid-w"]
    query = cluster.policies.make_request(state.nodes, record.request, ONE_POD)
    room = view_node(state, "n", query)
    trial = WhatIf(cluster, query, HostRequirements.from_pod(cluster.find_pod("default", "w")))

    def left(*names):
        return [
            card.size_units - card.used_units
            for card in room.get_cards_without([f"uid-{name}" for name in names])
        ]

    assert left("large") == [3]
    assert left("large", "small") == [4]
    ends = [state.pods["uid-large"], state.pods["uid-small"]]
    assert not can_start_without(trial, PodCardUsage(cluster), "n", ends[:1])
    assert can_start_without(trial, PodCardUsage(cluster), "n", ends)
    assert state.nodes.free[state.nodes.rows["n"]].tolist()[:1] == [0]


@pytest.mark.parametrize(("offered", "fits"), [(None, False), (8, False), (12, True)])
def test_the_queue_counts_a_nodes_sum_as_kube_scheduler_and_why_do(offered, fits):
    """A pod on an unhealthy card counts against the units of the others, which the kubelet still offers."""
    world = QueueWorld()
    about = {"healthy": (False, True), "allocatable_units": offered, "holds": ("uid-sick",)}
    world.node("n", (8, 8), (8, 0), **about)
    shares = {POD_ASSIGNED: dump_assigned({"main": ((uuid("n", 0), 6),)})}
    sick = pod_object("sick", 6, node="n", annotations=shares, version=5)
    world.state.apply_pod(msgspec.convert(sick, objects.Pod), 0.0)
    waiting = world.pod("w", 5)

    entry = world.queue.queued_pods[waiting]
    assert world.queue.capacity.mask_fits(entry.requirements).any() == fits
    assert (world.admitted() == ["w"]) == fits
    items = [
        sick | {"kind": "Pod"},
        Pod("w", 5).object(),
        node_object("n", (8, 8), (8, 0), **about) | {"kind": "Node"},
    ]
    cluster = Cluster.from_json(msgspec.json.encode({"items": items}))
    assert explain_pod(cluster, "default", "w").fits == (("n",) if fits else ())
    assert [name for name, _ in rank(cluster, 5)] == (["n"] if fits else [])


def test_a_pod_is_where_it_is_charged_until_the_words_say_where_it_is():
    """Its node has given it another card, as where the assigned one was lost; its words are late.

    Preemption reckoned with 6 units that the end of the pod frees of a card on which it is not charged, and
    named it in vain. `top` showed it there, beside totals that were without it.
    """
    given = {"main": ((uuid("n", 1), 6),)}
    shares = {POD_ASSIGNED: dump_assigned({"main": ((uuid("n", 0), 6),)})}
    shares |= {POD_ALLOCATION: dump_allocation("uid-p", given)}
    moved = pod_object("p", 6, node="n", phase="Running", annotations=shares) | {"kind": "Pod"}
    made = node_object("n", (8, 8), (0, 7)) | {"kind": "Node"}
    cluster = Cluster.from_json(msgspec.json.encode({"items": [made, moved, Pod("w", 8).object()]}))
    state = cluster.state
    query = cluster.policies.make_request(state.nodes, state.pods["uid-w"].request, ONE_POD)

    room = view_node(state, "n", query)
    assert room.freed["uid-p"] == {0: (6, 0)}
    assert [card.size_units - card.used_units for card in room.get_cards_without(["uid-p"])] == [8, 1]
    (row,) = cluster.build_inventory()
    assert [card.in_use_units for card in row.cards] == [6, 7]
    assert [[pod.units for pod in card.pods] for card in row.cards] == [[6], []]
