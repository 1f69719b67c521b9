"""What batch mode leaves to kube-scheduler because it does not check it, beside the real one.

What it does check is compared with the real one on random scenes, see test_kube_scheduler_oracle.
"""

from collections.abc import Callable
from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER
from benchmarks.throughput import fake_node
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields
from tests.cluster.batch_builders import RESTARTS_ALL
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NODES, PODS


@pytest.fixture(scope="module")
def fleet(make_cluster: Any) -> Cluster:
    def begin(cluster: Cluster) -> None:
        cluster.control.configure_scheduler(None)
        cluster.control.start_without_controllers()
        cluster.control.start_scheduler()

    cluster: Cluster = make_cluster(with_node=False, start=begin)
    return cluster


def verdict(fleet: Cluster, name: str) -> Callable[[], str]:
    """What kube-scheduler says of a pod: its node, or why it has none."""

    def look() -> str:
        pod = fleet.api.get(f"{PODS}/{name}")
        conditions = pod.get("status", {}).get("conditions", [])
        refused = [each.get("message", "?") for each in conditions if each["type"] == "PodScheduled"]
        if pod["spec"].get("nodeName"):
            return "bound"
        return f"refused: {refused[0]}" if refused else ""

    return look


def test_a_pod_that_needs_a_feature_of_its_node_is_kube_schedulers(fleet: Cluster) -> None:
    """Nodes here declare none; whatever else a pod asks for is left on this one."""
    if fleet.api.get("/version")["minor"] in {"34", "35"}:
        pytest.skip("before Kubernetes 1.36 kube-scheduler asks for no features")
    fleet.api.post(NODES, fake_node(0))
    pod = fleet.api.post(PODS, w.pod("restarts-all", w.container(), **RESTARTS_ALL))
    look = verdict(fleet, "restarts-all")
    until(lambda: bool(look()), "kube-scheduler's word")
    assert "didn't match Pod's required features" in look()
    assert list_unsupported_fields({**pod["spec"], "schedulerName": BATCH_SCHEDULER})
    fleet.api.delete(f"{PODS}/restarts-all", grace_s=0)
    fleet.api.delete(f"{NODES}/node-00000")
