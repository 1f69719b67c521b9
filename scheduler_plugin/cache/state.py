"""The scheduler's cache: nodes and pods as last seen, assumed pods, and the arrays derived from them."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from allocator.names import resource_name
from allocator.podcards import read_accounted_units
from allocator.records import Assignment
from kubeapi.metadata import parse_resource_version
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.amounts import NOTHING
from scheduler_plugin.cache.charges import TOMBSTONE_S, AssumedPod, Charge, ChargeRules, NodeRecord, Tombstone
from scheduler_plugin.cache.claim_charges import serves_claims
from scheduler_plugin.cache.claims import ClaimCache
from scheduler_plugin.cache.group_holds import GroupHolds
from scheduler_plugin.cache.node_records import NodeRecords, read_capacity
from scheduler_plugin.cache.pod_groups import PodGroups
from scheduler_plugin.cache.pods import PodRecord, read_pod
from scheduler_plugin.cache.published_nodes import Exclusion, read_published
from scheduler_plugin.cache.reservations import Reservations
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.versions import ObjectVersions, is_other_history
from scheduler_plugin.errors import StateError


class ClusterState:
    """Nodes, pods and what follows from them. Pure: times (seconds) and resourceVersions are arguments.

    The life of a pod that asks for cards, as the charge on its node counts it:

        (waiting) --assume--> ASSUMED --seen bound--> BOUND --in the node's `holds`--> CONFIRMED
            ^                    |                      |                                  |
            |     forget, or the |                      | ended or gone before             | ended or gone
            +--- pod has changed +                      v  the node accounts it            v
                                 +---- gone ------> TOMBSTONE --------------------------> (free)
                                                       words that know its end, or TOMBSTONE_S

    ASSUMED, BOUND and TOMBSTONE add a charge to the node's words. CONFIRMED adds none: the words show its
    units. An accounted pod that ended stays in the words until the node takes it out.

    Invariant: after every call, `assumed` in the row of every node with readable words is what
    `ChargeRules.sum_by_card` computes from the current caches, never a remembered decision. So units that
    the kubelet has given, plus units of pods bound and not admitted, fit into `used + assumed` of each card.
    The order of node and pod events does not matter, and repeated or late events do no harm. Every charge
    ends once its pod has ended.

    After an etcd restore a complete list belongs to another history: known objects are compared with it as if
    they had no versions. A pod that was bound or assumed and is not listed is charged for TOMBSTONE_S,
    because its containers may still run and the words of its node are as old as the restored state.

    Attributes:
        unit_mib: The quantum that nodes and pods must agree on.
        resource: Name of the extended resource.
        pod_groups: Kubernetes' own PodGroups, with their pods.
        claims: Claims that were not made by the extender, see `claims.ClaimCache`.
        nominated: UIDs of pods without a node for which a node is nominated.
        reservations: The cards that are reserved for nominated pods; no part of `assumed`.
        group_holds: The cards that are held for pods whose PodGroup is being placed; likewise.
        pod_resolved: Signals a pod that asks for cards when it is first seen bound, or ended or gone before
            that. A pod that was never bound has no node in its record.
        node_failed: Signals a node's name and an error when its row could not be computed. The row is
            excluded as corrupt by then, and every other row is right. Raises while nobody listens.
    """

    def __init__(self, unit_mib: int = 1024, *, rules: ChargeRules | None = None) -> None:
        self.unit_mib = unit_mib
        self.resource = resource_name(unit_mib)
        self.rules = rules or ChargeRules()
        self._records = NodeRecords(self.rules)
        self.node_records = self._records.by_name
        self.nodes = self._records.nodes
        self.pods: dict[str, PodRecord] = {}
        self.gangs: dict[tuple[str, str], dict[str, PodRecord]] = {}
        self.pod_groups: PodGroups[PodRecord] = PodGroups()
        self.claims = ClaimCache(self._records, unit_mib, self._find_end)
        self.nominated: set[str] = set()
        self.reservations = Reservations()
        self.pod_resolved: Signal[[PodRecord]] = Signal()
        self.node_failed = self._records.node_failed
        self._assumed: dict[str, AssumedPod] = {}
        self.group_holds = GroupHolds(self.pod_groups, self.reservations, self._assumed)
        self._pod_versions = ObjectVersions()
        self._node_versions = ObjectVersions()

    def set_other_resources(self, names: Sequence[str]) -> None:
        self._records.set_other_resources(names)

    # Nodes.

    def apply_node(self, node: Node, now: float) -> None:
        """Apply a node's newest version; ignore one that is older than the known one."""
        self._apply_node(node)
        self._records.update_arrays(now)

    def delete_node(self, name: str, resource_version: str, now: float) -> None:
        """Forget a Node object; pods bound to its name stay."""
        self._delete_node(name, parse_resource_version(resource_version))
        self._records.update_arrays(now)

    def replace_nodes(
        self, nodes: Sequence[Node], resource_version: str, now: float, *, restored: bool = False
    ) -> bool:
        """Apply a complete list; known nodes that it lacks are gone. Return True if it is of another history.

        Args:
            restored: The API server was restored from an older state, see `kubeapi.reflect.Sink.replace`.
        """
        version = parse_resource_version(resource_version)
        restored = restored or is_other_history(version, self._pair_node_versions(nodes))
        if restored:
            self._node_versions.reset()
            for record in self.node_records.values():
                record.version = 0
        listed: set[str] = set()
        for node in nodes:
            listed.add(node.metadata.name)
            self._apply_node(node)
        for name in [name for name in self.nodes.rows if name not in listed]:
            if self.node_records[name].version <= version:
                self._delete_node(name, version)
        self._node_versions.record_list(version)
        self._records.update_arrays(now)
        return restored

    def _pair_node_versions(self, nodes: Iterable[Node]) -> Iterator[tuple[int, int]]:
        if not self.nodes.rows:
            return  # each loop decodes a first list anew, see `kubeapi.lists.CompactList`
        for node in nodes:
            record = self.node_records.get(node.metadata.name)
            if record is not None and record.row >= 0:
                yield parse_resource_version(node.metadata.resource_version), record.version

    def _apply_node(self, node: Node) -> None:
        name = node.metadata.name
        version = parse_resource_version(node.metadata.resource_version)
        record = self.node_records.get(name)
        if record is not None and record.row >= 0:
            if version < record.version or (version and version == record.version):
                return
        elif self._node_versions.is_old(name, version):
            return
        record = self._records.get_or_add(name)
        if record.row < 0:
            record.row = self.nodes.add_node(name)
        record.version = version
        others = record.capacity.others
        allocatable = node.status.allocatable or {}
        record.capacity = read_capacity(allocatable, self.resource, serves_claims=serves_claims(node))
        self.nodes.amounts.set_capacity(record.row, record.capacity)
        if record.capacity.others != others:
            # What no node policy names has no column there.
            self.nodes.changes.record(record.row)
        self._records.mark_changed(name)
        try:
            self._read_cards(record, node)
        except Exception as error:  # noqa: BLE001  (whatever it is, no other node may suffer)
            self._records.exclude_failed(record, error)

    def _read_cards(self, record: NodeRecord, node: Node) -> None:
        """Read a node's words, inventory and accounted pods, or exclude its row with a reason."""
        published = read_published(node, self.unit_mib)
        record.revision = published.revision
        record.seen_version, record.holds = published.holds.seen, read_accounted_units(published.holds)
        if record.seen_version > record.version > 0:
            # What is later than the write itself was seen before an etcd restore.
            record.seen_version = -1
        record.held_claims = published.holds.claims
        record.sizes, record.used = published.sizes, published.used
        record.uuids, record.indexes = published.uuids, published.indexes
        record.serves_claims = published.serves_claims
        self.claims.is_wanted = self.claims.is_wanted or serves_claims(node)
        if published.exclusion is Exclusion.NONE:
            self.nodes.set_cards(
                record.row,
                published.sizes,
                published.used,
                evictable=published.evictable,
                uuids=published.uuids,
                models=published.models,
                numa=published.numa,
                links=published.links,
                percent=published.percent,
                serves_claims=published.serves_claims,
                compute_limit=published.compute_limit,
                compute_used=published.compute_used,
            )
        elif self.nodes.exclusion[record.row] != published.exclusion:
            self.nodes.exclude_row(record.row, published.exclusion)

    def _delete_node(self, name: str, version: int) -> None:
        record = self.node_records.get(name)
        if record is None or record.row < 0 or version < record.version:
            return
        self.nodes.remove_node(name)
        self._node_versions.record_deletion(name, version)
        record.row, record.version, record.revision = -1, 0, 0
        record.capacity = NOTHING
        record.clear_published()
        if not self.rules.keeps_charges_without_node():
            record.pods.clear()
            record.assumed.clear()
            record.tombstones.clear()
            record.claims.clear()
            record.claim_tombstones.clear()
        self._records.mark_changed(name)

    # Pods.

    def apply_pod(self, pod: Pod, now: float) -> None:
        """Apply a pod's newest version; ignore one that is older than the known one."""
        self._read_pod(pod, now)
        self._records.update_arrays(now)

    def delete_pod(self, pod: Pod, resource_version: str, now: float) -> None:
        """Forget a pod, whose last version names the node to which it was bound."""
        record = read_pod(pod, self.resource)
        assumed = self._assumed.get(record.uid)
        if assumed is not None and not record.node:
            self._drop_assumed(assumed)
        self._remove_pod(record.uid, record.node, parse_resource_version(resource_version), now)
        self._records.update_arrays(now)

    def replace_pods(
        self, pods: Sequence[Pod], resource_version: str, now: float, *, restored: bool = False
    ) -> bool:
        """Apply a complete list made at a resourceVersion; known pods that it lacks vanished by then.

        Arguments and result are those of `replace_nodes`.
        """
        version = parse_resource_version(resource_version)
        restored = restored or is_other_history(version, self._pair_pod_versions(pods))
        before: list[PodRecord] = []
        if restored:
            before = list(self.pods.values())
            self._reset_pod_versions(version, now)
        listed: set[str] = set()
        for pod in pods:
            listed.add(pod.metadata.uid)
            self._read_pod(pod, now)
        for uid in [uid for uid in self.pods if uid not in listed]:
            if self.pods[uid].version <= version:
                self._remove_pod(uid, "", version, now)
        for old in before:
            current = self.pods.get(old.uid)
            if old.node and not old.ended and (current is None or current.node != old.node):
                self._add_tombstone(old, old.node, old.assigned, version, now)
        self._pod_versions.record_list(version)
        self._records.update_arrays(now)
        return restored

    def _pair_pod_versions(self, pods: Iterable[Pod]) -> Iterator[tuple[int, int]]:
        if not self.pods:
            return
        for pod in pods:
            known = self.pods.get(pod.metadata.uid)
            if known is not None:
                yield parse_resource_version(pod.metadata.resource_version), known.version

    def _reset_pod_versions(self, version: int, now: float) -> None:
        """Accept any version of a pod from now on; charge assumed pods as if they were bound and gone."""
        self._pod_versions.reset()
        for uid, pod in self.pods.items():
            self.pods[uid] = msgspec.structs.replace(pod, resource_version="")
        for record in self.node_records.values():
            record.seen_version = -1
        for assumed in list(self._assumed.values()):
            self._drop_assumed(assumed)
            self._add_tombstone(assumed.pod, assumed.node, assumed.assigned, version, now)

    def _read_pod(self, pod: Pod, now: float) -> None:
        """Apply a pod, unless this very version of it is known."""
        old = self.pods.get(pod.metadata.uid)
        if old is None or not old.version or old.resource_version != pod.metadata.resource_version:
            self._apply_pod(read_pod(pod, self.resource), now)

    def _apply_pod(self, pod: PodRecord, now: float) -> None:
        old = self.pods.get(pod.uid)
        if old is not None:
            if pod.version < old.version:
                return
            self._uncount_pod(old)
        elif self._pod_versions.is_old(pod.uid, pod.version):
            return
        self.pods[pod.uid] = pod
        self._put_group_member(pod)
        (self.nominated.add if pod.nominated else self.nominated.discard)(pod.uid)
        if pod.charged is not None and (pod.node or pod.ended) and (old is None or not old.node):
            self.pod_resolved(pod)
        assumed = self._assumed.get(pod.uid)
        if assumed is not None and not pod.ended and assumed.counts_as(pod):
            # One in place of the other: the node's row stays as it is.
            self._end_assumption(assumed)
            self._add_bound(pod)
            return
        if assumed is not None and (pod.node or pod.ended or self.rules.is_binding_stale(assumed, pod)):
            self._drop_assumed(assumed)
        if not pod.node:
            return
        if not pod.ended:
            self._add_bound(pod)
            self._records.mark_changed(pod.node)
        elif old is None or not old.ended:
            self.claims.note_end(pod.uid, pod.node, pod.version)
            self._record_vanished(pod, pod.node, pod.assigned, pod.version, now)

    def _add_bound(self, pod: PodRecord) -> None:
        record = self._records.get_or_add(pod.node)
        record.count_requests(pod, 1)
        if pod.gang is not None:
            self.gangs.setdefault(pod.gang, {})[pod.uid] = pod
        if pod.charged is not None:
            record.pods[pod.uid] = pod

    def _remove_pod(self, uid: str, node: str, version: int, now: float) -> None:
        """Remove a pod that vanished at `version`; if it was assumed, it may have been bound before that."""
        old = self.pods.get(uid)
        if old is not None and version < old.version:
            return
        self._pod_versions.record_deletion(uid, version)
        if old is None:
            return
        del self.pods[uid]
        self.pod_groups.remove_member(uid)
        self._end_group_holds(old)
        self.nominated.discard(uid)
        if old.charged is not None and not old.node:
            self.pod_resolved(old)
        self._uncount_pod(old)
        assumed = self._assumed.get(uid)
        assigned = old.assigned
        if assumed is not None:
            self._drop_assumed(assumed)
            node, assigned = node or assumed.node, assumed.assigned
        node = node or old.node
        self.claims.note_end(uid, node, version)
        if node and not old.ended:
            self._record_vanished(old, node, assigned, version, now)

    def _find_end(self, uid: str, node: str) -> int | None:
        """Return the version at which a pod ended on a node, 0 if it has another one; see `ClaimCache`."""
        pod = self.pods.get(uid)
        if pod is None:
            return self._pod_versions.find_deletion(uid)
        if pod.node and pod.node != node:
            return 0
        return pod.version if pod.ended else None

    def _uncount_pod(self, pod: PodRecord) -> None:
        if pod.node and not pod.ended:
            record = self._records.get_or_add(pod.node)
            record.count_requests(pod, -1)
            record.pods.pop(pod.uid, None)
            self._records.mark_changed(pod.node)
            if pod.gang is not None:
                members = self.gangs.get(pod.gang, {})
                members.pop(pod.uid, None)
                if not members:
                    self.gangs.pop(pod.gang, None)

    def _record_vanished(
        self, pod: PodRecord, node: str, assigned: Assignment | None, version: int, now: float
    ) -> None:
        """Add a tombstone if the rules require one."""
        if pod.charged is None:
            return
        self._records.mark_changed(node)
        if self.rules.needs_tombstone(self._records.get_or_add(node), pod.uid, version):
            self._add_tombstone(pod, node, assigned, version, now)

    def _add_tombstone(
        self, pod: PodRecord, node: str, assigned: Assignment | None, version: int, now: float
    ) -> None:
        if pod.charged is not None:
            tombstone = Tombstone(Charge(pod.uid, pod.charged, assigned), version, now + TOMBSTONE_S)
            self._records.get_or_add(node).tombstones[pod.uid] = tombstone
            self._records.mark_expiring(node)

    # Assumed pods.

    def assume(self, uid: str, node: str, assigned: Assignment | None, now: float) -> AssumedPod:
        """Charge a pod to a node before its Binding is sent.

        Raises:
            StateError: the pod or node is not as it must be.
        """
        pod = self.pods.get(uid)
        if pod is None or pod.node or pod.ended or uid in self._assumed or node not in self.nodes.rows:
            raise StateError(f"pod {uid} on node {node}; allowed: a known pod without node, taken once")
        self._end_group_holds(pod)
        assumed = AssumedPod(pod, node, assigned)
        self._assumed[uid] = assumed
        self._records.get_or_add(node).assumed[uid] = assumed
        self._records.mark_changed(node)
        self._records.update_arrays(now)
        return assumed

    def is_pending(self, uid: str) -> bool:
        """Tell whether a pod is known, not bound, and not assumed anywhere."""
        record = self.pods.get(uid)
        return record is not None and not record.node and self.get_assumed(uid) is None

    def get_assumed(self, uid: str) -> AssumedPod | None:
        return self._assumed.get(uid)

    def forget(self, assumed: AssumedPod, now: float) -> None:
        """End an assumption whose Binding was refused; do nothing if it has ended already."""
        if self._assumed.get(assumed.pod.uid) is assumed:
            self._drop_assumed(assumed)
            self._records.update_arrays(now)

    def expire_tombstones(self, now: float) -> None:
        """End what counts for a time only: tombstones, and holds of pod groups."""
        self.group_holds.expire(now)
        self._records.update_arrays(now, expire=True)

    def _put_group_member(self, pod: PodRecord) -> None:
        self.pod_groups.put_member(pod.scheduling_group, pod.uid, pod)
        if pod.node or pod.ended:
            self._end_group_holds(pod)

    def _end_group_holds(self, pod: PodRecord) -> None:
        if pod.scheduling_group is not None:
            self.group_holds.end_holds(pod.scheduling_group, pod.uid)

    def _drop_assumed(self, assumed: AssumedPod) -> None:
        self._end_assumption(assumed)
        self._records.mark_changed(assumed.node)

    def _end_assumption(self, assumed: AssumedPod) -> None:
        del self._assumed[assumed.pod.uid]
        self._records.get_or_add(assumed.node).assumed.pop(assumed.pod.uid, None)
