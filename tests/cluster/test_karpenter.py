"""The real Karpenter with its kwok provider, kube-scheduler, extender and `gpupack autoscale`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from allocator.names import NODE_HOST
from gpupack.autoscale.scale_down import DO_NOT_DISRUPT
from gpupack.autoscale.shape_formats import make_given_shape, write_shapes
from tests.cluster.harness import Cluster, binaries, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.autoscaled import AutoscaledCluster, start_scheduling
from tests.cluster.harness.autoscaler import TYPE
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import Autoscale
from tests.cluster.harness.karpenter import (
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_OVERLAYS,
    NODE_POOLS,
    Karpenter,
    MachineType,
    install,
    make_pool,
)
from tests.cluster.harness.polling import holds_for
from tests.yaml_text import read_yaml_documents

LOOKS_S = 11.0
"""Karpenter looks at all pods that wait every ten seconds."""


def shape_of(machine: MachineType) -> Any:
    return make_given_shape(
        name=machine.name,
        cards=[
            f"{machine.sizes.count(size)}x{size * 1024}:NVIDIA A100" for size in dict.fromkeys(machine.sizes)
        ],
        cpu=str(machine.cpu),
        memory="256Gi",
        labels={TYPE: machine.name},
        taints=(),
        unit_mib=1024,
    )


class World(AutoscaledCluster):
    """Everything together, on an empty cluster; what Karpenter knows of cards is what we print for it."""

    def __init__(self, cluster: Cluster, folder: Path, types: Sequence[MachineType]) -> None:
        super().__init__(cluster, TYPE)
        *ports, port = free_ports(3)
        config, logs = cluster.control.admin_config, folder
        self._shapes = [shape_of(each) for each in types]
        file = folder / "shapes.yaml"
        file.write_text(write_shapes(self._shapes, 1024, "file"))
        arguments = ("--autoscaler", "karpenter", "--grace-s", "1", "--namespace", "default")
        self.ours = Autoscale(config, logs, port, *arguments, "--shapes", str(file))
        self.karpenter = Karpenter(cluster.api, config, types, logs, ports)

    def create_pool(self) -> None:
        make_pool(self.api, self.karpenter.types)
        for overlay in read_yaml_documents(write_shapes(self._shapes, 1024, "karpenter")):
            self.api.post(NODE_OVERLAYS, overlay)

    def stop(self) -> None:
        self.ours.kill()
        self.api.delete(PODS, grace_s=0)
        self.karpenter.stop()
        for path in (NODE_OVERLAYS, NODE_POOLS, NODE_CLAIMS, NODE_CLASSES, NODES):
            for found in self.api.get(path)["items"]:
                name = found["metadata"]["name"]
                self.api.merge(f"{path}/{name}", {"metadata": {"finalizers": None}})
                if not found["metadata"].get("deletionTimestamp"):
                    self.api.delete(f"{path}/{name}")
        until(lambda: not self.api.names(NODES), "no node left")

    def set_budget(self, nodes: str) -> None:
        """Let Karpenter give back so many nodes at one time."""
        budget = {"spec": {"disruption": {"budgets": [{"nodes": nodes}]}}}
        self.api.merge(f"{NODE_POOLS}/gpu", budget)

    def outcome(self, name: str) -> str:
        pods = json.loads(self.ours.http("/status"))["pods"]
        return next((str(pod["outcome"]) for pod in pods if pod["name"] == name), "")

    def settled(self, number: int) -> None:
        """So many nodes were ever made, and no placeholder stays."""
        until(lambda: not self.placeholders(), "no placeholder left")
        holds_for(lambda: len(self.karpenter.born) == number and not self.placeholders(), "quiet", LOOKS_S)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    if not binaries.KARPENTER.folder.is_dir():
        pytest.skip("Karpenter is not built: make test-cluster KARPENTER=1 builds it")


def start(cluster: Cluster) -> None:
    start_scheduling(cluster)
    install(cluster.api)


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    made: Cluster = make_cluster(w.cards(8192), with_node=False, start=start)
    return made


@pytest.fixture
def make_world(cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    worlds: list[World] = []

    def make(*types: MachineType) -> World:
        worlds.append(World(cluster, tmp_path, types or [MachineType("two")]))
        worlds[-1].create_pool()
        return worlds[-1]

    yield make
    for world in worlds:
        world.stop()


def test_from_none_and_then_from_fragments_each_time_one_node(make_world: Any) -> None:
    """The overlay says what the type has; then two cards have 20 GiB free each, and a pod of 40 waits."""
    world = make_world()
    world.karpenter.words = LOOKS_S
    world.karpenter.start()
    for name in ("a", "b"):
        world.create(name, 60)
    world.wait_bound("a", "b")
    world.settled(1)
    world.create("waits", 40)
    world.cluster.wait_event("waits", "Pod should schedule on")
    holds_for(lambda: len(world.karpenter.born) == 1, "Karpenter is blind", LOOKS_S)
    world.ours.start()
    world.wait_bound("waits")
    assert world.node_of("waits") not in {world.node_of("a"), ""}
    world.settled(2)


@pytest.mark.nightly
def test_ten_pods_of_50_on_nodes_of_two_cards_of_80_get_five_nodes(make_world: Any) -> None:
    world = make_world()
    names = [f"p{number}" for number in range(10)]
    for name in names:
        world.create(name, 50)
    world.ours.start()
    world.karpenter.start()
    world.wait_bound(*names)
    world.settled(5)


def test_a_node_that_looks_free_is_excluded_by_a_label_of_ours(make_world: Any) -> None:
    """Four cards with 20 free each have as much by their sum as the smaller type has in all."""
    world = make_world(MachineType("four", (80,) * 4, price=9.0), MachineType("small", (40, 40)))
    world.karpenter.start()
    for name in "abcd":
        world.create(name, 60, on="four")
    world.wait_bound(*"abcd")
    world.create("waits", 35)
    world.ours.start()
    world.wait_bound("waits")
    full, node = (world.api.get(f"{NODES}/{world.node_of(name)}") for name in ("a", "waits"))
    assert full["metadata"]["labels"][NODE_HOST] == full["metadata"]["name"]
    assert node["metadata"]["labels"][TYPE] == "small"
    assert json.loads(world.ours.http("/status"))["autoscaler"] == "karpenter"
    world.settled(2)


def test_a_node_whose_pods_fit_on_no_other_card_is_not_disrupted(make_world: Any) -> None:
    """By their sums two nodes have 98 free each, on cards of which each has 49."""
    world = make_world(MachineType("two"), MachineType("second"), MachineType("third"))
    world.set_budget("0")
    world.karpenter.start()
    for name in ("a", "b"):
        world.create(name, 60, on="two")
    world.wait_bound("a", "b")
    for name in ("second", "third"):
        world.create(f"on-{name}", 62, on=name, **{"gpupack.io/cards": "2"})
    world.wait_bound("on-second", "on-third")
    for name in ("a", "b"):
        world.cluster.delete(name)
    for name in ("a", "b"):
        world.create(name, 60)
    world.wait_bound("a", "b")
    full = world.node_of("a")
    assert world.node_of("b") == full
    world.ours.start()

    def is_kept() -> bool:
        annotations = world.api.get(f"{NODES}/{full}")["metadata"].get("annotations", {})
        return annotations.get(DO_NOT_DISRUPT) == "true"

    until(is_kept, "the node kept")
    world.set_budget("100%")
    holds_for(lambda: bool(world.node_of("a")) and bool(world.node_of("b")), "both run", 32)
    assert full in {node["metadata"]["name"] for node in world.karpenter.nodes()}
