"""Keeps all nodes and pods, and a record of each node that is made again only where something changed."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from allocator.claims import ClaimObject
from gpupack.dashboard.records import (
    CardSums,
    NodeDetail,
    NodeTile,
    make_node_detail,
    make_node_tile,
    sum_cards,
)
from gpupack.inventory.objects import NodesAndPods as TopCluster
from gpupack.inventory.records import NodeRow
from gpupack.inventory.rows import build_rows
from gpupack.usage.sampling import PodMemory
from gpupack.whatif.cluster import Cluster, UnitCounter
from gpupack.whatif.objects import KubeNode, KubePod
from scheduler_plugin.cache.published_nodes import serves_claims
from scheduler_plugin.queue.cache.pod_groups import GroupedPods, PodGroup
from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

PodKey = tuple[str, str]
"""Namespace and name."""

MOST_CHANGES: Final = 20_000
"""Changes that are remembered while nobody asks; building the cluster anew takes no longer than more."""


class ClusterBoard:
    """Keeps nodes and pods, and what the page shows of each node.

    Args:
        unit_mib: MiB of a unit; None: what most nodes publish.

    Attributes:
        nodes: by name; None before the first list.
        pods: by namespace and name; None before the first list.
        tiles: records by node, of those that have something to show.
        encoded: the same as JSON.
        sums: what the cards of each of these nodes have together.
        queued: what the queue says of pods that wait in it; None if it has not answered.
        serves_claims: on some node pods get their cards by claims, or did.
        names_groups: a PodGroup says how many pods start together with some pod, or did.
    """

    def __init__(self, unit_mib: int | None = None) -> None:
        self.nodes: dict[str, KubeNode] | None = None
        self.pods: dict[PodKey, KubePod] | None = None
        self.tiles: dict[str, NodeTile] = {}
        self.encoded: dict[str, msgspec.Raw] = {}
        self.sums: dict[str, CardSums] = {}
        self.pod_memory: dict[str, tuple[PodMemory, ...]] = {}
        self.queued: dict[PodKey, QueueWhy] | None = None
        self.serves_claims = False
        self.names_groups = False
        self._on_node: dict[str, dict[PodKey, KubePod]] = {}
        self._claims: dict[str, ClaimObject] = {}
        self._claims_on_node: dict[str, dict[str, ClaimObject]] = {}
        self._dirty: set[str] = set()
        self._grouped = GroupedPods()
        self._cluster: Cluster | None = None
        self._changes: list[Callable[[Cluster], None]] = []
        self._is_stale = True
        self._usual_unit = UnitCounter()
        self._is_unit_fixed = unit_mib is not None
        self._unit_mib = unit_mib

    def replace_nodes(self, nodes: Iterable[KubeNode]) -> None:
        before = self.nodes or {}
        self.nodes = {node.metadata.name: node for node in nodes}
        self._dirty |= before.keys() | self.nodes.keys()
        self._make_stale()
        self._usual_unit = UnitCounter(self.nodes.values())
        self.serves_claims = self.serves_claims or any(map(serves_claims, self.nodes.values()))
        self._follow_unit()

    def put_node(self, node: KubeNode) -> None:
        self.nodes = self.nodes if self.nodes is not None else {}
        self.nodes[node.metadata.name] = node
        self.serves_claims = self.serves_claims or serves_claims(node)
        self._dirty.add(node.metadata.name)
        self._usual_unit.put(node)
        self._follow_unit()
        self._note_change(lambda cluster, now: cluster.put_node(node, now))

    def drop_node(self, node: KubeNode) -> None:
        name = node.metadata.name
        (self.nodes or {}).pop(name, None)
        self._dirty.add(name)
        self._usual_unit.drop(name)
        self._follow_unit()
        self._note_change(lambda cluster, now: cluster.drop_node(name, node.metadata.resource_version, now))

    def _follow_unit(self) -> None:
        """Rebuild the cluster if most nodes now publish another unit, as when the first daemon starts."""
        unit_mib = self._usual_unit.most_common_mib
        if not self._is_unit_fixed and unit_mib not in {None, self._unit_mib}:
            self._unit_mib = unit_mib
            self._make_stale()

    def replace_pods(self, pods: Iterable[KubePod]) -> None:
        self._dirty |= self._on_node.keys()
        self.pods, self._on_node = {}, {}
        self._make_stale()
        listed = set()
        for pod in pods:
            self.put_pod(pod)
            listed.add(pod.metadata.uid)
        for uid in self._grouped.uids - listed:
            self._grouped.remove_pod(uid)

    def put_pod(self, pod: KubePod) -> None:
        self.pods = self.pods if self.pods is not None else {}
        key = (pod.metadata.namespace, pod.metadata.name)
        self._off_node(key, keep=pod.spec.node_name)
        if self._grouped.put_pod(pod):
            self.names_groups = True
            self._grouped.complete(pod.metadata)
        self.pods[key] = pod
        if pod.spec.node_name:
            self._on_node.setdefault(pod.spec.node_name, {})[key] = pod
            self._dirty.add(pod.spec.node_name)
        self._note_change(lambda cluster, now: cluster.put_pod(pod, now))

    def drop_pod(self, pod: KubePod) -> None:
        key = (pod.metadata.namespace, pod.metadata.name)
        self._off_node(key)
        (self.pods or {}).pop(key, None)
        self._grouped.remove_pod(pod.metadata.uid)
        self._note_change(lambda cluster, now: cluster.drop_pod(pod, pod.metadata.resource_version, now))

    def replace_claims(self, claims: Iterable[ClaimObject]) -> None:
        self._dirty |= self._claims_on_node.keys()
        self._claims, self._claims_on_node = {}, {}
        self._make_stale()
        for claim in claims:
            self.put_claim(claim)

    def put_claim(self, claim: ClaimObject) -> None:
        uid = claim.metadata.uid
        self._off_nodes(uid)
        self._claims[uid] = claim
        for node in {result.pool for result in claim.results or ()}:
            self._claims_on_node.setdefault(node, {})[uid] = claim
            self._dirty.add(node)
        self._note_change(lambda cluster, now: cluster.put_claim(claim, now))

    def drop_claim(self, claim: ClaimObject) -> None:
        self._off_nodes(claim.metadata.uid)
        self._claims.pop(claim.metadata.uid, None)
        self._note_change(
            lambda cluster, now: cluster.drop_claim(claim, claim.metadata.resource_version, now)
        )

    def replace_groups(self, groups: Iterable[PodGroup]) -> None:
        self._complete(self._grouped.replace_groups(groups))

    def put_group(self, group: PodGroup) -> None:
        self._complete(self._grouped.put_group(group))

    def drop_group(self, group: PodGroup) -> None:
        """Remove a PodGroup; pods that name it keep its size."""
        self._grouped.delete_group((group.metadata.namespace, group.metadata.name))

    def set_groups_fault(self, fault: str) -> None:
        """Set why PodGroups cannot be read; empty if they can, or if there are none."""
        self._complete(self._grouped.set_fault(fault))

    def _complete(self, pods: Iterable[KubePod]) -> None:
        for pod in pods:
            self._grouped.complete(pod.metadata)

    def _off_nodes(self, uid: str) -> None:
        known = self._claims.get(uid)
        for result in (known.results if known is not None else None) or ():
            self._claims_on_node.get(result.pool, {}).pop(uid, None)
            self._dirty.add(result.pool)

    def _off_node(self, key: PodKey, keep: str = "") -> None:
        """Take a pod off its node, unless it stays there."""
        known = (self.pods or {}).get(key)
        node = known.spec.node_name if known is not None else ""
        if not node or node == keep:
            return
        seated = self._on_node.get(node, {})
        seated.pop(key, None)
        if not seated:
            self._on_node.pop(node, None)
        self._dirty.add(node)

    def refresh(self) -> set[str]:
        """Make the records of nodes that changed; returns the names of those that look different now."""
        dirty, self._dirty = self._dirty, set()
        return {name for name in dirty if self._refresh_node(name)}

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
        pods = None if self.pods is None else list(self._on_node.get(name, {}).values())
        claims = list(self._claims_on_node.get(name, {}).values())
        return next(iter(build_rows(TopCluster([node], pods, claims))), None)  # type: ignore[list-item]

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
        wanted = text.lower()
        return sorted(
            name
            for name, memories in self.pod_memory.items()
            if any(wanted in f"{memory.namespace}/{memory.name}".lower() for memory in memories)
        )

    def sum_cards(self) -> CardSums:
        return sum(self.sums.values(), CardSums())

    def get_cluster(self) -> Cluster:
        """Return the cluster as it is now, for questions; built once for each unit, then kept current.

        Use it only in the thread that changes the board.
        """
        return self.prepare_cluster()()

    def prepare_cluster(self) -> Callable[[], Cluster]:
        """Return a function that builds the cluster as it is now, for another thread to call.

        Only that thread may have to do with the cluster, and it calls what this returned in the same order.
        """
        changes, self._changes = self._changes, []
        if not self._is_stale:
            return lambda: self._apply_changes(changes)
        self._is_stale = False
        nodes, pods = list((self.nodes or {}).values()), list((self.pods or {}).values())
        claims, unit_mib = tuple(self._claims.values()), self._unit_mib

        def build() -> Cluster:
            self._cluster = Cluster.from_objects(nodes, pods, unit_mib=unit_mib, claims=claims)
            return self._cluster

        return build

    def _apply_changes(self, changes: Iterable[Callable[[Cluster], None]]) -> Cluster:
        if self._cluster is None:
            raise RuntimeError("a cluster was changed before it was built")
        for change in changes:
            change(self._cluster)
        return self._cluster

    def _make_stale(self) -> None:
        """Make the next question rebuild the cluster from all objects."""
        self._is_stale = True
        self._changes.clear()

    def _note_change(self, change: Callable[[Cluster, float], None]) -> None:
        """Queue a change for the cluster until the next question."""
        if self._is_stale:
            return
        now = time.monotonic()
        self._changes.append(lambda cluster: change(cluster, now))
        if len(self._changes) > MOST_CHANGES:
            self._make_stale()

    def set_queued(self, pods: Iterable[QueueWhy] | None) -> bool:
        """Store what the queue says about pods, None if it does not answer; return True if that is new."""
        before = _drop_wait_times(self.queued)
        self.queued = None if pods is None else {(pod.namespace, pod.name): pod for pod in pods}
        return _drop_wait_times(self.queued) != before

    def find_queued(self, namespace: str, name: str) -> tuple[QueueWhy, ...] | None:
        """Return what the queue says about one pod, at most one answer; None if it has not answered."""
        found = None if self.queued is None else self.queued.get((namespace, name))
        return None if self.queued is None else () if found is None else (found,)

    def get_labels(self) -> Mapping[str, Mapping[str, str]]:
        return {pod.metadata.uid: pod.metadata.labels or {} for pod in (self.pods or {}).values()}


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
