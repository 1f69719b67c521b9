"""Filter and kube-scheduler's rules, asked about a pod that is changed, or about cards that are."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from allocator.errors import AllocatorError
from allocator.names import NODE_HOLDS
from allocator.place import Placement
from allocator.records import charge, load_holds
from allocator.request import PodRequest
from gpupack.ask.cluster import Cluster
from gpupack.ask.hosts import Wish
from scheduler_plugin.cluster.arrays import RowArray
from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.placement.filtering import fitting
from scheduler_plugin.placement.placing import place_with, score
from scheduler_plugin.placement.query import Query
from scheduler_plugin.placement.ranking import best

Units = Mapping[int, int]
"""Units by card position."""


@dataclass(frozen=True)
class Trial:
    """A pod that is asked about, as it is or changed.

    Attributes:
        cluster: The cluster.
        query: What it asks of cards.
        wish: What it asks for besides.
    """

    cluster: Cluster
    query: Query
    wish: Wish

    def asking(self, request: PodRequest) -> "Trial":
        """The same pod with another request."""
        return replace(self, query=query_for(self.cluster, request, self.wish))

    def nodes(self, *, leaving: Collection[str] = (), only: RowArray | None = None) -> list[str]:
        """Names of the nodes that take it now, best first by the node policy.

        Args:
            leaving: UIDs of pods that are gone; their cards are given back by `freed`.
            only: Rows to look at, None: all.
        """
        nodes = self.cluster.state.nodes
        kept = self.rows(leaving=leaving, only=only)
        if not len(kept):
            return []
        scores = score(self.cluster.policies.of(self.query.request), nodes, self.query, kept)
        return [nodes.names[row] for row in kept[best(scores, nodes.name_rank[kept], len(kept))].tolist()]

    def rows(self, *, leaving: Collection[str] = (), only: RowArray | None = None) -> RowArray:
        """Rows of the nodes that take it now, in no order; arguments as of `nodes`."""
        nodes = self.cluster.state.nodes
        rows = self.cluster.rows if only is None else only
        rows = rows[fitting(nodes, self.query, rows)]
        if not len(rows):
            return rows
        names = [nodes.names[row] for row in rows.tolist()]
        request = self.query.request
        blocks = self.cluster.hosts.blocks(self.wish, leaving=leaving, only=names)
        short = self.cluster.hosts.too_little(
            request.effective_units, percent=request.percent, leaving=leaving, only=names
        )
        return rows[[name not in blocks and name not in short for name in names]]

    def place(self, node: str) -> Placement | None:
        """Choose the pod's cards on a node as bind does; None where it does not fit."""
        nodes = self.cluster.state.nodes
        policy = self.cluster.policies.of(self.query.request)
        return place_with(policy, nodes, nodes.rows[node], self.query)


def query_for(cluster: Cluster, request: PodRequest, wish: Wish) -> Query:
    """Make a request ready."""
    return cluster.policies.query(cluster.state.nodes, request, wish.cpu_milli, wish.memory_bytes)


@contextmanager
def changed(cluster: Cluster, by_node: Mapping[str, Units]) -> Iterator[None]:
    """Show filter cards with other units in use for a while.

    Args:
        cluster: The cluster.
        by_node: Units more (less, where negative) by card position, by node.
    """
    nodes = cluster.state.nodes
    rows = {nodes.rows[name]: units for name, units in by_node.items()}
    with nodes.charged(rows):
        yield


class Held:
    """What pods have on the cards of their nodes, and what would be free without them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_node: dict[str, tuple[dict[str, dict[int, int]], frozenset[int]]] = {}

    def of(self, record: PodRecord) -> Units:
        """Units of a pod by card position; empty where its cards are not known."""
        return self._on(record.node)[0].get(record.uid, {})

    def freed(self, record: PodRecord) -> Units:
        """Units that would be free for certain without a pod, by card position.

        None on a card that takes no pods, and none where processes of others fill the card: the words stop
        at its size, so it is not known how much they use beyond that.
        """
        units, closed = self._on(record.node)
        return {card: count for card, count in units.get(record.uid, {}).items() if card not in closed}

    def on(self, node: str) -> list[PodRecord]:
        """The pods of a node that have cards there, by namespace and name."""
        book = self._cluster.state.books.get(node)
        found = [] if book is None else [pod for pod in book.pods.values() if self.of(pod)]
        return sorted(found, key=lambda pod: (pod.namespace, pod.name))

    def _on(self, node: str) -> tuple[dict[str, dict[int, int]], frozenset[int]]:
        known = self._by_node.get(node)
        if known is None:
            known = self._by_node[node] = self._read(node)
        return known

    def _read(self, node: str) -> tuple[dict[str, dict[int, int]], frozenset[int]]:
        state = self._cluster.state
        book, row = state.books.get(node), state.nodes.rows.get(node)
        if book is None or row is None or not book.sizes:
            return {}, frozenset()
        published = self._published(node)
        held: dict[str, dict[int, int]] = {}
        for uid, pod in book.pods.items():
            units = published.get(uid) if uid in book.holds else None
            held[uid] = dict(units) if units else _assigned(pod, book.uuids, book.sizes)
        closed = set()
        for card, size in enumerate(book.sizes):
            if not state.nodes.evictable[row, card]:
                closed.add(card)
            elif published and book.used[card] >= size:
                ours = sum(units.get(card, 0) for units in published.values())
                if ours < size:
                    closed.add(card)
        return held, frozenset(closed)

    def _published(self, node: str) -> Mapping[str, Mapping[int, int]]:
        found = self._cluster.nodes.get(node)
        text = ((found.metadata.annotations or {}) if found is not None else {}).get(NODE_HOLDS)
        if text is None:
            return {}
        try:
            return load_holds(text).units
        except AllocatorError:
            return {}


def _assigned(pod: PodRecord, uuids: tuple[str, ...], sizes: tuple[int, ...]) -> dict[int, int]:
    """A pod's units by card as its annotations say; empty where they say nothing that can be."""
    for cards in (pod.allocated, pod.assigned):
        if cards is not None and pod.charged is not None:
            try:
                units_of = charge(pod.charged, cards, dict(zip(uuids, sizes, strict=False)))
            except AllocatorError:
                continue
            if units_of.keys() <= set(uuids):
                return {uuids.index(uuid): units for uuid, units in units_of.items()}
    return {}


def numbers(cluster: Cluster, node: str, cards: Collection[int]) -> tuple[int, ...]:
    """The driver's numbers of cards, as people know them."""
    book = cluster.state.books[node]
    return tuple(book.indexes[card] if book.indexes else card for card in sorted(cards))
