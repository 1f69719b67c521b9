"""The model of a cluster autoscaler that the simulations use, compared with the real Cluster Autoscaler.

Each random cluster is put before both: which pods they take for schedulable on nodes that exist, and how many
nodes they add. `GPUPACK_AUTOSCALE_REAL_CLUSTERS` sets the number of clusters.
"""

import logging
import os
import re
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests import autoscaler_model as model
from tests.ask_world import Pod
from tests.cluster.harness import Cluster, binaries, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import add_priority_class
from tests.cluster.harness.autoscaler import Cloud, ClusterAutoscaler, Group
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.controlplane import free_ports
from tests.property.test_autoscale_properties import add_waiting_pods, random_cloud

FEW = 4
CLUSTERS = int(os.environ.get("GPUPACK_AUTOSCALE_REAL_CLUSTERS", FEW))
LOOPS = 3
ORDERS = 300
log = logging.getLogger(__name__)
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no card"}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    binaries.skip_without_autoscaler()


def start_api_server(cluster: Cluster) -> None:
    cluster.control.start_without_controllers()
    add_priority_class(cluster, "important", 5)


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    made: Cluster = make_cluster(with_node=False, start=start_api_server)
    return made


def random_scene(seed: int) -> model.Cloud:
    """Make a cluster in which pods were refused, and placeholders of ours stand for some of them."""
    scene = random_cloud(seed, groups=1 + seed % 3)
    add_waiting_pods(scene, seed)
    scene.schedule()
    if seed % 2:
        scene.help()
        scene.now += 30
        scene.help()
    return scene


def put(api: Any, scene: model.Cloud, cloud: Cloud) -> None:
    for machine in scene.machines.values():
        cloud.groups[machine.group.name].machines[machine.name] = time.monotonic()
    until(lambda: cloud.usable() == set(scene.machines), "all nodes")
    for pod in scene.running.values():
        api.post(PODS, pod_of(pod, nodeName=pod.node))
    for name in sorted(scene.refused):
        api.post(PODS, pod_of(scene.waiting[name]))
        api.merge(f"{PODS}/{name}/status", {"status": {"conditions": [UNSCHEDULABLE]}})
    for name, made in scene.placeholders.items():
        labels = made["metadata"]["labels"]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
        api.post(PODS, body | {"spec": made["spec"]})
        api.merge(f"{PODS}/{name}/status", {"status": {"conditions": [UNSCHEDULABLE]}})


def pod_of(pod: Pod, **spec: Any) -> Any:
    spec |= {"priorityClassName": "important"} if pod.priority else {}
    return w.pod(
        pod.name,
        w.container(gib=pod.units, limits={"cpu": str(pod.cpu)} if pod.cpu else None),
        schedulerName="nobody",
        **spec,
    )


def real_answer(
    cluster: Cluster, scene: model.Cloud, folder: Path
) -> tuple[set[str], tuple[str, int] | None]:
    """Ask the real one: the pods that it thinks are schedulable, and the group and number that it adds."""
    (port,) = free_ports(1)
    groups = [
        Group(group.name, group.sizes, group.cpu, most=1000, first=0.0, words=0.0, tainted=False)
        for group in scene.groups
    ]
    cloud = Cloud(cluster.api, groups, folder, port)
    autoscaler = ClusterAutoscaler(cluster.control.admin_config, cloud, folder)
    try:
        put(cluster.api, scene, cloud)
        autoscaler.start()

        def has_decided() -> bool:
            if not autoscaler.log.exists():
                return False
            return bool(cloud.calls) or len(autoscaler.said("Starting main loop")) > LOOPS

        until(has_decided, "a decision")
        log = autoscaler.log.read_text(errors="replace")
        # What it says after it has added nodes is of another cluster.
        before = log.partition("Final scale-up plan")[0]
        moved = {found[1] for found in re.finditer(r"Pod default/(\S+) can be moved to", before)}
        if not cloud.calls:
            return moved, None
        _, group, number = cloud.calls[0].split()
        return moved, (group, int(number))
    finally:
        autoscaler.kill()
        cluster.delete_pods()
        cloud.stop()


def decides_so(scene: model.Cloud, moved: set[str], added: tuple[str, int] | None) -> bool:
    """Tell whether the model decides so with the nodes and pods in any of many orders.

    Cluster Autoscaler takes nodes in an order of its own, and pods of one priority in none.
    """
    random = Random(1)
    for number in range(ORDERS):
        if number:
            scene.machines = dict(random.sample(list(scene.machines.items()), len(scene.machines)))
            scene.waiting = dict(random.sample(list(scene.waiting.items()), len(scene.waiting)))
        seated, options = scene.decide()
        if seated == moved and (added in options_by_name(options) if options else added is None):
            return True
    return False


def options_by_name(options: list[tuple[model.Group, int]]) -> list[tuple[str, int]]:
    return [(group.name, number) for group, number in options]


@pytest.mark.nightly
@pytest.mark.timeout(0 if CLUSTERS > FEW else 300)
def test_the_model_decides_what_cluster_autoscaler_decides(cluster: Cluster, tmp_path: Path) -> None:
    different = []
    for seed in range(CLUSTERS):
        scene = random_scene(seed)
        seated, options = scene.decide()
        folder = tmp_path / str(seed)
        folder.mkdir()
        moved, added = real_answer(cluster, scene, folder)
        same = decides_so(scene, moved, added)
        log.info("cluster %s: %s", seed, "the same" if same else "different")
        if not same:
            seats = sorted(seated - moved), sorted(moved - seated)
            different.append((seed, *seats, options_by_name(options), added))
    assert not different
