"""The nodes as numpy arrays, one row a node, for filter, policies and commit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from allocator.cards import CardAmounts
from allocator.request import WHOLE, PodRequest
from scheduler_plugin.cache.amount_columns import AmountColumns
from scheduler_plugin.cache.amounts import CPU, FIXED, MEMORY, NOTHING
from scheduler_plugin.cache.arrays import (
    BoolArray,
    IntArray,
    LongArray,
    add_cards,
    add_rows,
    copy_columns,
    share_columns,
)
from scheduler_plugin.cache.card_inventory import CardInventory
from scheduler_plugin.cache.compute_columns import ComputeColumns
from scheduler_plugin.cache.node_index import NodeIndex
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.row_changes import RowChanges

_ROW_ARRAYS: Final = (
    "gpu_capacity",
    "gpu_used",
    "cards",
    "usable",
    "percent",
    "serves_claims",
    "exclusion",
)
_CARD_ARRAYS: Final = (
    "size",
    "used",
    "assumed",
    "occupied",
    "free",
    "evictable",
)


class NodeArrays:
    """Arrays over node rows: R rows, some vacant, and K the most cards a node has had.

    Invariants:

    - `occupied = min(size, used + assumed)` and `free = size - occupied`.
    - `free_order[:, r]` is `free[r]` from largest to smallest.
    - `gpu_capacity` and `gpu_used` are row sums of size and occupied.
    - All about cards is 0 in a row that is not usable.
    - Every change of a row is recorded in `changes`.

    Attributes: as in `arrays.ClusterView`, and
        index: The rows by node name.
        changes: The changes of rows.
        amounts: What nodes offer and pods request besides cards.
        compute: The compute of the cards.
        inventory: What the cards are.
        used: int32[R, K], units published by the node. The size where the card is unhealthy or cordoned; more
            than the size where pods have more.
        assumed: int32[R, K], units of bound pods that the words do not contain yet.
        evictable: int32[R, K], the card's size where it is healthy and not cordoned, else 0.
        percent: bool[R], shares of the row's cards can be had; never where it is not usable.
        serves_claims: bool[R], pods get the row's cards by claims; never where it is not usable.
        exclusion: int8[R], an `Exclusion`.
    """

    def __init__(self, rows: int = 64, cards: int = 8) -> None:
        self.index = NodeIndex(rows)
        self.changes = RowChanges(rows)
        self.amounts = AmountColumns(rows, self.changes)
        self.compute = ComputeColumns(rows, cards, self.changes)
        self.inventory = CardInventory(rows, cards)
        self.gpu_capacity: LongArray = np.zeros(rows, dtype=np.int64)
        self.gpu_used: LongArray = np.zeros(rows, dtype=np.int64)
        self.cards: IntArray = np.zeros(rows, dtype=np.int32)
        self.usable: BoolArray = np.zeros(rows, dtype=np.bool_)
        self.percent: BoolArray = np.zeros(rows, dtype=np.bool_)
        self.serves_claims: BoolArray = np.zeros(rows, dtype=np.bool_)
        self.exclusion: np.ndarray[tuple[int], np.dtype[np.int8]] = np.full(
            rows, Exclusion.VACANT, dtype=np.int8
        )
        self.size: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.used: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.assumed: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.occupied: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.free: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.evictable: IntArray = np.zeros((rows, cards), dtype=np.int32)
        self.free_order: IntArray = np.zeros((cards, rows), dtype=np.int32)

    def copy(self) -> "NodeArrays":
        """Copy everything, for what-if questions; versions continue from those of the original."""
        changes = self.changes.copy()
        amounts, compute = self.amounts.copy(changes), self.compute.copy(changes)
        return copy_columns(self, changes=changes, amounts=amounts, compute=compute)

    def as_emptied(self) -> "NodeArrays":
        """Make a view for filter as if every pod had been evicted; it is good until the next change.

        `free`, `compute` and `amounts` are those of empty nodes. All else is shared, `occupied` too. There is
        no `free_order`: to sort all cards would take longer than filter takes without.
        """
        parts = {"compute": self.compute.as_emptied(), "amounts": self.amounts.as_emptied()}
        return share_columns(self, free=self.evictable, free_order=self.free_order[:0], **parts)

    @property
    def row_count(self) -> int:
        return len(self.index.names)

    @property
    def rows(self) -> dict[str, int]:
        return self.index.rows

    @property
    def names(self) -> list[str]:
        return self.index.names

    @property
    def name_rank(self) -> LongArray:
        return self.index.rank

    @property
    def version(self) -> LongArray:
        return self.changes.version

    @property
    def cpu_capacity(self) -> LongArray:
        column: LongArray = self.amounts.capacity[CPU]
        return column

    @property
    def cpu_used(self) -> LongArray:
        column: LongArray = self.amounts.requested[CPU]
        return column

    @property
    def memory_capacity(self) -> LongArray:
        column: LongArray = self.amounts.capacity[MEMORY]
        return column

    @property
    def memory_used(self) -> LongArray:
        column: LongArray = self.amounts.requested[MEMORY]
        return column

    @property
    def other_resources(self) -> list[str]:
        return self.amounts.other_resources

    @property
    def other_capacity(self) -> LongArray:
        return self.amounts.capacity[FIXED:]

    @property
    def other_used(self) -> LongArray:
        return self.amounts.requested[FIXED:]

    @property
    def compute_limit(self) -> IntArray:
        return self.compute.limit

    @property
    def compute_free(self) -> IntArray:
        return self.compute.free

    @property
    def uuids(self) -> list[tuple[str, ...]]:
        return self.inventory.uuids

    @property
    def links(self) -> list[tuple[tuple[int, ...], ...]]:
        return self.inventory.links

    @property
    def model(self) -> IntArray:
        return self.inventory.model

    @property
    def model_names(self) -> list[str]:
        return self.inventory.model_names

    @property
    def numa(self) -> IntArray:
        return self.inventory.numa

    def add_node(self, name: str) -> int:
        """Add a row for a node, without words so far."""
        if self.index.is_full:
            self._add_rows()
        row = self.index.add(name)
        # All else is as a vacant row has it.
        self.exclusion[row] = Exclusion.NO_WORDS
        self.changes.record(row)
        return row

    def remove_node(self, name: str) -> None:
        row = self.index.remove(name)
        self.exclude_row(row, Exclusion.VACANT)
        self.amounts.set_capacity(row, NOTHING)
        self.amounts.set_requested(row, NOTHING)

    def exclude_row(self, row: int, reason: Exclusion) -> None:
        """Empty a row's cards and record why."""
        self.exclusion[row] = reason
        self.usable[row] = self.percent[row] = self.serves_claims[row] = False
        self.cards[row] = self.compute.limit[row] = 0
        published = self.size, self.evictable, self.used, self.compute.used
        for array in (*published, self.assumed, self.compute.assumed):
            array[row] = 0
        self.inventory.set_cards(row)
        self._update_derived(row)

    def set_cards(
        self,
        row: int,
        sizes: Sequence[int],
        used: Sequence[int],
        *,
        evictable: Sequence[int] | None = None,
        uuids: Sequence[str] = (),
        models: Sequence[str] = (),
        numa: Sequence[int] = (),
        links: Sequence[tuple[int, ...]] = (),
        percent: bool = True,
        serves_claims: bool = False,
        compute_limit: int = WHOLE,
        compute_used: Sequence[int] = (),
    ) -> None:
        """Set the cards that a node publishes.

        Args:
            sizes: Units by card.
            evictable: Size of the cards on which evicting pods helps, else 0; None: all of `sizes`.
            numa: NUMA node by card, -1 not known, or empty.
            links: NVLinks from each card to each, or empty.
            percent: Shares of the cards can be had.
            serves_claims: Pods get the cards by claims.
            compute_limit: Percent of each card's compute that pods may ask for.
            compute_used: Percent by card, or empty if none is used.
        """
        count = len(sizes)
        self._widen_cards(count)
        open_sizes = sizes if evictable is None else evictable
        # A row that had no cards has changed in any case: of a first list that is every row.
        before = self._snapshot_published(row) if self.usable[row] else None
        self.exclusion[row] = Exclusion.NONE
        self.usable[row] = True
        self.percent[row], self.serves_claims[row] = percent, serves_claims
        self.cards[row] = count
        self.compute.limit[row] = compute_limit
        for array, values in (
            (self.size, sizes),
            (self.used, used),
            (self.evictable, open_sizes),
            (self.compute.used, compute_used or 0),
        ):
            array[row, :count] = values
            array[row, count:] = 0
        self.assumed[row, count:] = 0
        self.compute.assumed[row, count:] = 0
        self.inventory.set_cards(row, uuids, models, numa, links)
        if before is None or before != self._snapshot_published(row):
            self._update_derived(row)

    def set_assumed(self, row: int, units: Sequence[int], compute: Sequence[int] = ()) -> None:
        """Set what bound pods have that the words do not show yet, by card; no compute stands for none."""
        count = int(self.cards[row])
        percent = list(compute) or [0] * count
        if (
            self.assumed[row, :count].tolist() != list(units)
            or self.compute.assumed[row, :count].tolist() != percent
        ):
            self.assumed[row, :count] = units
            self.compute.assumed[row, :count] = percent
            self._update_derived(row)

    @contextmanager
    def with_charges(self, charges: Mapping[int, Mapping[int, CardAmounts]]) -> Iterator[None]:
        """Charge more while the context is open; the versions of the rows grow before and after.

        Args:
            charges: Units and percent of compute by card position, by row; positions that the row does not
                have are left out.
        """
        before = {row: (self.assumed[row].copy(), self.compute.assumed[row].copy()) for row in charges}
        counted = (self.assumed, self.used), (self.compute.assumed, self.compute.used)
        for row, added in charges.items():
            for card, amounts in added.items():
                for (array, published), amount in zip(counted, amounts, strict=True):
                    if amount and card < self.cards[row]:
                        # Where less was counted of a pod than it has, its end frees no more than that.
                        array[row, card] = max(array[row, card] + amount, -published[row, card])
            self._update_derived(row)
        try:
            yield
        finally:
            for row, (assumed, compute) in before.items():
                self.assumed[row], self.compute.assumed[row] = assumed, compute
                self._update_derived(row)

    def mask_offering(self, request: PodRequest) -> BoolArray:
        """Tell which rows offer what a pod asks for, units or shares of a card: bool[R], read-only.

        Whatever is free there or may become free, other rows take no such pod.
        """
        offering = self.percent if request.percent else self.usable
        return offering & self.serves_claims if request.claimed else offering

    def mask_overcharged(self, row: int) -> BoolArray:
        """Tell which cards of a row are charged with more than they have: bool[K]."""
        over: BoolArray = self.used[row] + self.assumed[row] > self.size[row]
        over |= self.compute.free[row] < 0
        return over

    def _snapshot_published(self, row: int) -> tuple[object, ...]:
        arrays = (self.size, self.used, self.evictable, self.compute.used)
        return (
            int(self.exclusion[row]),
            int(self.cards[row]),
            int(self.compute.limit[row]),
            bool(self.percent[row]),
            bool(self.serves_claims[row]),
            self.inventory.snapshot(row),
            *(array[row].tobytes() for array in arrays),
        )

    def _update_derived(self, row: int) -> None:
        """Recompute what follows from what is published and assumed, and count the change."""
        # A handful of numbers: arithmetic on arrays would take longer to begin than to do.
        sizes = self.size[row].tolist()
        taken = zip(sizes, self.used[row].tolist(), self.assumed[row].tolist(), strict=True)
        occupied = [min(size, used + assumed) for size, used, assumed in taken]
        free = [size - use for size, use in zip(sizes, occupied, strict=True)]
        self.occupied[row] = occupied
        self.free[row] = free
        self.free_order[:, row] = sorted(free, reverse=True)
        self.compute.update_free(row)
        self.gpu_capacity[row] = sum(sizes)
        self.gpu_used[row] = sum(occupied)
        self.changes.record(row)

    def _add_rows(self) -> None:
        old = self.row_count
        for part in (self.index, self.changes, self.amounts, self.compute, self.inventory):
            part.add_rows(old)
        for name in (*_ROW_ARRAYS, *_CARD_ARRAYS):
            setattr(self, name, add_rows(getattr(self, name), old))
        self.exclusion[old:] = Exclusion.VACANT
        self.free_order = add_rows(self.free_order, old, axis=1)

    def _widen_cards(self, count: int) -> None:
        width = self.size.shape[1]
        if count <= width:
            return
        width = max(count, width * 2)
        self.compute.add_cards(width)
        self.inventory.add_cards(width)
        for name in _CARD_ARRAYS:
            setattr(self, name, add_cards(getattr(self, name), width))
        self.free_order = add_cards(self.free_order, width, axis=0)
