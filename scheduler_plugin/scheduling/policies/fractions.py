"""Fractions f of each class that a node would use, kept by row and node version.

`least-requested`, `balanced` and `weighted-balance` score by them; docs/policies has the formulas.
"""

import re
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from allocator.errors import shown
from allocator.names import COMPUTE_RESOURCE
from allocator.registry import Entry, Parameters
from scheduler_plugin.cache.arrays import ClusterView, FloatArray, LongArray, RowArray
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies.registry import PolicyRequest

DECIMALS: Final = 12
"""Sums of the same fractions in another order differ in the last bit; scores closer than this are ties."""


_FEW: Final = 8

CPU: Final = "cpu"
MEMORY: Final = "memory"
GPU: Final = "gpu-memory"
CLASSES: Final = (CPU, MEMORY, GPU)
"""Classes that every node has; further resources come after them."""

_RESOURCE: Final = re.compile(
    r"ephemeral-storage|hugepages-[0-9A-Za-z.]+|(?!gpupack\.io/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)


def parse_resources(policy: str, parameters: Parameters) -> tuple[str, ...]:
    """Read the parameter `resources`: further resources of a policy's, by commas.

    Raises:
        PolicyError: a name that no further resource can have, or one that stands twice.
    """
    text = parameters.get("resources", "")
    names = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    for name in names:
        if _RESOURCE.fullmatch(name) is None and name != COMPUTE_RESOURCE:
            raise PolicyError(
                f"{policy}: resources names {shown(name)}; allowed: ephemeral-storage, hugepages-SIZE,"
                f" {COMPUTE_RESOURCE} and names like example.com/nic, beside {', '.join(CLASSES)}, which"
                " always count"
            )
        if names.count(name) > 1:
            raise PolicyError(f"{policy}: resources names {name} twice; allowed: once")
    return names


def list_columns(view: ClusterView, others: Sequence[str]) -> list[tuple[LongArray, LongArray]]:
    """List capacity and use of each class, int64[R] both; nobody has what the view does not show."""
    columns = [
        (view.cpu_capacity, view.cpu_used),
        (view.memory_capacity, view.memory_used),
        (view.gpu_capacity, view.gpu_used),
    ]
    for name in others:
        if name == COMPUTE_RESOURCE:
            columns.append(_count_compute(view))
        elif name in view.other_resources:
            at = view.other_resources.index(name)
            columns.append((view.other_capacity[at], view.other_used[at]))
        else:
            columns.append((np.zeros(len(view.version), np.int64),) * 2)
    return columns


def _count_compute(view: ClusterView) -> tuple[LongArray, LongArray]:
    """Count the percent of compute that the cards of each node have and have given away: int64[R] both."""
    limit = view.compute_limit.astype(np.int64)
    there = view.size > 0
    capacity: LongArray = limit * np.count_nonzero(there, axis=1)
    used: LongArray = np.where(there, limit[:, None] - view.compute_free, 0).sum(axis=1, dtype=np.int64)
    return capacity, used


def list_asked(ask: PolicyRequest, others: Sequence[str]) -> list[int]:
    """List what a pod asks of each class."""
    amounts = {**dict(ask.other_resources), COMPUTE_RESOURCE: ask.compute}
    return [ask.cpu_milli, ask.memory_bytes, ask.gpu_units, *(amounts.get(name, 0) for name in others)]


class Fractions:
    """`used_c / capacity_c` and `1 / capacity_c` for cpu, memory, gpu-memory and more, of every row.

    Rows are recomputed when their version changes, so a request costs one multiplication and one addition.
    A class of which a node has nothing is dropped there: its fraction is 0 and it counts in no mean.

    Attributes:
        used_total, capacity_total: Sums over all rows as followed last, by class.
    """

    def __init__(self, others: Sequence[str]) -> None:
        self._others = tuple(others)
        self._count = len(CLASSES) + len(self._others)
        self._seen: list[str] = []
        self._start(0)

    def _start(self, rows: int) -> None:
        self._versions: LongArray = np.full(rows, -1, dtype=np.int64)
        shape = self._count, rows
        self._raw_used: LongArray = np.zeros(shape, dtype=np.int64)
        self._raw_capacity: LongArray = np.zeros(shape, dtype=np.int64)
        self._used: FloatArray = np.zeros(shape, dtype=np.float64)
        self._inverse: FloatArray = np.zeros(shape, dtype=np.float64)
        self._present: FloatArray = np.zeros(shape, dtype=np.float64)
        self._capacities_changed = True
        self._complete = False
        self.used_total = [0] * self._count
        self.capacity_total = [0] * self._count

    def follow(self, view: ClusterView) -> RowArray:
        if len(view.version) != len(self._versions) or view.other_resources != self._seen:
            self._seen = list(view.other_resources)
            self._start(len(view.version))
        changed = np.flatnonzero(view.version != self._versions)
        if not changed.size:
            return changed
        columns = list_columns(view, self._others)
        if changed.size <= _FEW:
            for row in changed.tolist():
                for at, (capacity, used) in enumerate(columns):
                    self._set(at, row, int(capacity[row]), int(used[row]))
        else:
            for at, (capacity, used) in enumerate(columns):
                self._set_many(at, changed, capacity[changed], used[changed])
        self._versions[changed] = view.version[changed]
        if self._capacities_changed:
            self._capacities_changed = False
            self._complete = bool((self._present.all(axis=0) | ~view.usable).all())
        return changed

    def _set(self, at: int, row: int, capacity: int, used: int) -> None:
        self.used_total[at] += used - int(self._raw_used[at, row])
        self._raw_used[at, row] = used
        if capacity != self._raw_capacity[at, row]:
            self.capacity_total[at] += capacity - int(self._raw_capacity[at, row])
            self._raw_capacity[at, row] = capacity
            self._capacities_changed = True
            self._inverse[at, row] = 1.0 / capacity if capacity > 0 else 0.0
            self._present[at, row] = capacity > 0
        self._used[at, row] = used * self._inverse[at, row]

    def _set_many(self, at: int, rows: RowArray, capacity: LongArray, used: LongArray) -> None:
        self._raw_used[at, rows] = used
        self._raw_capacity[at, rows] = capacity
        self._capacities_changed = True
        self.used_total[at] = int(self._raw_used[at].sum())
        self.capacity_total[at] = int(self._raw_capacity[at].sum())
        present = capacity > 0
        inverse = np.divide(1.0, capacity, out=np.zeros(len(rows)), where=present)
        self._inverse[at, rows] = inverse
        self._used[at, rows] = used * inverse
        self._present[at, rows] = present

    def before(self, rows: RowArray) -> FloatArray:
        """`used_c / capacity_c` as followed last: float64[k, m]."""
        return self._used.take(rows, axis=1)

    def after(self, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """`(used_c + request_c) / capacity_c` as followed last: float64[k, m].

        Args:
            rows: intp[m].
        """
        request = list_asked(ask, self._others)
        result = self._inverse.take(rows, axis=1)
        result *= np.array(request, dtype=np.float64)[:, None]
        result += self._used.take(rows, axis=1)
        return result

    def present(self, rows: RowArray, ask: PolicyRequest | None = None) -> FloatArray | None:
        """1 where the node has something of the class, else 0: float64[k, m]; None: 1 everywhere.

        Args:
            rows: intp[m]; only a pod that asks for no card has rows without cards.
            ask: What the pod asks for; None: for cards.
        """
        plain = ask is not None and not ask.demands
        return None if self._complete and not plain else self._present.take(rows, axis=1)


class FractionsPolicy:
    """Base of the policies that score a row by the fractions of that row alone."""

    epoch = 0
    by_row = True
    ranks_plain_pods = True

    def __init__(self, other_resources: Sequence[str] = ()) -> None:
        self.other_resources = tuple(other_resources)
        self._fractions = Fractions(self.other_resources)


P = TypeVar("P", bound=FractionsPolicy)


def make_entry(kind: type[P], name: str, summary: str) -> Entry[P]:
    """Make the entry of a policy whose one parameter, `resources`, names further classes."""
    return Entry(name, lambda parameters: kind(parse_resources(name, parameters)), summary, ("resources",))


def compute_mean(f: FloatArray, present: FloatArray | None) -> FloatArray:
    """Mean over the classes a node has (None: all): float64[m], 0 for a node that has none."""
    result = add_classes(f)
    result /= float(len(f)) if present is None else np.maximum(add_classes(present), 1.0)
    return result


def add_classes(values: FloatArray) -> FloatArray:
    """Sum over the classes, always in the same order: float64[k, m] -> float64[m]."""
    result: FloatArray = values[0] + values[1]
    for each in values[2:]:
        result += each
    return result
