"""Batch mode: what is released together, and what becomes of it."""

import random

import pytest

from allocator.names import POD_PLANNED
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.commit.committer import Committer
from scheduler_plugin.placement.cluster_policies import Policies
from scheduler_plugin.queue.controller import planned
from scheduler_plugin.queue.writing import release_patch
from tests.cluster_builders import node, pod
from tests.queue_world import QueueWorld

SIZES = (80,) * 4


@pytest.mark.parametrize("seed", range(5))
def test_what_is_released_is_bound_in_any_order(seed: int) -> None:
    """kube-scheduler binds in parallel; the extender chooses the cards then, and does so as planned."""
    rng = random.Random(seed)
    world = QueueWorld("mode: batch\nqueues: [{name: a}]", "fragmentation")
    state = ClusterState()
    for name in ("n", "m"):
        world.node(name, SIZES)
        state.apply_node(node(name, SIZES, version=1), 0)
    units = {
        world.pod(f"p{at}", size): (f"p{at}", size)
        for at in range(60)
        for size in [rng.choice((10, 20, 24, 40))]
    }
    members = [member for release in world.decide() for member in release.members]
    assert len(members) > 8
    plans = {member.uid: ",".join(planned(world.queue, member.uid)) for member in members}
    committer = Committer(state, Policies("fragmentation"))
    rng.shuffle(members)
    for version, member in enumerate(members, start=2):
        name, size = units[member.uid]
        state.apply_pod(pod(name, size, version=version, annotations={POD_PLANNED: plans[member.uid]}), 0)
        committer.begin("default", name, member.uid, member.node, 0)


def test_a_first_annotation_replaces_none_that_was_not_seen() -> None:
    world = QueueWorld("mode: batch\nqueues: [{name: a}]")
    bare, noted = world.pod("p"), world.pod("q", annotations={"mine": "1"})
    paths = {
        uid: [step["path"] for step in release_patch(world.queue.entries[uid], "n", ["GPU-1"])]
        for uid in (bare, noted)
    }
    assert paths[bare][-2:] == ["/metadata/resourceVersion", "/metadata/annotations"]
    assert paths[noted][-1] == "/metadata/annotations/gpupack.io~1planned"
