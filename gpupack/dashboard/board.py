"""A record of each node, which is made again only where something changed."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpupack.dashboard.records import (
    CardSums,
    NodeDetail,
    NodeTile,
    make_node_detail,
    make_node_tile,
    sum_cards,
)
from gpupack.inventory.records import NodeRow
from gpupack.inventory.rows import build_rows
from gpupack.usage.sampling import PodMemory
from gpupack.whatif.live_cluster import LiveCluster, PodKey
from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy


class ClusterBoard(LiveCluster):
    """A live cluster, and what the page shows of each node.

    Attributes:
        queued: what the queue says of pods that wait in it; None if it has not answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tiles: dict[str, NodeTile] = {}
        self.encoded: dict[str, msgspec.Raw] = {}
        self.sums: dict[str, CardSums] = {}
        self.pod_memory: dict[str, tuple[PodMemory, ...]] = {}
        self.queued: dict[PodKey, QueueWhy] | None = None

    def refresh(self) -> set[str]:
        """Make the records of nodes that changed; return the names of those that look different now."""
        return {name for name in self.take_changed_nodes() if self._refresh_node(name)}

    def _refresh_node(self, name: str) -> bool:
        node = (self.nodes or {}).get(name)
        row = self.join_node(name)
        if node is None or row is None:
            self.sums.pop(name, None)
            self.pod_memory.pop(name, None)
            self.encoded.pop(name, None)
            return self.tiles.pop(name, None) is not None
        tile = make_node_tile(row, node.metadata.labels)
        self.pod_memory[name] = tuple(_list_pod_memory(row))
        if self.tiles.get(name) == tile:
            return False
        self.tiles[name] = tile
        self.encoded[name] = msgspec.Raw(msgspec.json.encode(tile))
        self.sums[name] = sum_cards(tile)
        return True

    def join_node(self, name: str) -> NodeRow | None:
        """Join one node with its pods; None if there is no such node, or it has nothing to show."""
        node = (self.nodes or {}).get(name)
        if node is None:
            return None
        return next(iter(build_rows(self.list_node_objects(node))), None)

    def make_detail(self, name: str) -> NodeDetail | None:
        """Make the record of one node with its pods; None if it shows nothing."""
        row, node = self.join_node(name), (self.nodes or {}).get(name)
        return (
            None
            if row is None or node is None
            else make_node_detail(row, make_node_tile(row, node.metadata.labels))
        )

    def find_nodes_with_pod(self, text: str) -> list[str]:
        """List the nodes with a pod on their cards whose namespace/name contains the text."""
        return find_places(
            text,
            (
                (name, f"{memory.namespace}/{memory.name}")
                for name, memories in self.pod_memory.items()
                for memory in memories
            ),
        )

    def sum_cards(self) -> CardSums:
        return sum(self.sums.values(), CardSums())

    def set_queued(self, pods: Iterable[QueueWhy] | None) -> bool:
        """Store what the queue says about pods, None if it does not answer; return True if that is new."""
        before = _drop_wait_times(self.queued)
        self.queued = None if pods is None else {(pod.namespace, pod.name): pod for pod in pods}
        return _drop_wait_times(self.queued) != before

    def find_queued(self, namespace: str, name: str) -> tuple[QueueWhy, ...] | None:
        """Return what the queue says about one pod, at most one answer; None if it has not answered."""
        found = None if self.queued is None else self.queued.get((namespace, name))
        return None if self.queued is None else () if found is None else (found,)


def find_places(text: str, places: Iterable[tuple[str, str]]) -> list[str]:
    """List the nodes with a pod whose namespace/name contains the text, of pairs of node and pod."""
    wanted = text.lower()
    return sorted({node for node, pod in places if wanted in pod.lower()})


def _drop_wait_times(queued: Mapping[PodKey, QueueWhy] | None) -> object:
    """Take out what changes all the time: how long each pod waits."""
    if queued is None:
        return None
    return {key: (pod.queue, pod.position, pod.reason, pod.message) for key, pod in queued.items()}


def _list_pod_memory(row: NodeRow) -> Iterator[PodMemory]:
    unit = row.unit_mib or 0
    for pods in (*(card.pods for card in row.cards), row.pods):
        for pod in pods:
            yield PodMemory(pod.namespace, pod.name, pod.uid, pod.units * unit, pod.used_mib)
