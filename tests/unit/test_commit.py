import json
from typing import Any

import pytest

from allocator.names import COMPUTE_RESOURCE, POD_ASSIGNED
from scheduler_plugin.binding.committer import Committer, PendingBinding
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from tests.cluster_builders import container, node, pod, pod_object, uuid


class World:
    def __init__(self, policy: str = "least-requested") -> None:
        self.state = ClusterState()
        self.policies = ClusterPolicies(policy, "least-used")
        self.committer = Committer(self.state, self.policies)
        self.state.apply_node(node("n", (16, 16), (8, 0), version=2), 0)
        self.state.apply_pod(pod("p", 8, version=3), 0)

    def begin(self, name: str = "p", node_name: str = "n", *, uid: str | None = None) -> PendingBinding:
        return self.committer.assume("default", name, uid or f"uid-{name}", node_name, 0)

    def assumed(self) -> list[int]:
        return self.state.nodes.assumed[self.state.nodes.rows["n"], :2].tolist()


@pytest.fixture
def world() -> World:
    return World()


def test_the_card_is_taken_at_once(world: World) -> None:
    made = world.begin()
    assert cards_of(made) == {"main": [[uuid("n", 1), 8]]}
    assert made.pod.resource_version == "3"
    assert made.node == "n"
    assert world.assumed() == [0, 8]
    assert world.state.get_assumed("uid-p") is made.assumed


def cards_of(made: PendingBinding) -> Any:
    assert made.assigned is not None
    return json.loads(made.assigned)


def test_the_next_pod_sees_it_taken(world: World) -> None:
    world.state.apply_pod(pod("q", 12, version=4), 0)
    world.begin()
    with pytest.raises(CommitError, match="node n changed since the filter and the pod no longer fits"):
        world.begin("q")


def test_a_node_whose_device_plugin_ended_since_the_filter_is_refused(world: World) -> None:
    world.state.apply_node(node("n", (16, 16), (8, 0), version=5, allocatable_units=0), 0)
    with pytest.raises(CommitError, match="no longer fits: the node's kubelet has no gpupack device plugin"):
        world.begin()
    world.state.apply_node(node("n", (16, 16), (8, 0), version=6, allocatable_units=32), 0)
    assert world.begin().node == "n"


def test_the_cards_that_the_queue_planned(world: World) -> None:
    """Taken while they are free: otherwise pods released together would not fit in every order."""
    for name, version in (("q", 4), ("r", 5)):
        planned = {"gpupack.io/planned": f"{uuid('n', 0)},rubbish"}
        world.state.apply_pod(pod(name, 8, version=version, annotations=planned), 0)
    first, second = world.begin("q"), world.begin("r")
    assert (first.assigned, second.assigned) == (
        f'{{"main":[["{uuid("n", 0)}",8]]}}',
        f'{{"main":[["{uuid("n", 1)}",8]]}}',
    )


def test_the_cluster_s_and_the_pod_s_card_policy(world: World) -> None:
    world.state.apply_pod(pod("q", 4, version=4, annotations={"gpupack.io/card-policy": "most-used"}), 0)
    assert cards_of(world.begin("q")) == {"main": [[uuid("n", 0), 4]]}


def test_a_node_policy_that_does_not_exist_is_refused_in_the_words_of_filter(world: World) -> None:
    annotations = {"gpupack.io/node-policy": "nowhere"}
    world.state.apply_pod(pod("q", 4, version=4, annotations=annotations), 0)
    why = 'annotation gpupack.io/node-policy is "nowhere"; allowed: ' + NODE_POLICIES.allowed
    with pytest.raises(CommitError, match=f"pod default/q: {why}$"):
        world.begin("q")
    assert world.assumed() == [0, 0]
    extender = Extender(world.state, world.policies, 16)
    body = {"Pod": pod_object("q", 4, annotations=annotations), "NodeNames": ["n"]}
    answer = json.loads(extender.filter(json.dumps(body).encode(), 0).answer)
    (said,) = answer["FailedAndUnresolvableNodes"].values()
    assert said == why


def test_several_containers_and_cards(world: World) -> None:
    two = {"gpupack.io/cards": "2"}
    containers = [container("x", 8), container("y", 4)]
    world.state.apply_pod(pod("q", version=4, containers=containers, annotations=two), 0)
    assert cards_of(world.begin("q")) == {
        "x": [[uuid("n", 1), 4], [uuid("n", 0), 4]],
        "y": [[uuid("n", 1), 2], [uuid("n", 0), 2]],
    }
    assert world.assumed() == [6, 6]


def test_a_node_that_changed_since_the_filter_gives_what_it_has_now(world: World) -> None:
    world.state.apply_node(node("n", (16, 16), (0, 9), version=5), 0)
    assert cards_of(world.begin()) == {"main": [[uuid("n", 0), 8]]}


def test_a_pod_of_another_shape_that_asks_for_as_much_is_bound_beside_one_that_starts(world: World) -> None:
    other = {"gpupack.io/gpu-uuid": "*", POD_ASSIGNED: json.dumps({"main": [[uuid("n", 0), 8]]})}
    world.state.apply_pod(pod("q", 8, version=4, node="n", annotations=other), 0)
    assert cards_of(world.begin()) == {"main": [[uuid("n", 1), 8]]}
    assert world.assumed() == [8, 8]


def test_a_node_without_inventory_binds_without_naming_cards(world: World) -> None:
    world.state.apply_node(node("n", (16, 16), (8, 0), version=5, inventory=False), 0)
    made = world.begin()
    assert made.assigned is None
    assert world.assumed() == [8, 8]


def test_a_pod_that_does_not_ask_is_bound_plainly(world: World) -> None:
    world.state.apply_pod(pod("q", version=4, containers=[{"name": "c"}]), 0)
    made = world.begin("q", "some-other-node")
    assert made.assumed is None
    assert made.assigned is None
    assert world.assumed() == [0, 0]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("unknown", r"pod default/p \(UID uid-x\) is not in the gpupack scheduler's cache yet"),
        ("renamed", "is default/p in the gpupack scheduler's cache"),
        ("bound", "is bound to node n already"),
        ("ended", "has ended"),
        ("under way", "has a Binding to node n under way"),
        ("no node", "node m is not known"),
        ("no words", "no longer fits: no gpupack words on the node"),
        ("full", "no longer fits: no card with 8 GiB free"),
        ("annotation", "pod default/p: annotation gpupack.io/cards"),
        ("compute alone", 'pod default/p: container "c" asks for gpupack.io/gpu-compute-percent: 30 alone'),
    ],
)
def test_refusals_in_words(world: World, case: str, message: str) -> None:
    state = world.state
    match case:
        case "bound":
            state.apply_pod(pod("p", 8, version=4, node="n"), 0)
        case "ended":
            state.apply_pod(pod("p", 8, version=4, phase="Failed"), 0)
        case "under way":
            world.begin()
        case "no words":
            state.apply_node(node("n", None, version=5), 0)
        case "full":
            state.apply_node(node("n", (16, 16), (9, 9), version=5), 0)
        case "annotation":
            state.apply_pod(pod("p", 8, version=4, annotations={"gpupack.io/cards": "x"}), 0)
        case "compute alone":
            alone = [{"name": "c", "resources": {"limits": {COMPUTE_RESOURCE: "30"}}}]
            state.apply_pod(pod("p", version=4, containers=alone), 0)
    before = world.assumed()
    with pytest.raises(CommitError, match=message):
        world.begin(
            "other" if case == "renamed" else "p",
            "m" if case == "no node" else "n",
            uid="uid-x" if case == "unknown" else "uid-p",
        )
    assert world.assumed() == before


def test_a_requeued_pod_is_not_bound(world: World) -> None:
    """Also where kube-scheduler has asked before it was requeued."""
    world.state.apply_pod(pod("q", 8, version=4, annotations={"gpupack.io/requeued": "true"}), 0)
    with pytest.raises(CommitError, match="it was requeued: it waits in its queue again"):
        world.begin("q")
    assert world.assumed() == [0, 0]
