"""The records of nodes by name, and the update of the arrays derived from them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from allocator.names import OWN_PREFIX, PERCENT_RESOURCE
from allocator.quantity import recall_bytes, recall_integer, recall_milli
from scheduler_plugin.cache.amounts import NOT_COUNTED, Amounts, read_amount
from scheduler_plugin.cache.charges import ChargeRules, NodeRecord
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.pods import is_other_resource
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.signals import Signal


class NodeRecords:
    """All records; `update_arrays` brings the arrays up to date with those that changed.

    Attributes:
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
        record = self.by_name.get(name)
        if record is None:
            record = self.by_name[name] = NodeRecord(name)
        return record

    def set_other_resources(self, names: Sequence[str]) -> None:
        if list(names) == self.nodes.other_resources:
            return
        self.nodes.amounts.set_other_resources(names)
        for record in self.by_name.values():
            if record.row >= 0:
                self.nodes.amounts.set_capacity(record.row, record.capacity)
                self.nodes.amounts.set_requested(record.row, record.in_use)

    def mark_changed(self, name: str) -> None:
        self._changed.add(name)

    def mark_expiring(self, name: str) -> None:
        """Mark a record as changed, and as one that will change again with time."""
        self._changed.add(name)
        self._expiring.add(name)

    def update_arrays(self, now: float, *, expire: bool = False) -> None:
        """Recompute the rows of the records that changed; `expire` also ends overdue tombstones."""
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
                charges = self.rules.list_charges(record)
                self.nodes.set_assumed(record.row, *self.rules.sum_by_card(record, charges))
            self.nodes.amounts.set_requested(record.row, record.in_use)
        elif record.is_empty:
            del self.by_name[record.name]

    def _expire_tombstones(self, record: NodeRecord, now: float) -> None:
        for uid, tombstone in list(record.tombstones.items()):
            if self.rules.is_tombstone_over(record, tombstone, now):
                del record.tombstones[uid]
        for key, gone in list(record.claim_tombstones.items()):
            if self.rules.is_claim_over(record, gone, now):
                del record.claim_tombstones[key]
        if not record.tombstones and not record.claim_tombstones:
            self._expiring.discard(record.name)


def read_capacity(allocatable: Mapping[str, str | int], resource: str, *, serves_claims: bool) -> Amounts:
    """Read what a Node offers to pods."""
    # Of our own names most are packed words, which change all the time.
    counted = (resource, PERCENT_RESOURCE)
    items = [item for item in allocatable.items() if not item[0].startswith(OWN_PREFIX) or item[0] in counted]
    return _parse_capacity(tuple(items), resource, serves_claims)


@lru_cache(maxsize=1024)
def _parse_capacity(
    allocatable: tuple[tuple[str, str | int], ...], resource: str, serves_claims: bool
) -> Amounts:
    has = dict(allocatable)
    others = [
        (name, read_amount(value, recall_bytes)) for name, value in has.items() if is_other_resource(name)
    ]
    return Amounts(
        read_amount(has.get("pods"), recall_bytes),
        read_amount(has.get("cpu"), recall_milli),
        read_amount(has.get("memory"), recall_bytes),
        NOT_COUNTED if serves_claims else read_amount(has.get(resource), recall_integer),
        NOT_COUNTED if serves_claims else read_amount(has.get(PERCENT_RESOURCE), recall_integer),
        tuple(sorted(item for item in others if item[1])),
    )


def _raise_error(_name: str, error: Exception) -> None:
    raise error
