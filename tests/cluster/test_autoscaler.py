"""The real Cluster Autoscaler, kube-scheduler, extender and `gpupack autoscale` on one API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupack.autoscale.shape_formats import write_shapes
from gpupack.autoscale.shapes import read_shapes
from tests.cluster.harness import Cluster, binaries, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.autoscaled import AutoscaledCluster, start_scheduling
from tests.cluster.harness.autoscaler import LOOP_S, Cloud, ClusterAutoscaler, Group
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import Autoscale
from tests.cluster.harness.polling import holds_for

SHAPES = """
shapes:
  - name: two
    cards: [{count: 2, model: NVIDIA A100, mib: 81920}]
    cpu: "64"
    memory: 256Gi
    labels: {node.kubernetes.io/instance-type: two}
"""


class World(AutoscaledCluster):
    """Everything together, on an empty cluster."""

    def __init__(self, cluster: Cluster, folder: Path, *groups: Group, **flags: str) -> None:
        super().__init__(cluster, "kubernetes.io/hostname")
        cloud_port, port = free_ports(2)
        self.cloud = Cloud(cluster.api, list(groups), folder, cloud_port)
        self.autoscaler = ClusterAutoscaler(
            cluster.control.admin_config, self.cloud, cluster.control.log_dir, **flags
        )
        shapes = folder / "shapes.yaml"
        shapes.write_text(SHAPES)
        arguments = ("--grace-s", "1", "--namespace", "default", "--shapes", str(shapes))
        self.ours = Autoscale(cluster.control.admin_config, cluster.control.log_dir, port, *arguments)

    def stop(self) -> None:
        self.ours.kill()
        self.autoscaler.kill()
        self.cluster.delete_pods()
        self.cloud.stop()

    def loops_between_placeholder_and_plan(self) -> int:
        """Loops of Cluster Autoscaler from the first that sees a placeholder to that which adds a node."""
        lines = self.autoscaler.said("")
        first = next(at for at, line in enumerate(lines) if "gpupack-placeholder" in line)
        plan = next(at for at, line in enumerate(lines) if "Final scale-up plan" in line)
        return 1 + sum("Starting main loop" in line for line in lines[first:plan])

    def settled(self, loops: int = 5) -> None:
        """Nothing more is bought in some loops, and no placeholder stays."""
        until(lambda: not self.placeholders(), "no placeholder left")
        bought = self.cloud.bought()
        holds_for(lambda: self.cloud.bought() == bought and not self.placeholders(), "quiet", loops * LOOP_S)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    binaries.skip_without_autoscaler()


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    return make_cluster(w.cards(8192), with_node=False, start=start_scheduling)


@pytest.fixture
def make_world(cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    worlds: list[World] = []

    def make(*groups: Group, **flags: str) -> World:
        worlds.append(World(cluster, tmp_path, *groups, **flags))
        return worlds[-1]

    yield make
    for world in worlds:
        world.stop()


def test_a_pod_that_fits_by_the_sum_alone_gets_one_node(make_world) -> None:
    """Two cards with 20 GiB free each; the new node is Ready a while before its cards are published."""
    world = make_world(Group("two", words=3.0 * LOOP_S))
    world.cloud.add("two")
    until(world.cloud.usable, "the first node")
    for name in ("a", "b"):
        world.create(name, 60)
    world.wait_bound("a", "b")
    world.create("waits", 40)
    world.autoscaler.start()
    until(lambda: world.autoscaler.said("default/waits can be moved to"), "Cluster Autoscaler is blind")
    assert world.cloud.bought() == 0
    world.ours.start()
    world.wait_bound("waits")
    assert world.node_of("waits") not in {world.node_of("a"), ""}
    world.settled()
    assert world.cloud.bought() == 1
    assert world.loops_between_placeholder_and_plan() <= 2


def test_ten_pods_of_50_on_nodes_of_two_cards_of_80_get_five_nodes_from_none(make_world) -> None:
    world = make_world(Group("two"))
    names = [f"p{number}" for number in range(10)]
    for name in names:
        world.create(name, 50)
    world.ours.start()
    world.autoscaler.start()
    world.wait_bound(*names)
    world.settled()
    assert world.cloud.bought() == 5


@pytest.mark.nightly
def test_while_a_node_with_the_startup_taint_starts_no_second_one_is_bought(make_world) -> None:
    """Its daemon takes three loops of Cluster Autoscaler; without the taint each buys a node."""
    world = make_world(Group("two", words=3.0 * LOOP_S))
    world.create("one", 60)
    world.autoscaler.start()
    world.wait_bound("one")
    world.settled()
    assert world.cloud.bought() == 1


@pytest.mark.nightly
def test_a_node_whose_daemon_never_comes_up_is_replaced(make_world) -> None:
    """Its startup taint stays: in the end it counts as not ready, and is given back."""
    never = Group("two", words=float("inf"))
    times = {"max_node_startup_time": "15s", "scale_down_unready_time": "10s", "ok_total_unready_count": "9"}
    world = make_world(never, **times)
    world.create("one", 60)
    world.ours.start()
    world.autoscaler.start()
    until(lambda: world.cloud.bought() > 1, "another node")
    until(lambda: "delete two two-1" in world.cloud.calls, "the first one given back")
    never.words = 0.0
    world.wait_bound("one")


def test_from_zero_the_tags_that_we_print_are_what_it_needs_to_know(make_world) -> None:
    """A group without a node: Cluster Autoscaler adds none for what nobody has told it."""
    unknown = Group("two", tags="")
    world = make_world(unknown)
    world.create("one", 60)
    world.autoscaler.start()
    until(lambda: world.autoscaler.said("Insufficient gpupack.io/gpu-memory-gib"), "it knows no cards")
    holds_for(lambda: world.cloud.bought() == 0, "nothing bought", 5 * LOOP_S)
    (shape,) = read_shapes(SHAPES, 1024)
    # The first line is the name of the shape.
    unknown.tags = write_shapes([shape], 1024, "aws").partition("\n")[2]
    world.wait_bound("one")
    world.settled()
    assert world.cloud.bought() == 1


@pytest.mark.nightly
def test_a_node_that_dies_while_it_starts_is_replaced_and_an_autoscaler_that_restarts_buys_none(
    make_world,
) -> None:
    group = Group("two", words=20.0)
    world = make_world(group)
    fragments(world, group)
    world.create("waits", 40)
    world.ours.start()
    world.autoscaler.start()
    first = until(world.cloud.starting, "a node that starts")
    world.autoscaler.kill()
    world.autoscaler.start()
    world.cloud.remove(list(first))
    # Nothing is known to be left of it but the placeholder, which stands for the pod until it runs.
    until(world.cloud.starting, "another node")
    world.autoscaler.kill()
    world.autoscaler.start()
    world.wait_bound("waits")
    world.settled()
    assert world.cloud.bought() == 2


def fragments(world: World, group: Group) -> None:
    """Make a node with 20 GiB free on each of two cards, at once."""
    slow, group.words = group.words, 0.0
    world.cloud.add("two")
    until(world.cloud.usable, "the first node")
    group.words = slow
    for name in ("a", "b"):
        world.create(name, 60)
    world.wait_bound("a", "b")


@pytest.mark.nightly
def test_where_the_sum_is_short_cluster_autoscaler_needs_no_help(make_world) -> None:
    world = make_world(Group("two"))
    world.cloud.add("two")
    until(world.cloud.usable, "the first node")
    for name in ("a", "b"):
        world.create(name, 80)
    world.wait_bound("a", "b")
    world.ours.start()
    world.create("waits", 40)
    holds_for(lambda: not world.placeholders(), "no placeholder", 12)
    world.autoscaler.start()
    world.wait_bound("waits")
    world.settled()
    assert world.cloud.bought() == 1


def full_node_and_fragments(world: World) -> str:
    """Make a node with a pod of 60 on each card, and two with 49 free on each; names the first.

    By their sums the two have 98 free each, so Cluster Autoscaler thinks that the pods of 60 fit there.
    """
    safe = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    world.cloud.add("two")
    until(world.cloud.usable, "the first node")
    for name in ("a", "b"):
        world.create(name, 60, **safe)
    world.wait_bound("a", "b")
    full = world.node_of("a")
    world.cloud.add("two", 2)
    until(lambda: len(world.cloud.usable()) == 3, "two more nodes")
    others = sorted(world.cloud.usable() - {full})
    for name in others:
        world.create(f"on-{name}", 62, on=name, **{"gpupack.io/cards": "2"})
    world.wait_bound(*(f"on-{name}" for name in others))
    return full


def test_a_node_whose_pods_fit_on_no_other_card_is_not_drained(make_world) -> None:
    world = make_world(Group("two"))
    full = full_node_and_fragments(world)
    world.ours.start()
    kept = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

    def is_kept() -> bool:
        node = world.api.get(f"/api/v1/nodes/{full}")
        return bool(node["metadata"].get("annotations", {}).get(kept))

    until(is_kept, "the node kept")
    world.autoscaler.start()
    until(lambda: world.autoscaler.said(f"{full}"), "Cluster Autoscaler looks at the node")
    holds_for(lambda: bool(world.node_of("a")) and bool(world.node_of("b")), "both run", 25)
    assert not [call for call in world.cloud.calls if call.startswith("delete") and full in call.split()]
