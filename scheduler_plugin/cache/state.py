"""The cluster as the scheduler sees it: caches of nodes and pods, and arrays that follow from them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from allocator.names import resource_name
from allocator.quantity import parse_bytes, parse_milli
from allocator.records import Assignment
from kubeapi.metadata import parse_resource_version
from scheduler_plugin.cache.charges import TOMBSTONE_S, Claim, NodeRecord, Rules, Take, Tombstone
from scheduler_plugin.cache.node_records import Books, other_amounts
from scheduler_plugin.cache.nodes import Exclusion
from scheduler_plugin.cache.objects import NodeLite, PodLite
from scheduler_plugin.cache.pods import PodRecord, read_pod
from scheduler_plugin.cache.published import held_units, read_published
from scheduler_plugin.cache.reservations import Reservations
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.sums import read_offered
from scheduler_plugin.cache.versions import Versions, contradicts
from scheduler_plugin.errors import StateError


class ClusterState:
    """Nodes, pods and what follows from them. Pure: times (seconds) and resourceVersions are arguments.

    Invariant, after every call: in the row of every node with readable words, `assumed` is what
    `Rules.assumed` says of the current caches, never a remembered decision; so units that the kubelet holds
    plus units of pods bound and not admitted fit into `used + assumed` of each card, in any order of node and
    pod events, repeated or late ones included. Every claim ends once its pod has ended.

    After an etcd restore a complete list is of another history: what is known is compared with it as if it
    had no versions, and what was bound or committed before and is not listed there counts for TOMBSTONE_S:
    its containers may still run, and the words of its node are as old as the restored state.

    Attributes:
        unit_mib: The quantum that nodes and pods must agree on.
        resource: Name of the extended resource.
        nodes: The arrays.
        pods: Every known pod by UID.
        nominated: UIDs of those without a node that one is being kept for.
        reservations: The cards that are kept for them; no part of `assumed`.
        books: What is known by node name.
        settled: Says that a pod that asks for cards is seen bound first, or ended or is gone before that
            (its record has no node then).
        broken: Says the name of a node and what went wrong when its row could not be computed. The row is
            excluded as corrupt by then, every other one is as it should be. Raises while nobody listens.
    """

    def __init__(self, unit_mib: int = 1024, *, rules: Rules | None = None) -> None:
        self.unit_mib = unit_mib
        self.resource = resource_name(unit_mib)
        self.rules = rules or Rules()
        self._books = Books(self.rules)
        self.books = self._books.by_name
        self.nodes = self._books.nodes
        self.pods: dict[str, PodRecord] = {}
        self.nominated: set[str] = set()
        self.reservations = Reservations()
        self.settled: Signal[[PodRecord]] = Signal()
        self.broken = self._books.broken
        self._takes: dict[str, Take] = {}
        self._pod_versions = Versions()
        self._node_versions = Versions()

    def count_resources(self, names: Sequence[str]) -> None:
        """Have these further resources of nodes and pods in the arrays, and no others."""
        self._books.count_resources(names)

    # Nodes.

    def apply_node(self, node: NodeLite, now: float) -> None:
        """Take a node's newest version; an older one than known is ignored."""
        self._apply_node(node)
        self._books.settle(now)

    def delete_node(self, name: str, resource_version: str, now: float) -> None:
        """Forget a Node object; pods bound to its name stay."""
        self._delete_node(name, parse_resource_version(resource_version))
        self._books.settle(now)

    def replace_nodes(
        self, nodes: Sequence[NodeLite], resource_version: str, now: float, *, restored: bool = False
    ) -> bool:
        """Take a complete list made at a resourceVersion; known nodes that it lacks are gone.

        Args:
            nodes: All of them.
            resource_version: Of the list.
            now: Seconds.
            restored: The API server was restored from an older state, see `kubeapi.reflect.Sink.replace`.

        Returns:
            Whether the list is of another history than what was known.
        """
        version = parse_resource_version(resource_version)
        restored = restored or contradicts(version, self._shown_nodes(nodes))
        if restored:
            self._node_versions.forget()
            for book in self.books.values():
                book.version = 0
        listed: set[str] = set()
        for node in nodes:
            listed.add(node.metadata.name)
            self._apply_node(node)
        for name in [name for name in self.nodes.rows if name not in listed]:
            if self.books[name].version <= version:
                self._delete_node(name, version)
        self._node_versions.listed(version)
        self._books.settle(now)
        return restored

    def _shown_nodes(self, nodes: Iterable[NodeLite]) -> Iterator[tuple[int, int]]:
        for node in nodes:
            book = self.books.get(node.metadata.name)
            if book is not None and book.row >= 0:
                yield parse_resource_version(node.metadata.resource_version), book.version

    def _apply_node(self, node: NodeLite) -> None:
        name = node.metadata.name
        version = parse_resource_version(node.metadata.resource_version)
        book = self.books.get(name)
        if book is not None and book.row >= 0:
            if version < book.version or (version and version == book.version):
                return
        elif self._node_versions.is_old(name, version):
            return
        book = self._books.of(name)
        if book.row < 0:
            book.row = self.nodes.add(name)
        book.version = version
        allocatable = node.status.allocatable or {}
        self.nodes.set_capacity(
            book.row,
            _quantity(allocatable, "cpu", parse_milli),
            _quantity(allocatable, "memory", parse_bytes),
        )
        book.allocatable = other_amounts(allocatable)
        offered = read_offered(allocatable, self.resource)
        if book.offered != offered:
            book.offered = offered
            self.nodes.version[book.row] += 1
        self._books.changed(name)
        try:
            self._read_cards(book, node)
        except Exception as error:  # noqa: BLE001  (whatever it is, no other node may suffer)
            self._books.give_up(book, error)

    def _read_cards(self, book: NodeRecord, node: NodeLite) -> None:
        """Take a node's words, inventory and holds, or exclude its row with a reason."""
        published = read_published(node, self.unit_mib)
        book.revision = published.revision
        book.seen, book.holds = published.holds.seen, held_units(published.holds)
        if book.seen > book.version > 0:
            # What is later than the write itself was seen before an etcd restore.
            book.seen = -1
        book.sizes, book.used = published.sizes, published.used
        book.uuids, book.indexes = published.uuids, published.indexes
        if published.exclusion is Exclusion.NONE:
            self.nodes.set_cards(
                book.row,
                published.sizes,
                published.used,
                evictable=published.evictable,
                uuids=published.uuids,
                models=published.models,
                numa=published.numa,
                links=published.links,
                percent=published.percent,
            )
        elif self.nodes.exclusion[book.row] != published.exclusion:
            self.nodes.exclude(book.row, published.exclusion)

    def _delete_node(self, name: str, version: int) -> None:
        book = self.books.get(name)
        if book is None or book.row < 0 or version < book.version:
            return
        self.nodes.remove(name)
        self._node_versions.ended(name, version)
        book.row, book.version, book.revision = -1, 0, 0
        book.allocatable = ()
        book.forget_words()
        if not self.rules.keeps_without_node():
            book.pods.clear()
            book.takes.clear()
            book.tombstones.clear()
        self._books.changed(name)

    # Pods.

    def apply_pod(self, pod: PodLite, now: float) -> None:
        """Take a pod's newest version; an older one than known is ignored."""
        self._read_pod(pod, now)
        self._books.settle(now)

    def delete_pod(self, pod: PodLite, resource_version: str, now: float) -> None:
        """Forget a pod.

        Args:
            pod: Its last version, with the node it was bound to.
            resource_version: Of the deletion.
            now: Seconds.
        """
        record = read_pod(pod, self.resource)
        take = self._takes.get(record.uid)
        if take is not None and not record.node:
            self._drop_take(take)
        self._end_pod(record.uid, record.node, parse_resource_version(resource_version), now)
        self._books.settle(now)

    def replace_pods(
        self, pods: Sequence[PodLite], resource_version: str, now: float, *, restored: bool = False
    ) -> bool:
        """Take a complete list made at a resourceVersion; known pods that it lacks vanished by then.

        Arguments and result as of `replace_nodes`.
        """
        version = parse_resource_version(resource_version)
        restored = restored or contradicts(version, self._shown_pods(pods))
        before: list[PodRecord] = []
        if restored:
            before = list(self.pods.values())
            self._forget_pod_versions(version, now)
        listed: set[str] = set()
        for pod in pods:
            listed.add(pod.metadata.uid)
            self._read_pod(pod, now)
        for uid in [uid for uid in self.pods if uid not in listed]:
            if self.pods[uid].version <= version:
                self._end_pod(uid, "", version, now)
        for old in before:
            current = self.pods.get(old.uid)
            if old.node and not old.ended and (current is None or current.node != old.node):
                self._leave_tombstone(old, old.node, old.assigned, version, now)
        self._pod_versions.listed(version)
        self._books.settle(now)
        return restored

    def _shown_pods(self, pods: Iterable[PodLite]) -> Iterator[tuple[int, int]]:
        for pod in pods:
            known = self.pods.get(pod.metadata.uid)
            if known is not None:
                yield parse_resource_version(pod.metadata.resource_version), known.version

    def _forget_pod_versions(self, version: int, now: float) -> None:
        """Let any version of a pod be news, and what was committed count as what was bound and is gone."""
        self._pod_versions.forget()
        for uid, pod in self.pods.items():
            self.pods[uid] = replace(pod, resource_version="")
        for book in self.books.values():
            book.seen = -1
        for take in list(self._takes.values()):
            self._drop_take(take)
            self._leave_tombstone(take.pod, take.node, take.assigned, version, now)

    def _read_pod(self, pod: PodLite, now: float) -> None:
        """Take a pod, unless this very version of it is known."""
        old = self.pods.get(pod.metadata.uid)
        if old is None or not old.version or old.resource_version != pod.metadata.resource_version:
            self._apply_pod(read_pod(pod, self.resource), now)

    def _apply_pod(self, record: PodRecord, now: float) -> None:
        old = self.pods.get(record.uid)
        if old is not None:
            if record.version < old.version:
                return
            self._unbook(old)
        elif self._pod_versions.is_old(record.uid, record.version):
            return
        self.pods[record.uid] = record
        (self.nominated.add if record.nominated else self.nominated.discard)(record.uid)
        if record.charged is not None and (record.node or record.ended) and (old is None or not old.node):
            self.settled(record)
        take = self._takes.get(record.uid)
        if take is not None and (record.node or record.ended or self.rules.binding_is_stale(take, record)):
            self._drop_take(take)
        if not record.node:
            return
        if not record.ended:
            book = self._books.of(record.node)
            book.count_requests(record, 1)
            if record.charged is not None:
                book.pods[record.uid] = record
            self._books.changed(record.node)
        elif old is None or not old.ended:
            self._note_vanished(record, record.node, record.assigned, record.version, now)

    def _end_pod(self, uid: str, node: str, version: int, now: float) -> None:
        """Remove a pod that vanished at `version`; a commitment of it may have been carried out."""
        old = self.pods.get(uid)
        if old is not None and version < old.version:
            return
        self._pod_versions.ended(uid, version)
        if old is None:
            return
        del self.pods[uid]
        self.nominated.discard(uid)
        if old.charged is not None and not old.node:
            self.settled(old)
        self._unbook(old)
        take = self._takes.get(uid)
        assigned = old.assigned
        if take is not None:
            self._drop_take(take)
            node, assigned = node or take.node, take.assigned
        node = node or old.node
        if node and not old.ended:
            self._note_vanished(old, node, assigned, version, now)

    def _unbook(self, record: PodRecord) -> None:
        """Undo what a bound pod did to its book."""
        if record.node and not record.ended:
            book = self._books.of(record.node)
            book.count_requests(record, -1)
            book.pods.pop(record.uid, None)
            self._books.changed(record.node)

    def _note_vanished(
        self, record: PodRecord, node: str, assigned: Assignment | None, version: int, now: float
    ) -> None:
        """Leave a tombstone where the rules want one."""
        if record.charged is None:
            return
        self._books.changed(node)
        if self.rules.needs_tombstone(self._books.of(node), record.uid, version):
            self._leave_tombstone(record, node, assigned, version, now)

    def _leave_tombstone(
        self, record: PodRecord, node: str, assigned: Assignment | None, version: int, now: float
    ) -> None:
        if record.charged is not None:
            claim = Claim(record.uid, record.charged, assigned)
            self._books.of(node).tombstones[record.uid] = Tombstone(claim, version, now + TOMBSTONE_S)
            self._books.expires(node)

    # Commitments.

    def take(self, uid: str, node: str, assigned: Assignment | None, now: float) -> Take:
        """Commit cards for a pod, before its Binding is sent.

        Args:
            uid: A pod that is known, not bound and not taken.
            node: Target, a node with a row.
            assigned: Cards by container, None where the node's UUIDs are not known.
            now: Seconds.

        Raises:
            StateError: the pod or node is not as it must be.
        """
        pod = self.pods.get(uid)
        if pod is None or pod.node or pod.ended or uid in self._takes or node not in self.nodes.rows:
            raise StateError(f"pod {uid} on node {node}; allowed: a known pod without node, taken once")
        take = Take(pod, node, assigned)
        self._takes[uid] = take
        self._books.of(node).takes[uid] = take
        self._books.changed(node)
        self._books.settle(now)
        return take

    def taken(self, uid: str) -> Take | None:
        """The commitment of a pod, if there is one."""
        return self._takes.get(uid)

    def roll_back(self, take: Take, now: float) -> None:
        """Undo a commitment whose Binding was refused; does nothing when it has ended already."""
        if self._takes.get(take.pod.uid) is take:
            self._drop_take(take)
            self._books.settle(now)

    def expire(self, now: float) -> None:
        """End whatever time ends."""
        self._books.settle(now, expire=True)

    def _drop_take(self, take: Take) -> None:
        del self._takes[take.pod.uid]
        self._books.of(take.node).takes.pop(take.pod.uid, None)
        self._books.changed(take.node)


class Parse(Protocol):
    """A function that reads a quantity."""

    def __call__(self, value: str | int, /) -> int:
        """Read a quantity."""
        ...


def _quantity(resources: dict[str, str | int], name: str, parse: Parse) -> int:
    """Read a capacity; one that cannot be read counts as none."""
    value = resources.get(name)
    if value is None:
        return 0
    try:
        return max(0, parse(value))
    except ValueError:
        return 0
