"""Clusters for `gpupack autoscale`: as of `ask_world`, with what a cluster autoscaler looks at."""

from dataclasses import dataclass, replace

from allocator.names import NODE_SERVES, PERCENT_RESOURCE, SERVES_CLAIMS
from gpupack.autoscale.planner import Planner, PlanRules
from gpupack.whatif.cluster import Cluster
from tests.ask_world import Node, Pod, World
from tests.cluster_builders import MEMORY

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
LONG_AGO = "2020-01-01T00:00:00Z"
WALL_S = 1_800_000_000.0
NOW = "2027-01-15T08:00:00Z"
"""The same moment as the API writes it."""


@dataclass(frozen=True)
class Grown(World):
    """A world in which pods that wait were refused."""

    @property
    def items(self) -> list:
        items = super().items
        for item in items:
            meta = item["metadata"]
            if item["kind"] == "Node":
                meta["creationTimestamp"] = LONG_AGO
            elif not item["spec"].get("nodeName"):
                item["status"]["conditions"] = UNSCHEDULABLE
                meta["creationTimestamp"] = LONG_AGO
        return items


def grown(nodes, pods=(), **changes) -> Grown:
    return Grown(tuple(nodes), tuple(pods), changes=changes)


def plan_of(world: World | Cluster, *, rules=None, declared=(), planner=None, waited_s: float = 60.0):
    """What is planned once the pods have waited so long."""
    cluster = world if isinstance(world, Cluster) else world.cluster
    planner = planner or Planner(rules or PlanRules(), declared)
    planner.plan(cluster, 0.0, WALL_S)
    return planner.plan(cluster, waited_s, WALL_S)


def outcomes(plan) -> dict[str, str]:
    return {said.pod.pod.metadata.name: said.outcome.value for said in plan.pods.values()}


def waits(name: str, units: int, **more) -> Pod:
    return Pod(name, units, **more)


def fragments(number: int = 1, free: int = 20, size: int = 80, **more) -> tuple[list[Node], list[Pod]]:
    """Nodes of two cards with so much free on each."""
    nodes = [Node(f"n{at}", (size, size), **more) for at in range(1, number + 1)]
    pods = [
        Pod(f"on-{node.name}-{card}", size - free, node.name, (card,)) for node in nodes for card in (0, 1)
    ]
    return nodes, pods


def of_daemon_set(item) -> None:
    item["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"


def serve_claims(item) -> None:
    item["metadata"]["annotations"][NODE_SERVES] = SERVES_CLAIMS
    item["status"]["allocatable"] |= {MEMORY: "0", PERCENT_RESOURCE: "0"}


__all__ = [
    "Grown",
    "Node",
    "Pod",
    "fragments",
    "grown",
    "of_daemon_set",
    "outcomes",
    "plan_of",
    "replace",
    "serve_claims",
    "waits",
]
