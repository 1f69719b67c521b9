"""The records of nodes by name, and the update of the arrays derived from them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from scheduler_plugin.cache.charges import ChargeRules, NodeRecord, read_amount
from scheduler_plugin.cache.node_arrays import Exclusion, NodeArrays
from scheduler_plugin.cache.pods import PodRecord, is_other_resource
from scheduler_plugin.cache.signals import Signal


class NodeRecords:
    """NodeRecords is all records; `update_arrays` brings the arrays up to date with those that changed.

    Attributes:
        nodes: The arrays.
        rules: The accounting rules.
        node_failed: Signals a node whose row could not be computed, see `state.ClusterState`.
    """

    def __init__(self, rules: ChargeRules) -> None:
        self.nodes = NodeArrays()
        self.rules = rules
        self.by_name: dict[str, NodeRecord] = {}
        self.node_failed: Signal[[str, Exception]] = Signal(_raise_error)
        self._changed: set[str] = set()
        self._failures: list[tuple[str, Exception]] = []
        self._expiring: set[str] = set()

    def get_or_add(self, name: str) -> NodeRecord:
        """Return the record of a name, a new one where there is none."""
        record = self.by_name.get(name)
        if record is None:
            record = self.by_name[name] = NodeRecord(name)
        return record

    def set_other_resources(self, names: Sequence[str]) -> None:
        """Keep these further resources in the arrays, and no others."""
        if list(names) == self.nodes.other_resources:
            return
        self.nodes.set_other_resources(names)
        for record in self.by_name.values():
            if record.row >= 0:
                self._set_other_amounts(record, _list_assumed_pods(record))

    def mark_changed(self, name: str) -> None:
        self._changed.add(name)

    def mark_expiring(self, name: str) -> None:
        """Mark a record as changed, and as one that will change again with time."""
        self._changed.add(name)
        self._expiring.add(name)

    def update_arrays(self, now: float, *, expire: bool = False) -> None:
        """Recompute the rows of the records that changed.

        Args:
            expire: Also end tombstones whose time is over.
        """
        # A set that was large once stays slow to pop from.
        changed, self._changed = self._changed, set()
        if expire:
            changed |= self._expiring
        for name in changed:
            record = self.get_or_add(name)
            try:
                self._update_row(record, now)
            except Exception as error:  # noqa: BLE001  (whatever it is, no other node may suffer)
                self.exclude_failed(record, error)
        failures, self._failures = self._failures, []
        for name, failure in failures:
            self.node_failed(name, failure)

    def exclude_failed(self, record: NodeRecord, error: Exception) -> None:
        """Exclude a node whose row could not be computed, because it may be half written."""
        self._failures.append((record.name, error))
        record.clear_published()
        if record.row >= 0:
            self.nodes.exclude_row(record.row, Exclusion.CORRUPT)

    def _update_row(self, record: NodeRecord, now: float) -> None:
        self._expire_tombstones(record, now)
        if record.row >= 0:
            if record.sizes:
                self.nodes.set_assumed(
                    record.row, self.rules.sum_by_card(record, self.rules.list_charges(record))
                )
            extra = _list_assumed_pods(record)
            self.nodes.set_requested(
                record.row,
                record.cpu_milli + sum(pod.cpu_milli for pod in extra),
                record.memory_bytes + sum(pod.memory_bytes for pod in extra),
            )
            self.nodes.set_pods_left(record.row, record.pod_capacity - record.pod_count - len(extra))
            if self.nodes.other_resources:
                self._set_other_amounts(record, extra)
        elif record.is_empty:
            del self.by_name[record.name]

    def _set_other_amounts(self, record: NodeRecord, extra: Iterable[PodRecord]) -> None:
        names, allocatable, used = (
            self.nodes.other_resources,
            dict(record.allocatable),
            record.other_resources,
        )
        for pod in extra:
            used = {**used, **{name: used.get(name, 0) + amount for name, amount in pod.other_resources}}
        self.nodes.set_other_amounts(
            record.row,
            [read_amount(allocatable.get(name, 0)) for name in names],
            [used.get(name, 0) for name in names],
        )

    def _expire_tombstones(self, record: NodeRecord, now: float) -> None:
        for uid, tombstone in list(record.tombstones.items()):
            if self.rules.is_tombstone_over(record, tombstone, now):
                del record.tombstones[uid]
        for key, gone in list(record.claim_tombstones.items()):
            if gone.is_over(record.read_held_claims(), now):
                del record.claim_tombstones[key]
        if not record.tombstones and not record.claim_tombstones:
            self._expiring.discard(record.name)


def read_other_amounts(allocatable: Mapping[str, str | int]) -> tuple[tuple[str, str | int], ...]:
    """Read a Node's further resources; nodes with equal amounts share one tuple."""
    return _share_amounts(tuple([item for item in allocatable.items() if is_other_resource(item[0])]))


@lru_cache(maxsize=1024)
def _share_amounts(amounts: tuple[tuple[str, str | int], ...]) -> tuple[tuple[str, str | int], ...]:
    return amounts


def _list_assumed_pods(record: NodeRecord) -> list[PodRecord]:
    """List the assumed pods of a node that are not seen bound yet."""
    return [assumed.pod for uid, assumed in record.assumed.items() if uid not in record.pods]


def _raise_error(_name: str, error: Exception) -> None:
    raise error
