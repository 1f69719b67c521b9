"""Arrays over nodes: element types, how they grow and are copied, and those that policies read."""

from copy import copy
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
RowArray = NDArray[np.intp]

_Columns = TypeVar("_Columns")


def add_rows(array: NDArray[Any], more: int, fill: int = 0, *, axis: int = 0) -> NDArray[Any]:
    """Return an array with more rows, which are on the given axis."""
    return np.pad(array, [(0, more * (each == axis)) for each in range(array.ndim)], constant_values=fill)


def add_cards(array: NDArray[Any], width: int, fill: int = 0, *, axis: int = 1) -> NDArray[Any]:
    """Return an array with `width` cards a row, which are on the given axis."""
    return add_rows(array, width - array.shape[axis], fill, axis=axis)


def copy_columns(columns: _Columns, **parts: object) -> _Columns:
    """Copy an object and its arrays, lists and dicts; `parts` are what the copy has in place of its own."""
    other = copy(columns)
    for name, value in vars(columns).items():
        if hasattr(value, "copy"):
            setattr(other, name, parts[name] if name in parts else value.copy())
    return other


def share_columns(columns: _Columns, **parts: object) -> _Columns:
    """Make an object that shares all of another one but `parts`; cheaper than `copy`."""
    other = object.__new__(type(columns))
    vars(other).update({**vars(columns), **parts})
    return other


class ClusterView(Protocol):
    """The nodes as arrays, one row each, for policies to read.

    R is the number of rows, some of them vacant. K is the largest number of cards of a node.

    Attributes:
        names: Node name by row, empty text for a vacant row.
        name_rank: int64[R], order of the names; unique among rows in use.
        version: int64[R], +1 (or more) on every change of the row.
        cpu_capacity, cpu_used: int64[R], thousandths of a core; used is what the pods of the node request.
        memory_capacity, memory_used: int64[R], bytes of host memory.
        gpu_capacity, gpu_used: int64[R], units, sums over the cards.
        other_resources: Names of the further resources that some policy uses.
        other_capacity, other_used: int64[C, R], whole amounts of each of them, in the order of the names.
        cards: int32[R], number of cards.
        size: int32[R, K], units a card, 0 beyond the last card.
        occupied: int32[R, K], min(size, used + assumed) units.
        free: int32[R, K], size - occupied.
        compute_limit: int32[R], percent of each card's compute that pods may ask for; 0 where the node does
            not publish its compute.
        compute_free: int32[R, K], percent that is left of it; less than 0 where pods have more.
        free_order: int32[K, R], free units of the node's cards from largest to smallest: `free_order[c - 1]`
            is what c cards have in common.
        model: int32[R, K], index into `model_names`, -1 where the model is not known.
        model_names: Card models seen so far; only ever appended to.
        numa: int32[R, K], NUMA node, -1 where not known.
        links: NVLinks from each card of a row to each, by row; empty if there are none.
        uuids: The cards' UUIDs by row, empty if not known.
        usable: bool[R], the row belongs to a node whose words can be read.
    """

    gpu_capacity: LongArray
    gpu_used: LongArray
    cards: IntArray
    size: IntArray
    occupied: IntArray
    free: IntArray
    free_order: IntArray
    usable: BoolArray

    @property
    def cpu_capacity(self) -> LongArray: ...
    @property
    def cpu_used(self) -> LongArray: ...
    @property
    def memory_capacity(self) -> LongArray: ...
    @property
    def memory_used(self) -> LongArray: ...
    @property
    def other_capacity(self) -> LongArray: ...
    @property
    def other_used(self) -> LongArray: ...
    @property
    def version(self) -> LongArray: ...
    @property
    def other_resources(self) -> list[str]: ...
    @property
    def compute_limit(self) -> IntArray: ...
    @property
    def compute_free(self) -> IntArray: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def name_rank(self) -> LongArray: ...
    @property
    def model(self) -> IntArray: ...
    @property
    def model_names(self) -> list[str]: ...
    @property
    def numa(self) -> IntArray: ...
    @property
    def links(self) -> list[tuple[tuple[int, ...], ...]]: ...
    @property
    def uuids(self) -> list[tuple[str, ...]]: ...
