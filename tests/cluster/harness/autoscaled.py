"""A cluster whose nodes a cluster autoscaler makes, and the pods that tests put there."""

from typing import Any

from allocator.names import PLACEHOLDER_LABEL
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import PODS, Cluster


def start_scheduling(cluster: Cluster) -> None:
    """Start the API server, kube-scheduler and the extender: nodes without a kubelet stay as they are."""
    cluster.start_api_server()
    cluster.extender.start(ready=False)
    cluster.control.start_scheduler()
    cluster.extender.wait_ready()


class AutoscaledCluster:
    """What the tests with a real autoscaler share.

    Args:
        where: The label of a node by which `create` chooses one.
    """

    def __init__(self, cluster: Cluster, where: str) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.node_of = cluster.node_of
        self.wait_bound = cluster.wait_bound
        self._where = where

    def create(self, name: str, gib: int, *, on: str = "", **annotations: str) -> None:
        where = {"nodeSelector": {self._where: on}} if on else {}
        self.cluster.create(w.pod(name, w.container(gib=gib), annotations=annotations, **where))

    def placeholders(self) -> list[Any]:
        found: list[Any] = self.api.get(PODS, labelSelector=PLACEHOLDER_LABEL)["items"]
        return found
