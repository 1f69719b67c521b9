"""The cluster as the scheduler sees it: caches of nodes and pods, and arrays that follow from them."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from allocator.names import resource_name
from allocator.quantity import parse_bytes, parse_milli
from allocator.records import Assignment
from scheduler_plugin.cluster.nodes import Exclusion, NodeArrays
from scheduler_plugin.cluster.objects import NodeLite, PodLite
from scheduler_plugin.cluster.pods import PodRecord, Shape, read_pod, shapes, version_number
from scheduler_plugin.cluster.published import read_published
from scheduler_plugin.cluster.rules import TOMBSTONE_S, Book, Claim, Rules, Take, Tombstone
from scheduler_plugin.errors import StateError

_GRAVES: Final = 16384


class ClusterState:
    """Nodes, pods and what follows from them. Pure: times (seconds) and resourceVersions are arguments.

    Invariant, after every call: in the row of every node with readable words, `assumed` is what
    `Rules.assumed` says of the current caches, never a remembered decision; so units that the kubelet holds
    plus units of pods bound and not admitted fit into `used + assumed` of each card, in any order of node and
    pod events, repeated or late ones included. Every claim ends once its pod has ended.

    Attributes:
        unit_mib: The quantum that nodes and pods must agree on.
        resource: Name of the extended resource.
        nodes: The arrays.
        pods: Every known pod by UID.
        books: What is known by node name.
        settled: Called with every pod that asks for cards when it is seen bound first, and when it ends or
            is gone before that (its record has no node then).
        broken: Called with the name of a node and what went wrong when its row could not be computed. The
            row is excluded as corrupt by then, every other one is as it should be. Raises unless set.
    """

    def __init__(self, unit_mib: int = 1024, *, rules: Rules | None = None) -> None:
        self.unit_mib = unit_mib
        self.resource = resource_name(unit_mib)
        self.nodes = NodeArrays()
        self.pods: dict[str, PodRecord] = {}
        self.books: dict[str, Book] = {}
        self.rules = rules or Rules()
        self.settled: Callable[[PodRecord], None] = lambda _: None
        self.broken: Callable[[str, Exception], None] = _raise
        self._takes: dict[str, Take] = {}
        self._shapes: dict[int, dict[Shape, set[str]]] = {}
        self._dirty: set[str] = set()
        self._failures: list[tuple[str, Exception]] = []
        self._mortal: set[str] = set()
        self._pod_floor = self._node_floor = -1
        self._pod_graves: OrderedDict[str, int] = OrderedDict()
        self._node_graves: OrderedDict[str, int] = OrderedDict()

    # Nodes.

    def apply_node(self, node: NodeLite, now: float) -> None:
        """Take a node's newest version; an older one than known is ignored."""
        self._apply_node(node)
        self._settle(now)

    def delete_node(self, name: str, resource_version: str, now: float) -> None:
        """Forget a Node object; pods bound to its name stay."""
        self._delete_node(name, version_number(resource_version))
        self._settle(now)

    def replace_nodes(self, nodes: Sequence[NodeLite], resource_version: str, now: float) -> None:
        """Take a complete list made at a resourceVersion; known nodes that it lacks are gone."""
        version = version_number(resource_version)
        for node in nodes:
            self._apply_node(node)
        listed = {node.metadata.name for node in nodes}
        for name in [name for name in self.nodes.rows if name not in listed]:
            if self.books[name].version <= version:
                self._delete_node(name, version)
        self._node_floor = max(self._node_floor, version)
        self._settle(now)

    def _apply_node(self, node: NodeLite) -> None:
        name = node.metadata.name
        version = version_number(node.metadata.resource_version)
        book = self.books.get(name)
        if book is not None and book.row >= 0:
            if version < book.version or (version and version == book.version):
                return
        elif version and version <= max(self._node_floor, self._node_graves.get(name, -1)):
            return
        book = self._book(name)
        if book.row < 0:
            book.row = self.nodes.add(name)
        book.version = version
        allocatable = node.status.allocatable or {}
        self.nodes.set_capacity(
            book.row,
            _quantity(allocatable, "cpu", parse_milli),
            _quantity(allocatable, "memory", parse_bytes),
        )
        self._dirty.add(name)
        try:
            self._read_cards(book, node)
        except Exception as error:  # noqa: BLE001  (whatever it is, no other node may suffer)
            self._give_up(book, error)

    def _read_cards(self, book: Book, node: NodeLite) -> None:
        """Take a node's words, inventory and holds, or exclude its row with a reason."""
        published = read_published(node, self.unit_mib)
        book.revision = published.revision
        book.seen, book.holds = published.holds.seen, published.holds.uids
        book.sizes, book.used, book.uuids = published.sizes, published.used, published.uuids
        if published.exclusion is Exclusion.NONE:
            self.nodes.set_cards(
                book.row,
                published.sizes,
                published.used,
                evictable=published.evictable,
                uuids=published.uuids,
                models=published.models,
                numa=published.numa,
            )
        elif self.nodes.exclusion[book.row] != published.exclusion:
            self.nodes.exclude(book.row, published.exclusion)

    def _delete_node(self, name: str, version: int) -> None:
        book = self.books.get(name)
        if book is None or book.row < 0 or version < book.version:
            return
        self.nodes.remove(name)
        _remember(self._node_graves, name, version)
        book.row, book.version, book.revision = -1, 0, 0
        book.forget_words()
        if not self.rules.keeps_without_node():
            book.pods.clear()
            book.takes.clear()
            book.tombstones.clear()
        self._dirty.add(name)

    # Pods.

    def apply_pod(self, pod: PodLite, now: float) -> None:
        """Take a pod's newest version; an older one than known is ignored."""
        self._read_pod(pod, now)
        self._settle(now)

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
        self._end_pod(record.uid, record.node, version_number(resource_version), now)
        self._settle(now)

    def replace_pods(self, pods: Iterable[PodLite], resource_version: str, now: float) -> None:
        """Take a complete list made at a resourceVersion; known pods that it lacks vanished by then."""
        version = version_number(resource_version)
        listed: set[str] = set()
        for pod in pods:
            listed.add(pod.metadata.uid)
            self._read_pod(pod, now)
        for uid in [uid for uid in self.pods if uid not in listed]:
            if self.pods[uid].version <= version:
                self._end_pod(uid, "", version, now)
        self._pod_floor = max(self._pod_floor, version)
        self._settle(now)

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
        elif record.version and record.version <= max(self._pod_floor, self._pod_graves.get(record.uid, -1)):
            return
        self.pods[record.uid] = record
        if record.charged is not None and (record.node or record.ended) and (old is None or not old.node):
            self.settled(record)
        take = self._takes.get(record.uid)
        if take is not None and (record.node or record.ended or self.rules.binding_is_stale(take, record)):
            self._drop_take(take)
        if not record.node:
            return
        if not record.ended:
            book = self._book(record.node)
            book.cpu_milli += record.cpu_milli
            book.memory_bytes += record.memory_bytes
            if record.charged is not None:
                book.pods[record.uid] = record
            self._dirty.add(record.node)
        elif old is None or not old.ended:
            self._bury(record, record.node, record.assigned, record.version, now)

    def _end_pod(self, uid: str, node: str, version: int, now: float) -> None:
        """Remove a pod that vanished at `version`; a commitment of it may have been carried out."""
        old = self.pods.get(uid)
        if old is not None and version < old.version:
            return
        _remember(self._pod_graves, uid, version)
        if old is None:
            return
        del self.pods[uid]
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
            self._bury(old, node, assigned, version, now)

    def _unbook(self, record: PodRecord) -> None:
        """Undo what a bound pod did to its book."""
        if record.node and not record.ended:
            book = self._book(record.node)
            book.cpu_milli -= record.cpu_milli
            book.memory_bytes -= record.memory_bytes
            book.pods.pop(record.uid, None)
            self._dirty.add(record.node)

    def _bury(
        self, record: PodRecord, node: str, assigned: Assignment | None, version: int, now: float
    ) -> None:
        """Leave a tombstone where the rules want one."""
        if record.charged is None:
            return
        book = self._book(node)
        self._dirty.add(node)
        if self.rules.needs_tombstone(book, record.uid, version):
            claim = Claim(record.uid, record.charged, assigned)
            book.tombstones[record.uid] = Tombstone(claim, version, now + TOMBSTONE_S)
            self._mortal.add(node)

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
            raise StateError(f"pod {uid} on node {node}: allowed is a known pod without node, taken once")
        take = Take(pod, node, assigned)
        self._takes[uid] = take
        self._book(node).takes[uid] = take
        self._dirty.add(node)
        self._settle(now)
        return take

    def taken(self, uid: str) -> Take | None:
        """The commitment of a pod, if there is one."""
        return self._takes.get(uid)

    def roll_back(self, take: Take, now: float) -> None:
        """Undo a commitment whose Binding was refused; does nothing when it has ended already."""
        if self._takes.get(take.pod.uid) is take:
            self._drop_take(take)
            self._settle(now)

    def expire(self, now: float) -> None:
        """End whatever time ends."""
        self._dirty |= self._mortal
        self._settle(now)

    def _drop_take(self, take: Take) -> None:
        del self._takes[take.pod.uid]
        self._book(take.node).takes.pop(take.pod.uid, None)
        self._dirty.add(take.node)

    # What follows.

    def busy_nodes(self, wanted: frozenset[tuple[int, Shape]]) -> set[str]:
        """Names of nodes where the kubelet could take one of the claims for a pod of these shapes."""
        found: set[str] = set()
        for units, shape in wanted:
            for other, names in self._shapes.get(units, {}).items():
                if other != shape:
                    found |= names
        return found

    def _book(self, name: str) -> Book:
        book = self.books.get(name)
        if book is None:
            book = self.books[name] = Book(name)
        return book

    def _settle(self, now: float) -> None:
        """Recompute what depends on the books that changed."""
        # A set that was large once stays slow to pop from.
        dirty, self._dirty = self._dirty, set()
        for name in dirty:
            book = self._book(name)
            try:
                self._settle_book(book, now)
            except Exception as error:  # noqa: BLE001  (whatever it is, no other node may suffer)
                self._give_up(book, error)
        failures, self._failures = self._failures, []
        for name, failure in failures:
            self.broken(name, failure)

    def _settle_book(self, book: Book, now: float) -> None:
        self._expire(book, now)
        claims = self.rules.claims(book)
        self._index(book, claims)
        if book.row >= 0:
            if book.sizes:
                self.nodes.set_assumed(book.row, self.rules.assumed(book, claims))
            extra = [take.pod for uid, take in book.takes.items() if uid not in book.pods]
            self.nodes.set_requested(
                book.row,
                book.cpu_milli + sum(pod.cpu_milli for pod in extra),
                book.memory_bytes + sum(pod.memory_bytes for pod in extra),
            )
        elif book.empty:
            del self.books[book.name]

    def _give_up(self, book: Book, error: Exception) -> None:
        """Use no card of a node whose row could not be computed: it may be half written."""
        self._failures.append((book.name, error))
        book.forget_words()
        if book.row >= 0:
            self.nodes.exclude(book.row, Exclusion.CORRUPT)

    def _expire(self, book: Book, now: float) -> None:
        for uid, tombstone in list(book.tombstones.items()):
            if self.rules.tombstone_ends(book, tombstone, now):
                del book.tombstones[uid]
        if not book.tombstones:
            self._mortal.discard(book.name)

    def _index(self, book: Book, claims: list[Claim]) -> None:
        found: set[tuple[int, Shape]] = set()
        for claim in claims:
            found |= shapes(claim.request)
        if found == book.shapes:
            return
        for units, shape in book.shapes - found:
            names = self._shapes[units][shape]
            names.discard(book.name)
            if not names:
                del self._shapes[units][shape]
        for units, shape in found - book.shapes:
            self._shapes.setdefault(units, {}).setdefault(shape, set()).add(book.name)
        book.shapes = frozenset(found)


def _raise(_name: str, error: Exception) -> None:
    raise error


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


def _remember(graves: OrderedDict[str, int], key: str, version: int) -> None:
    graves[key] = version
    graves.move_to_end(key)
    if len(graves) > _GRAVES:
        graves.popitem(last=False)
