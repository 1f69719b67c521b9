"""Gradient buckets: items sorted into rings by what they have left, so that a search looks at few of them.

Bucket k of M covers amounts from bound k up to bound k + 1; the last is open above unless it is closed.
Amounts below the first bound are not indexed. With equal widths

    k(a)  =  0 if a < l else min((a - l) // n + 1, M)

Inside a bucket items are in order of (amount, rank), so the best one is found by bisection.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray, LongArray
from scheduler_plugin.errors import PolicyError

Fallback = Literal["closest", "largest"]


@dataclass(frozen=True, slots=True)
class BucketSearchResult:
    """Where a search ended.

    Attributes:
        key: The item, None when there is none.
        probes: Buckets visited, in order, empty ones included.
        touched: Items examined.
        complete: False if the search was given up after too many items.
    """

    key: int | None
    probes: tuple[int, ...]
    touched: int
    complete: bool = True


class Buckets:
    """An index of items by amount.

    Args:
        bounds: Lower bound of each bucket, growing.
        end: Upper bound of the last bucket: amounts from it on are not indexed either; None: it is open.

    Raises:
        PolicyError: no bounds, or they do not grow.
    """

    def __init__(self, bounds: Sequence[int], end: int | None = None) -> None:
        edges = [*bounds] if end is None else [*bounds, end]
        if not bounds or any(low >= high for low, high in pairwise(edges)):
            raise PolicyError(f"bucket bounds {edges}; allowed: one or more growing numbers")
        self.bounds = tuple(bounds)
        self.end = end
        self._rings: list[list[tuple[int, int, int]]] = [[] for _ in bounds]
        self._entries: dict[int, tuple[int, int, int]] = {}

    @classmethod
    def make_equal(cls, lower: int, width: int, count: int, *, closed: bool = False) -> "Buckets":
        """Make `count` buckets of one width, the first from `lower` on; the last is open above, or closed.

        Raises:
            PolicyError: width or count below 1.
        """
        if width < 1 or count < 1:
            raise PolicyError(f"{count} buckets of width {width}; allowed: 1 or more of both")
        return cls([lower + k * width for k in range(count)], lower + count * width if closed else None)

    @property
    def count(self) -> int:
        return len(self.bounds)

    def bucket_of(self, amount: int) -> int:
        """Number of the bucket for an amount, 0 for none."""
        return 0 if self.end is not None and amount >= self.end else bisect_right(self.bounds, amount)

    def insert(self, key: int, amount: int, rank: int) -> None:
        """Insert an item, or move it to its new place; of equal amounts the smaller rank comes first."""
        entry = (amount, rank, key)
        if self._entries.get(key) == entry:
            return
        self.remove(key)
        bucket = self.bucket_of(amount)
        if bucket:
            insort(self._rings[bucket - 1], entry)
            self._entries[key] = entry

    def remove(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            ring = self._rings[self.bucket_of(entry[0]) - 1]
            del ring[bisect_left(ring, entry)]

    def find(
        self,
        amount: int,
        limit: int,
        fits: Callable[[int], bool],
        fallback: Fallback = "closest",
        most: int | None = None,
    ) -> BucketSearchResult:
        """Search an item with at least `amount` left that fits.

        The bucket of the amount first, then upwards to bucket `limit`, then from the last one downwards.
        In a bucket the smallest amount wins, tie by rank; beyond the limit that, or the largest.

        Args:
            amount: At least 1.
            limit: N, at least 1.
            most: Items to look at before the search is given up; None: all.

        Raises:
            PolicyError: amount or limit below 1.
        """
        near, far = _search_order(self.bounds, amount, limit)
        probes: list[int] = []
        touched = 0
        for bucket in (*near, *far):
            probes.append(bucket)
            ring = self._rings[bucket - 1]
            start = bisect_left(ring, (amount, -1, -1))
            downwards = fallback == "largest" and bucket in far
            for at in _from_largest(ring, start) if downwards else range(start, len(ring)):
                if touched == most:
                    return BucketSearchResult(None, tuple(probes), touched, complete=False)
                touched += 1
                if fits(ring[at][2]):
                    return BucketSearchResult(ring[at][2], tuple(probes), touched)
        return BucketSearchResult(None, tuple(probes), touched)


def find_in_arrays(
    bounds: Sequence[int],
    amounts: LongArray,
    ranks: LongArray,
    fits: BoolArray,
    amount: int,
    limit: int,
    fallback: Fallback = "closest",
    end: int | None = None,
) -> BucketSearchResult:
    """Do what `Buckets.find` does, for items that stand in arrays and in no index.

    Other arguments are as of `Buckets` and `Buckets.find`; the result's key is a position in the arrays.

    Args:
        amounts: int64[m], what each item has left.
        ranks: int64[m].
        fits: bool[m], the item can be taken otherwise.

    Raises:
        PolicyError: amount or limit below 1.
    """
    near, far = _search_order(bounds, amount, limit)
    buckets = np.searchsorted(np.asarray(bounds), amounts, side="right")
    fits = fits & (amounts >= amount) & (buckets >= near.start)
    if end is not None:
        fits &= amounts < end
    probes: list[int] = []
    for part in (near, far):
        found = np.flatnonzero(fits & (buckets >= min(part)) & (buckets <= max(part))) if part else ()
        if not len(found):
            probes += part
            continue
        bucket = int(buckets[found].min() if part is near else buckets[found].max())
        found = found[buckets[found] == bucket]
        downwards = fallback == "largest" and part is far
        order = np.lexsort((ranks[found], -amounts[found] if downwards else amounts[found]))
        probes += [number for number in part if (number <= bucket if part is near else number >= bucket)]
        return BucketSearchResult(int(found[order[0]]), tuple(probes), len(amounts))
    return BucketSearchResult(None, tuple(probes), len(amounts))


def _search_order(bounds: Sequence[int], amount: int, limit: int) -> tuple[range, range]:
    """Order the buckets of a search: those up to the limit upwards, and those beyond it downwards."""
    if amount < 1:
        raise PolicyError(f"search for {amount}; allowed: 1 or more")
    if limit < 1:
        raise PolicyError(f"scan limit {limit}; allowed: 1 or more")
    first = max(1, bisect_right(bounds, amount))
    return range(first, max(first, min(limit, len(bounds))) + 1), range(len(bounds), max(first, limit), -1)


def _from_largest(ring: list[tuple[int, int, int]], start: int) -> Iterator[int]:
    """Positions from the largest amount down to `start`, equal amounts by rank."""
    end = len(ring)
    while end > start:
        begin = max(start, bisect_left(ring, (ring[end - 1][0], -1, -1)))
        yield from range(begin, end)
        end = begin
