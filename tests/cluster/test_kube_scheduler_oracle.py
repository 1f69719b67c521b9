"""Whether kube-scheduler takes a pod on a node, and if not why: what we say beside what the real one says.

Random scenes are created on a real API server. A real kube-scheduler, without our extender, looks at each pod
to be placed once. `GPUPACK_ORACLE_PAIRS` sets how many pairs of a pod and a node are compared at least,
`GPUPACK_ORACLE_SEED` where to begin; a scene in which the answers differ is shown as small as it can be made.
"""

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from random import Random
from typing import Any, Final

import pytest

from allocator.names import BATCH_SCHEDULER
from benchmarks.throughput import fake_node
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields
from tests.cluster.batch_builders import RESTARTS_ALL
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NODES as NODES_PATH
from tests.cluster.harness.recording_extender import RecordingExtender
from tests.cluster.harness.rest import ApiError
from tests.cluster.scheduler_answers import Answers, Verdict
from tests.cluster.scheduler_scenes import (
    DEVICES,
    HEAVY,
    HOSTNAME,
    NAMESPACES,
    REQUIRED,
    SERVED,
    Scene,
    random_scene,
    shrink,
)

FEW: Final = 1000
PAIRS = int(os.environ.get("GPUPACK_ORACLE_PAIRS", FEW))
SEED = int(os.environ.get("GPUPACK_ORACLE_SEED", time.time()))
BARRIER: Final = "barrier"
DRA: Final = "/apis/resource.k8s.io/v1"
DRIVER: Final = "served.example.com"
log = logging.getLogger(__name__)


class RealScheduler:
    """A kube-scheduler that says of each pod of a scene which nodes it allows, and why not the others."""

    def __init__(self, cluster: Cluster, extender: RecordingExtender) -> None:
        self._api = cluster.api
        self._extender = extender
        self._scenes = 0
        self.minor = int(re.sub(r"\D", "", self._api.get("/version")["minor"]))
        for name, labels in NAMESPACES.items():
            if name != "default":
                self._api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        overhead = {"podFixed": {"cpu": "250m", "memory": "64Mi"}}
        runtime = {"metadata": {"name": HEAVY}, "handler": HEAVY, "overhead": overhead}
        if self.has_classes:
            selector = {"cel": {"expression": f"device.driver == {DRIVER!r}"}}
            spec = {"extendedResourceName": SERVED, "selectors": [selector]}
            self._api.post(f"{DRA}/deviceclasses", {"metadata": {"name": "served"}, "spec": spec})
        self._api.post("/apis/node.k8s.io/v1/runtimeclasses", runtime)
        plain = w.pod("plain", w.container(), runtimeClassName=HEAVY)
        until(lambda: self._api.post(_path("default"), plain, dryRun="All"), "the RuntimeClass known")

    def ask(self, scene: Scene) -> tuple[dict[str, Verdict], list[Any], list[Any]]:
        """Create a scene and take it away again.

        Returns:
            Its verdicts by name of the pod, and its nodes and pods as the API server has them.

        Raises:
            ApiError: The API server does not accept an object of the scene.
        """
        try:
            self._create(scene)
            nodes, pods = self._api.get(NODES_PATH)["items"], self._api.get("/api/v1/pods")["items"]
            for pod in scene.placed:
                self._api.post(_path(pod), pod)
            there = {pod["metadata"]["name"] for pod in scene.placed}
            found: dict[str, Verdict] = {}
            until(lambda: self._read(found) >= there, "a word on every pod")
            placed = [
                pod for pod in self._api.get("/api/v1/pods")["items"] if pod["metadata"]["name"] in there
            ]
            return found, nodes, [*pods, *placed]
        finally:
            self._remove_all()

    def _create(self, scene: Scene) -> None:
        """Return once kube-scheduler has heard of everything that the pods to be placed depend on."""
        self._scenes += 1
        mark = {BARRIER: f"s{self._scenes}"}
        for node in scene.nodes:
            self._post_node(node)
        for pod in scene.bound:
            metadata = pod["metadata"] | {"deletionTimestamp": None}
            self._api.post(_path(pod), {"metadata": metadata, "spec": pod["spec"]})
            path = f"{_path(pod)}/{pod['metadata']['name']}"
            if status := pod.get("status"):
                self._api.merge(f"{path}/status", {"status": status})
            if "deletionTimestamp" in pod["metadata"]:
                self._api.delete(path, grace_s=3000)
        # Events of one kind of object come in order: who has heard of these two has heard of all before them.
        amounts = {"cpu": "100", "memory": "100Gi", "pods": "110"}
        metadata = {"name": BARRIER, "labels": mark | {HOSTNAME: BARRIER}, "annotations": {DEVICES: "1"}}
        spec = {"taints": [{"key": BARRIER, "effect": "NoSchedule"}]}
        status = {"capacity": amounts, "allocatable": amounts}
        self._post_node({"metadata": metadata, "spec": spec, "status": status})
        self._api.post(
            _path("default"), w.pod(f"{BARRIER}-last", w.container(), labels=mark, nodeName=BARRIER)
        )
        asked = {SERVED: 1} if self.has_classes else {}
        tolerations = [{"key": BARRIER, "operator": "Exists"}]
        probe = w.pod(f"{BARRIER}-probe", w.container(limits=asked), tolerations=tolerations)
        term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": mark}}
        probe["spec"] |= {"nodeSelector": mark, "affinity": {"podAffinity": {REQUIRED: [term]}}}
        uid = self._api.post(_path("default"), probe)["metadata"]["uid"]
        until(lambda: uid in self._extender.allowed, "kube-scheduler has heard of the scene")

    def _post_node(self, node: Any) -> None:
        """Create a node; its annotation says how many devices a DRA driver has there."""
        self._api.post(NODES_PATH, node)
        name, devices = node["metadata"]["name"], node["metadata"].get("annotations", {}).get(DEVICES)
        if devices is not None and self.has_classes:
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            found = [{"name": f"d{number}"} for number in range(int(devices))]
            spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": found}
            self._api.post(f"{DRA}/resourceslices", {"metadata": {"name": name}, "spec": spec})

    @property
    def has_classes(self) -> bool:
        """Whether a DeviceClass may serve an extended resource: from Kubernetes 1.36 on."""
        return self.minor >= 36

    def _read(self, found: dict[str, Verdict]) -> AbstractSet[str]:
        for namespace in NAMESPACES:
            for pod in self._api.get(_path(namespace))["items"]:
                for condition in pod["status"].get("conditions", ()):
                    if condition["type"] == "PodScheduled" and not pod["spec"].get("nodeName"):
                        allowed = self._extender.allowed.get(pod["metadata"]["uid"], frozenset())
                        found[pod["metadata"]["name"]] = Verdict(allowed, condition["message"])
        return found.keys()

    def _remove_all(self) -> None:
        for namespace in NAMESPACES:
            self._api.delete(_path(namespace), grace_s=0)
        self._api.delete(NODES_PATH)
        if self.has_classes:
            self._api.delete(f"{DRA}/resourceslices")
        until(lambda: not self._api.names("/api/v1/pods"), "no pod left")
        self._extender.allowed.clear()


def _path(pod: Any) -> str:
    namespace = pod if isinstance(pod, str) else pod["metadata"]["namespace"]
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture(scope="module")
def scheduler(make_cluster: Any) -> Iterator[RealScheduler]:
    extender = RecordingExtender()

    def begin(cluster: Cluster) -> None:
        # Nothing is evicted for a pod: its verdict is about the scene as it is.
        profile = {
            "schedulerName": "default-scheduler",
            "plugins": {"postFilter": {"disabled": [{"name": "*"}]}},
        }
        cluster.control.configure_scheduler(None, profiles=[profile], extenders=[extender.entry])
        cluster.control.start_without_controllers()
        cluster.control.start_scheduler()

    yield RealScheduler(make_cluster(with_node=False, start=begin), extender)
    extender.stop()


def compare(scheduler: RealScheduler, scene: Scene, counts: Counter[str]) -> list[str]:
    """Ask everybody about every pod of a scene on every node; the differences, in words."""
    verdicts, nodes, pods = scheduler.ask(scene)
    answers = Answers(nodes, pods)
    return [
        difference
        for pod in pods
        if (verdict := verdicts.get(pod["metadata"]["name"])) is not None
        for difference in answers.compare(pod, verdict, counts)
    ]


@pytest.mark.timeout(300 + PAIRS // 2)
def test_what_we_say_is_what_kube_scheduler_says(scheduler: RealScheduler) -> None:
    counts: Counter[str] = Counter()
    seed = SEED
    while counts["pairs"] < PAIRS:
        scene = random_scene(Random(seed), pod_level_status=scheduler.minor >= 36)
        differences = compare(scheduler, scene, counts)
        if differences:

            def fails(smaller: Scene) -> bool:
                with suppress(ApiError):
                    return bool(compare(scheduler, smaller, Counter()))
                return False

            small = shrink(scene, fails)
            pytest.fail(
                f"seed {seed}: {differences}\nshrunk to {compare(scheduler, small, Counter())}\n"
                + json.dumps({"nodes": small.nodes, "bound": small.bound, "placed": small.placed}, indent=1)
            )
        seed += 1
    log.warning("seeds %s to %s: %s", SEED, seed - 1, dict(counts))


def test_batch_mode_leaves_a_pod_to_kube_scheduler_that_needs_a_feature_of_its_node(
    scheduler: RealScheduler,
) -> None:
    """Nodes here declare none."""
    if scheduler.minor < 36:
        pytest.skip("before Kubernetes 1.36 kube-scheduler asks for no features")
    pod = w.pod("restarts-all", w.container(), **RESTARTS_ALL)
    verdicts, _, (*_, asked) = scheduler.ask(Scene([fake_node(0)], [], [pod]))
    assert "didn't match Pod's required features" in verdicts["restarts-all"].message
    assert list_unsupported_fields({**asked["spec"], "schedulerName": BATCH_SCHEDULER})
