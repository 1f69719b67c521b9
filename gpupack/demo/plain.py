"""Places the demo's pods with kube-scheduler alone, which sees the sum of a node's cards and no card."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from allocator.quantity import parse_integer
from gpupack.demo.pods import Shapes, count_units
from gpupack.embedded import EmbeddedCluster, wait_until


@dataclass(frozen=True, slots=True)
class PodFate:
    """The result of one pod.

    Attributes:
        node: where it was bound, None if no node's sum had room.
        refusal: the kubelet's reason and message, None if the pod runs.
    """

    node: str | None
    refusal: str | None = None

    @property
    def has_started(self) -> bool:
        return self.node is not None and self.refusal is None


async def play_plain(cluster: EmbeddedCluster, shapes: Shapes, seed: int) -> dict[str, PodFate]:
    """Bind pods by the sums of nodes, one after the other, and see what the kubelets do with them.

    The node with room that has the fewest pods is taken; chance decides between equals. So do
    kube-scheduler's own scores for pods that ask for nothing else.

    A pod that fails gives its part of the sum back. All cards must be free at the beginning.

    Raises:
        TimedOutError: a kubelet does not decide.
    """
    chance = Random(seed)  # noqa: S311 - chance, not secrecy
    room = {name: _read_offered_units(cluster, name) for name in cluster.nodes}
    pods = dict.fromkeys(room, 0)
    fates: dict[str, PodFate] = {}
    for name, shape in shapes.items():
        units = count_units(shape)
        fitting = sorted(node for node in room if room[node] >= units)
        if not fitting:
            fates[name] = PodFate(None)
            continue
        fewest = min(pods[node] for node in fitting)
        node = chance.choice([node for node in fitting if pods[node] == fewest])
        fates[name] = await _bind(cluster, name, shape, node)
        if fates[name].has_started:
            room[node] -= units
            pods[node] += 1
    return fates


def _read_offered_units(cluster: EmbeddedCluster, node: str) -> int:
    """Read the units of the resource that kube-scheduler sees on an empty node."""
    return parse_integer(cluster.api.node(node)["status"]["allocatable"][cluster.resource])


async def _bind(cluster: EmbeddedCluster, name: str, shape: Mapping[str, Any], node: str) -> PodFate:
    cluster.create(copy.deepcopy(cluster.make_pod_manifest(name, **shape)))
    cluster.api.bind_pod("default", name, node)
    await wait_until(
        lambda: _status(cluster, name).get("phase") in {"Running", "Failed"}, f"{name} is decided on"
    )
    status = _status(cluster, name)
    if status["phase"] == "Running":
        return PodFate(node)
    return PodFate(node, f"{status.get('reason')}: {status.get('message')}")


def _status(cluster: EmbeddedCluster, name: str) -> dict[str, Any]:
    status: dict[str, Any] = cluster.api.pod("default", name)["status"]
    return status
