"""Keeps the objects of a cluster as they are now, for processes that watch it."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from allocator.claims import ClaimObject
from gpupack.inventory.objects import NodesAndPods
from gpupack.whatif.cluster import Cluster, UnitCounter
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.claim_charges import serves_claims
from scheduler_plugin.cache.pod_groups import PodGroups, find_coscheduling_key

PodKey = tuple[str, str]

MOST_CHANGES: Final = 20_000
"""Changes that are remembered while nobody asks; building the cluster anew takes no longer than more."""


class LiveCluster:
    """Keeps the objects of a cluster as they are now, and a `Cluster` of them to be asked about."""

    def __init__(self, unit_mib: int | None = None) -> None:
        self.nodes: dict[str, Node] | None = None
        self.pods: dict[PodKey, Pod] | None = None
        self.serves_claims = False
        self.pod_groups: PodGroups[Pod] = PodGroups()
        self.coscheduling_groups: PodGroups[Pod] = PodGroups(keeps_deleted=True)
        self._on_node: dict[str, dict[PodKey, Pod]] = {}
        self._claims: dict[str, ClaimObject] = {}
        self._claims_on_node: dict[str, dict[str, ClaimObject]] = {}
        self._dirty: set[str] = set()
        self._cluster: Cluster | None = None
        self._changes: list[Callable[[Cluster], None]] = []
        self._is_stale = True
        self._usual_unit = UnitCounter()
        self._is_unit_fixed = unit_mib is not None
        self._unit_mib = unit_mib

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        before = self.nodes or {}
        self.nodes = {node.metadata.name: node for node in nodes}
        self._dirty |= before.keys() | self.nodes.keys()
        self._make_stale()
        self._usual_unit = UnitCounter(self.nodes.values())
        self.serves_claims = self.serves_claims or any(map(serves_claims, self.nodes.values()))
        self._follow_unit()

    def put_node(self, node: Node) -> None:
        self.nodes = self.nodes if self.nodes is not None else {}
        self.nodes[node.metadata.name] = node
        self.serves_claims = self.serves_claims or serves_claims(node)
        self._dirty.add(node.metadata.name)
        self._usual_unit.put(node)
        self._follow_unit()
        self._note_change(lambda cluster, now: cluster.put_node(node, now))

    def drop_node(self, node: Node) -> None:
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

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._dirty |= self._on_node.keys()
        self.pods, self._on_node = {}, {}
        self._make_stale()
        listed = set()
        for pod in pods:
            self.put_pod(pod)
            listed.add(pod.metadata.uid)
        for groups in (self.pod_groups, self.coscheduling_groups):
            groups.remove_other_members(listed)

    def put_pod(self, pod: Pod) -> None:
        self.pods = self.pods if self.pods is not None else {}
        key = (pod.metadata.namespace, pod.metadata.name)
        self._off_node(key, keep=pod.spec.node_name)
        uid = pod.metadata.uid
        self.pod_groups.put_member(pod.scheduling_group, uid, pod)
        self.coscheduling_groups.put_member(find_coscheduling_key(pod.metadata), uid, pod)
        self.pods[key] = pod
        if pod.spec.node_name:
            self._on_node.setdefault(pod.spec.node_name, {})[key] = pod
            self._dirty.add(pod.spec.node_name)
        self._note_change(lambda cluster, now: cluster.put_pod(pod, now))

    def drop_pod(self, pod: Pod) -> None:
        key = (pod.metadata.namespace, pod.metadata.name)
        self._off_node(key)
        (self.pods or {}).pop(key, None)
        for groups in (self.pod_groups, self.coscheduling_groups):
            groups.remove_member(pod.metadata.uid)
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

    def _off_nodes(self, uid: str) -> None:
        known = self._claims.get(uid)
        for result in (known.results if known is not None else None) or ():
            self._claims_on_node.get(result.pool, {}).pop(uid, None)
            self._dirty.add(result.pool)

    def _off_node(self, key: PodKey, keep: str = "") -> None:
        known = (self.pods or {}).get(key)
        node = known.spec.node_name if known is not None else ""
        if not node or node == keep:
            return
        seated = self._on_node.get(node, {})
        seated.pop(key, None)
        if not seated:
            self._on_node.pop(node, None)
        self._dirty.add(node)

    def take_changed_nodes(self) -> set[str]:
        """Take the names of the nodes that changed, or whose pods or claims did, since the last call."""
        changed, self._dirty = self._dirty, set()
        return changed

    def list_node_objects(self, node: Node) -> NodesAndPods:
        """List a node, its pods and its claims; the pods are None before their first list."""
        name = node.metadata.name
        pods = None if self.pods is None else list(self._on_node.get(name, {}).values())
        claims = list(self._claims_on_node.get(name, {}).values())
        return NodesAndPods([node], pods, claims)

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
            return self._make_again_on_failure(partial(self._apply_changes, changes))
        self._is_stale = False
        build = partial(
            Cluster.from_objects,
            list((self.nodes or {}).values()),
            list((self.pods or {}).values()),
            unit_mib=self._unit_mib,
            claims=tuple(self._claims.values()),
            pod_groups=self.pod_groups,
            coscheduling_groups=self.coscheduling_groups,
        )
        return self._make_again_on_failure(build)

    def _make_again_on_failure(self, make: Callable[[], Cluster]) -> Callable[[], Cluster]:
        """Have the cluster built anew after one that could not be made, or not changed to the end."""

        def update() -> Cluster:
            try:
                self._cluster = make()
            except BaseException:
                self._is_stale = True
                raise
            return self._cluster

        return update

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

    def get_labels(self) -> Mapping[str, Mapping[str, str]]:
        return {pod.metadata.uid: pod.metadata.labels or {} for pod in (self.pods or {}).values()}
