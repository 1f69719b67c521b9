"""What is known by node name, and the arrays that follow from it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from allocator.errors import QuantityError
from allocator.quantity import parse_bytes
from scheduler_plugin.cache.charges import NodeRecord, Rules
from scheduler_plugin.cache.nodes import Exclusion, NodeArrays
from scheduler_plugin.cache.pods import PodRecord, is_other_resource
from scheduler_plugin.cache.signals import Signal


class Books:
    """All books; `settle` brings the arrays up to date with those that changed.

    Attributes:
        nodes: The arrays.
        rules: What a book's pods cost.
        by_name: The books.
        broken: As of `state.ClusterState`.
    """

    def __init__(self, rules: Rules) -> None:
        self.nodes = NodeArrays()
        self.rules = rules
        self.by_name: dict[str, NodeRecord] = {}
        self.broken: Signal[[str, Exception]] = Signal(_raise)
        self._changed: set[str] = set()
        self._failures: list[tuple[str, Exception]] = []
        self._expiring: set[str] = set()

    def of(self, name: str) -> NodeRecord:
        """The book of a name, a new one where there is none."""
        book = self.by_name.get(name)
        if book is None:
            book = self.by_name[name] = NodeRecord(name)
        return book

    def count_resources(self, names: Sequence[str]) -> None:
        """Have these further resources in the arrays, and no others."""
        if list(names) == self.nodes.other_resources:
            return
        self.nodes.count_resources(names)
        for book in self.by_name.values():
            if book.row >= 0:
                self._set_others(book, _unseen(book))

    def changed(self, name: str) -> None:
        """Note that a book changed."""
        self._changed.add(name)

    def expires(self, name: str) -> None:
        """Note that a book changed, and that time will change it."""
        self._changed.add(name)
        self._expiring.add(name)

    def settle(self, now: float, *, expire: bool = False) -> None:
        """Recompute what depends on the books that changed.

        Args:
            now: Seconds.
            expire: Time may have ended something.
        """
        # A set that was large once stays slow to pop from.
        changed, self._changed = self._changed, set()
        if expire:
            changed |= self._expiring
        for name in changed:
            book = self.of(name)
            try:
                self._settle(book, now)
            except Exception as error:  # noqa: BLE001  (whatever it is, no other node may suffer)
                self.give_up(book, error)
        failures, self._failures = self._failures, []
        for name, failure in failures:
            self.broken(name, failure)

    def give_up(self, book: NodeRecord, error: Exception) -> None:
        """Use no card of a node whose row could not be computed: it may be half written."""
        self._failures.append((book.name, error))
        book.forget_words()
        if book.row >= 0:
            self.nodes.exclude(book.row, Exclusion.CORRUPT)

    def _settle(self, book: NodeRecord, now: float) -> None:
        self._expire(book, now)
        if book.row >= 0:
            if book.sizes:
                self.nodes.set_assumed(book.row, self.rules.assumed(book, self.rules.claims(book)))
            extra = _unseen(book)
            self.nodes.set_requested(
                book.row,
                book.cpu_milli + sum(pod.cpu_milli for pod in extra),
                book.memory_bytes + sum(pod.memory_bytes for pod in extra),
            )
            if self.nodes.other_resources:
                self._set_others(book, extra)
        elif book.empty:
            del self.by_name[book.name]

    def _set_others(self, book: NodeRecord, extra: Iterable[PodRecord]) -> None:
        names, allocatable, used = self.nodes.other_resources, dict(book.allocatable), book.other_resources
        for pod in extra:
            used = {**used, **{name: used.get(name, 0) + amount for name, amount in pod.other_resources}}
        self.nodes.set_others(
            book.row,
            [_amount(allocatable.get(name, 0)) for name in names],
            [used.get(name, 0) for name in names],
        )

    def _expire(self, book: NodeRecord, now: float) -> None:
        for uid, tombstone in list(book.tombstones.items()):
            if self.rules.tombstone_ends(book, tombstone, now):
                del book.tombstones[uid]
        if not book.tombstones:
            self._expiring.discard(book.name)


def other_amounts(allocatable: Mapping[str, str | int]) -> tuple[tuple[str, str | int], ...]:
    """Pick what a Node has of further resources; written once for all nodes that have the same."""
    return _shared(tuple((name, value) for name, value in allocatable.items() if is_other_resource(name)))


@lru_cache(maxsize=1024)
def _shared(amounts: tuple[tuple[str, str | int], ...]) -> tuple[tuple[str, str | int], ...]:
    return amounts


@lru_cache(maxsize=1024)
def _amount(value: str | int) -> int:
    """Read how much a node has; what cannot be read counts as none."""
    try:
        return max(0, parse_bytes(value))
    except QuantityError:
        return 0


def _unseen(book: NodeRecord) -> list[PodRecord]:
    """Pods that are being bound to a node and are not seen there yet."""
    return [take.pod for uid, take in book.takes.items() if uid not in book.pods]


def _raise(_name: str, error: Exception) -> None:
    raise error
