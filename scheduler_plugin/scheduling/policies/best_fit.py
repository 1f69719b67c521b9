"""best-fit: the node whose card (or cpu, or memory) is left with the least, found through gradient buckets.

The request's dominant class is the one of which it takes the largest share of the cluster,
argmax(request_c / total_c). Ties are in the order gpu-memory, cpu, memory. Nodes are compared by its
remaining amount. For gpu-memory that is what the cards have that would be used: the tightest set of admitted
cards (`remaining.compute_tightest`).

- Mode `pick` searches the buckets of the dominant class (`buckets.Buckets.find`) and names one node.
- Mode `candidates` scores every feasible node by `remaining - request`. Without a limit the buckets K..M
  would be read in that order.

Where a pod has selectors, or the first hundreds in the index lack something else, the same search is made
over arrays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final, Literal, get_args

import numpy as np

from allocator.registry import Entry, Parameters
from kubeapi.bounded import BoundedDict
from scheduler_plugin.cache.arrays import BoolArray, ClusterView, FloatArray, LongArray, RowArray
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies.buckets import Buckets, BucketSearchResult, Fallback, find_in_arrays
from scheduler_plugin.scheduling.policies.fractions import CLASSES, CPU, DECIMALS, GPU, MEMORY, list_columns
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest
from scheduler_plugin.scheduling.policies.remaining import (
    NO_SET,
    ORDER,
    ClassSearch,
    compute_host_left,
    find_search,
    iterate_card_sets,
)

NAME: Final = "best-fit"

SCALES: Final = {GPU: 1, CPU: 1000, MEMORY: 1 << 30}
"""What parameters count in: units of a card, cores, GiB of host memory."""

MAX_BUCKETS: Final = 65_536
"""A search visits one bucket after the other, so more would slow it down."""

MOST_ITEMS: Final = 512
"""Items of an index that are examined; if none of them will do, a search over arrays costs less."""

SKIPPED: Final = 63
"""Searches for the same that go over arrays at once after the index was given up."""

_REMEMBERED: Final = 1024

Mode = Literal["candidates", "pick"]
Outermost = Literal["open", "closed"]

_CHOICES: Final = {"mode": get_args(Mode), "fallback": get_args(Fallback), "outermost": get_args(Outermost)}


@dataclass(frozen=True, slots=True)
class BestFitSettings:
    """Parameters of the policy.

    Attributes:
        mode: `candidates` ranks every node, `pick` names one.
        buckets: M.
        limit: N, buckets that are scanned upwards; None: all.
        lower: l, in the class's unit; nodes with less left are not in its index. None: nodes that have
            anything left are, so that a pod which fits is always found.
        widths: n by class, in its unit; where not given, M buckets cover the largest remaining amount.
        bounds: Lower bounds by class, in its unit, instead of l, n and M.
        fallback: What to take beyond the limit.
        outermost: Whether the last bucket is open above. A closed one keeps nodes with more left out of the
            index. Then the last of `bounds` is its end, and M buckets cover the largest capacity.
        order: Which class dominates among equals.
    """

    mode: Mode = "candidates"
    buckets: int = 32
    limit: int | None = None
    lower: int | None = None
    widths: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fallback: Fallback = "closest"
    outermost: Outermost = "open"
    order: tuple[str, ...] = ORDER

    def __post_init__(self) -> None:
        """Check everything.

        Raises:
            PolicyError: a value that is not allowed.
        """
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise PolicyError(f"{NAME}: buckets is {self.buckets}; allowed: 1 to {MAX_BUCKETS}")
        if self.limit is not None and self.limit < 1:
            raise PolicyError(f"{NAME}: limit is {self.limit}; allowed: 1 or more")
        if self.lower is not None and self.lower < 0:
            raise PolicyError(f"{NAME}: lower is {self.lower}; allowed: 0 or more")
        for what in (self.widths, self.bounds, self.order):
            for name in what:
                _class(name)
        if sorted(self.order) != sorted(CLASSES):
            raise PolicyError(f"{NAME}: order is {','.join(self.order)}; allowed: each of {_listed()} once")
        for name, width in self.widths.items():
            Buckets.make_equal(self.lower or 0, width, self.buckets)
            _class(name)
        if self.outermost == "closed" and self.mode != "pick":
            raise PolicyError(f"{NAME}: outermost is closed with mode {self.mode}; allowed: mode pick")
        for bounds in self.bounds.values():
            self.given(bounds, 1)

    def given(self, bounds: Sequence[int], scale: int) -> Buckets:
        """Make the buckets of given bounds, each multiplied.

        Raises:
            PolicyError: too few bounds, or they do not grow.
        """
        scaled = [bound * scale for bound in bounds]
        return Buckets(scaled[:-1], scaled[-1]) if self.outermost == "closed" else Buckets(scaled)


class _Index:
    """The buckets of one class: nodes by cpu or memory left, sets of cards by what they have free."""

    def __init__(self, view: ClusterView, search: ClassSearch, buckets: Buckets) -> None:
        self.buckets = buckets
        self._name, self._cards = search.name, search.demand.cards
        self._width = view.free_order.shape[0]
        self._items: dict[int, list[int]] = {}
        self.insert(view, np.flatnonzero(view.usable))

    def insert(self, view: ClusterView, rows: RowArray) -> None:
        usable, ranks = view.usable[rows].tolist(), view.name_rank[rows].tolist()
        left = compute_host_left(view, self._name, rows).tolist() if self._name != GPU else None
        orders = view.free_order[:, rows].T.tolist() if left is None else None
        for at, row in enumerate(rows.tolist()):
            items: dict[int, int] = {}
            if usable[at] and left is not None:
                items = {row * self._width: left[at]}
            elif usable[at] and orders is not None:
                items = {
                    row * self._width + first: amount
                    for first, amount in iterate_card_sets(orders[at], self._cards)
                }
            for item in self._items.pop(row, ()):
                if item not in items:
                    self.buckets.remove(item)
            for item, amount in items.items():
                self.buckets.insert(item, amount, ranks[at])
            if items:
                self._items[row] = list(items)

    def find(
        self,
        view: ClusterView,
        search: ClassSearch,
        fits: Callable[[int], bool],
        limit: int,
        fallback: Fallback,
    ) -> BucketSearchResult:
        """Search a row; given up after `MOST_ITEMS`."""
        units = search.demand.units

        def suits(item: int) -> bool:
            row, first = divmod(item, self._width)
            if self._name == GPU:
                free = view.free_order[:, row]
                # A node with smaller cards that fit would use those: it does not stand here.
                if free[first] < units or (first + 1 < self._width and free[first + 1] >= units):
                    return False
            return fits(row)

        found = self.buckets.find(max(1, search.amount), limit, suits, fallback, MOST_ITEMS)
        return found if found.key is None else replace(found, key=found.key // self._width)


class BestFit:
    """The node policy; see the module's text."""

    epoch = 0

    def __init__(self, settings: BestFitSettings | None = None) -> None:
        self.settings = BestFitSettings() if settings is None else settings
        self._indexes: dict[tuple[str, int], _Index] = {}
        self._versions: LongArray = np.zeros(0, dtype=np.int64)
        self._ranks: LongArray = np.zeros(0, dtype=np.int64)
        self._width = 0
        self._skips: BoundedDict[tuple[str, CardDemand, int], int] = BoundedDict(_REMEMBERED)

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by what the dominant class has left after it; `pick`: inf but for the one."""
        search = find_search(view, ask, self.settings.order)
        if self.settings.mode == "candidates":
            left: FloatArray = (search.left(view, ask, rows) - search.amount).astype(np.float64)
            left += _others(view, rows)
            # In parts of the cluster: a pod that asks for percent takes most of another class on other cards.
            left /= max(1, search.total)
            return left
        member = np.zeros(len(view.names), dtype=np.bool_)
        member[rows] = True
        picked = self.pick(view, ask, member).key
        scores: FloatArray = np.full(len(rows), np.inf, dtype=np.float64)
        # A pod that asks for percent is picked one node for each size of cards: scores compare them.
        at = np.flatnonzero(rows == picked)
        scores[at] = (search.left(view, ask, rows[at]) - search.amount) / max(1, search.total)
        return scores

    @property
    def picks(self) -> bool:
        return self.settings.mode == "pick"

    def pick_row(self, view: ClusterView, ask: PolicyRequest, fits: BoolArray) -> int | None:
        return self.pick(view, ask, fits).key

    def pick(self, view: ClusterView, ask: PolicyRequest, fits: BoolArray) -> BucketSearchResult:
        """Search the index of the dominant class.

        Args:
            fits: bool[R], rows that can take the pod.
        """
        search = find_search(view, ask, self.settings.order)
        self._follow(view)
        key = (search.name, search.demand.cards)
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = _Index(view, search, self._empty(view, search))
        limit = index.buckets.count if self.settings.limit is None else self.settings.limit
        touched = 0
        shape = search.name, search.demand, search.amount
        skips = self._skips.pop(shape, 0)
        if skips > 1:
            self._skips[shape] = skips - 1
        if not skips and (ask.admits is None or search.name != GPU):
            result = index.find(view, search, lambda row: bool(fits[row]), limit, self.settings.fallback)
            if result.complete:
                return result
            touched = result.touched
            self._skips[shape] = SKIPPED
        rows = np.flatnonzero(fits)
        left = search.left(view, ask, rows)
        result = find_in_arrays(
            index.buckets.bounds,
            *(left, view.name_rank[rows], left < NO_SET),
            *(max(1, search.amount), limit),
            fallback=self.settings.fallback,
            end=index.buckets.end,
        )
        row = None if result.key is None else int(rows[result.key])
        return replace(result, key=row, touched=touched + result.touched)

    def _follow(self, view: ClusterView) -> None:
        rows, width = len(view.names), view.free_order.shape[0]
        if rows != len(self._versions) or width != self._width:
            self._versions = np.full(rows, -1, dtype=np.int64)
            self._ranks = np.zeros(rows, dtype=np.int64)
            self._width = width
            self._indexes.clear()
        # A node that joins may move the ranks of others, whose versions stay.
        changed = np.flatnonzero((view.version != self._versions) | (view.name_rank != self._ranks))
        for index in self._indexes.values():
            index.insert(view, changed)
        self._versions[changed] = view.version[changed]
        self._ranks[changed] = view.name_rank[changed]

    def _empty(self, view: ClusterView, search: ClassSearch) -> Buckets:
        """Make the buckets for a class; of sets of cards bounds are those of one card times the cards."""
        settings, name, cards = self.settings, search.name, search.demand.cards
        scale = SCALES[name] * cards
        if name in settings.bounds:
            return settings.given(settings.bounds[name], scale)
        rows, closed = np.arange(len(view.names)), settings.outermost == "closed"
        if closed:
            capacity = view.cpu_capacity if name == CPU else view.memory_capacity
            largest = int((view.size * cards if name == GPU else capacity).max(initial=0))
        elif name != GPU:
            largest = int(compute_host_left(view, name, rows).max(initial=0))
        else:
            largest = cards * int(view.free_order[cards - 1].max(initial=0)) if cards <= self._width else 0
        width = settings.widths.get(name, max(1, ceil(largest / scale / settings.buckets)))
        lower = cards if settings.lower is None else settings.lower * scale
        return Buckets.make_equal(lower, width * scale, settings.buckets, closed=closed)


def _others(view: ClusterView, rows: RowArray) -> FloatArray:
    """Ties of whole amounts: the mean share of everything that is free, below 1."""
    share: FloatArray = np.zeros(len(rows), dtype=np.float64)
    for capacity, used in list_columns(view, ()):
        # At most 3 / 3.1 together.
        share += (capacity - used)[rows] / (3.1 * max(1, int(capacity.max())))
    np.maximum(share, 0.0, out=share)
    return share.round(DECIMALS, out=share)


def make(parameters: Parameters) -> BestFit:
    """Build the policy.

    Args:
        parameters: `mode`, `buckets`, `limit`, `lower`, `fallback`, `outermost`, `order` (comma list of
            classes), and for a class `width-CLASS` or `bounds-CLASS` (comma list).

    Raises:
        PolicyError: a value that is not allowed.
    """
    settings: dict[str, Any] = {"widths": {}, "bounds": {}}
    for key, text in parameters.items():
        kind, _, name = key.partition("-")
        if key in _CHOICES:
            if text not in _CHOICES[key]:
                raise PolicyError(f"{NAME}: {key} is {text!r}; allowed: {', '.join(_CHOICES[key])}")
            settings[key] = text
        elif key in {"buckets", "limit", "lower"}:
            settings[key] = _whole(key, text)
        elif key == "order":
            settings[key] = tuple(part.strip() for part in text.split(","))
        elif kind == "width":
            settings["widths"][name] = _whole(key, text)
        elif kind == "bounds":
            settings["bounds"][name] = tuple(_whole(key, part) for part in text.split(","))
    return BestFit(BestFitSettings(**settings))


def _whole(key: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise PolicyError(f"{NAME}: {key} is {text!r}; allowed: a whole number from 0")
    return int(text)


def _class(name: str) -> str:
    if name not in CLASSES:
        raise PolicyError(f"{NAME}: class {name!r} does not exist; allowed: {_listed()}")
    return name


def _listed() -> str:
    return ", ".join(ORDER)


POLICY: Final = Entry(
    NAME,
    make,
    "the node whose card, or cpu or memory, is left with the least",
    (
        *("mode", "buckets", "limit", "lower", "fallback", "outermost", "order"),
        *(f"{kind}-{name}" for kind in ("width", "bounds") for name in ORDER),
    ),
)
