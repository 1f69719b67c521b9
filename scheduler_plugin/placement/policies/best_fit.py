"""best-fit: the node whose card (or cpu, or memory) is left with the least, found through gradient buckets.

The request's dominant class is the one of which it takes the largest share of the cluster:
argmax(request_c / total_c), ties in the order gpu-memory, cpu, memory. Its remaining amount on a node is
compared: of gpu-memory what the card has that would be used, the c-th largest free amount for c cards.

Mode `pick` searches the buckets of the dominant class (`buckets.Buckets.find`) and names one node; mode
`candidates` scores every feasible node by `remaining - request`, the order in which the buckets K..M would
be read without a limit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal, cast

import numpy as np

from allocator.registry import Entry, Parameters
from scheduler_plugin.cluster.arrays import ClusterView, FloatArray, IntArray, LongArray, RowArray
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.placement.policies.buckets import Buckets, Fallback, Found
from scheduler_plugin.placement.policies.fractions import DECIMALS
from scheduler_plugin.placement.policies.registry import Ask, CardDemand

NAME: Final = "best-fit"
GPU: Final = "gpu-memory"
CPU: Final = "cpu"
MEMORY: Final = "memory"
CLASSES: Final = (GPU, CPU, MEMORY)

SCALES: Final = {GPU: 1, CPU: 1000, MEMORY: 1 << 30}
"""What parameters count in: units of a card, cores, GiB of host memory."""

Mode = Literal["pick", "candidates"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of the policy.

    Attributes:
        mode: `candidates` ranks every node, `pick` names one.
        buckets: M.
        limit: N, buckets that are scanned upwards; None: all.
        lower: l, in the class's unit; nodes with less left are not in its index.
        widths: n by class, in its unit; where not given, M buckets cover the largest remaining amount.
        bounds: Lower bounds by class, in its unit, instead of l, n and M.
        fallback: What to take beyond the limit.
        order: Which class dominates among equals.
    """

    mode: Mode = "candidates"
    buckets: int = 32
    limit: int | None = None
    lower: int = 1
    widths: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fallback: Fallback = "closest"
    order: tuple[str, ...] = CLASSES

    def __post_init__(self) -> None:
        """Check everything.

        Raises:
            PolicyError: a value that is not allowed.
        """
        for name, value in (("buckets", self.buckets), ("limit", 1 if self.limit is None else self.limit)):
            if value < 1:
                raise PolicyError(f"{NAME}: {name} is {value}; allowed is 1 or more")
        if self.lower < 0:
            raise PolicyError(f"{NAME}: lower is {self.lower}; allowed is 0 or more")
        for what in (self.widths, self.bounds, self.order):
            for name in what:
                _class(name)
        if sorted(self.order) != sorted(CLASSES):
            raise PolicyError(f"{NAME}: order is {','.join(self.order)}; allowed is each of {_listed()} once")
        for name, width in self.widths.items():
            Buckets.equal(self.lower, width, self.buckets)
            _class(name)
        for bounds in self.bounds.values():
            Buckets(bounds)


class BestFit:
    """The node policy; see the module's text."""

    epoch = 0

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = Settings() if settings is None else settings
        self._indexes: dict[tuple[str, int], Buckets] = {}
        self._versions: LongArray = np.zeros(0, dtype=np.int64)

    @property
    def by_row(self) -> bool:
        """Whether each node is scored by itself: where one is picked, the others' scores follow from it."""
        return self.settings.mode == "candidates"

    def score(self, view: ClusterView, ask: Ask, rows: RowArray) -> FloatArray:
        """Score rows by what the dominant class has left after it; `pick`: 0 for the node, else inf."""
        if self.settings.mode == "candidates":
            name, cards, amount = self._search(view, ask)
            left: FloatArray = (_remaining(view, ask, name, cards, rows) - amount).astype(np.float64)
            left += _others(view, rows)
            return left
        member = np.zeros(len(view.names), dtype=np.bool_)
        member[rows] = True
        picked = self.pick(view, ask, lambda row: bool(member[row])).key
        scores: FloatArray = np.full(len(rows), np.inf, dtype=np.float64)
        scores[rows == picked] = 0.0
        return scores

    def pick(self, view: ClusterView, ask: Ask, fits: Callable[[int], bool] | None = None) -> Found:
        """Search the index of the dominant class.

        Args:
            view: The cluster now.
            ask: What the pod asks for; a pod with several demands is searched by its largest.
            fits: Tells whether a row can take the pod; None: cpu, memory and cards decide.
        """
        name, cards, amount = self._search(view, ask)
        self._follow(view)
        index = self._index(view, name, cards)
        limit = index.count if self.settings.limit is None else self.settings.limit
        if fits is None:
            fits = _feasible(view, ask)
        return index.find(max(1, amount), limit, fits, self.settings.fallback)

    def _search(self, view: ClusterView, ask: Ask) -> tuple[str, int, int]:
        """Dominant class, cards and amount to search for."""
        demand = max(ask.demands, key=lambda d: (d.units, d.cards), default=CardDemand(0, 1))
        asked = {GPU: ask.gpu_units, CPU: ask.cpu_milli, MEMORY: ask.memory_bytes}
        totals = {
            GPU: int(view.gpu_capacity.sum()),
            CPU: int(view.cpu_capacity.sum()),
            MEMORY: int(view.memory_capacity.sum()),
        }
        name = dominant(asked, totals, self.settings.order)
        return (GPU, demand.cards, demand.units) if name == GPU else (name, 1, asked[name])

    def _follow(self, view: ClusterView) -> None:
        """Move the rows that changed, in every index."""
        rows = len(view.names)
        if rows != len(self._versions):
            self._versions = np.full(rows, -1, dtype=np.int64)
            self._indexes.clear()
        changed = np.flatnonzero(view.version != self._versions)
        for (name, cards), index in self._indexes.items():
            _insert(index, view, name, cards, changed)
        self._versions[changed] = view.version[changed]

    def _index(self, view: ClusterView, name: str, cards: int) -> Buckets:
        index = self._indexes.get((name, cards))
        if index is None:
            rows = np.arange(len(view.names))
            largest = int(_left(view, name, cards, rows).max(initial=0))
            index = self._indexes[name, cards] = self._empty(name, largest)
            _insert(index, view, name, cards, rows)
        return index

    def _empty(self, name: str, largest: int) -> Buckets:
        settings, scale = self.settings, SCALES[name]
        if name in settings.bounds:
            return Buckets([bound * scale for bound in settings.bounds[name]])
        width = settings.widths.get(name, max(1, ceil(largest / scale / settings.buckets)))
        return Buckets.equal(settings.lower * scale, width * scale, settings.buckets)


def dominant(asked: dict[str, int], totals: dict[str, int], order: Sequence[str] = CLASSES) -> str:
    """Find the class of which the request takes the largest share; classes that nobody has are left out.

    Args:
        asked: Request by class.
        totals: The cluster's capacity by class.
        order: Decides between equal shares.
    """
    best = order[0]
    for name in order:
        # asked / total as a comparison of products: exact.
        if totals[name] > 0 and (
            totals[best] <= 0 or asked[name] * totals[best] > asked[best] * totals[name]
        ):
            best = name
    return best


def _left(view: ClusterView, name: str, cards: int, rows: RowArray) -> LongArray | IntArray:
    """What rows have left of a class."""
    if name == CPU:
        return view.cpu_capacity[rows] - view.cpu_used[rows]
    if name == MEMORY:
        return view.memory_capacity[rows] - view.memory_used[rows]
    if cards > view.free_order.shape[0]:
        return np.zeros(len(rows), dtype=np.int64)
    free: IntArray = view.free_order[cards - 1][rows]
    return free


def _remaining(view: ClusterView, ask: Ask, name: str, cards: int, rows: RowArray) -> LongArray | IntArray:
    """The same, but of gpu-memory only cards that the pod admits."""
    if name != GPU or ask.admits is None:
        return _left(view, name, cards, rows)
    free = np.where(ask.admits[rows], view.free[rows], 0)
    result: IntArray = np.sort(free, axis=1)[:, -min(cards, free.shape[1])]
    return result


def _others(view: ClusterView, rows: RowArray) -> FloatArray:
    """Ties of whole amounts: the mean share of everything that is free, below 1."""
    share: FloatArray = np.zeros(len(rows), dtype=np.float64)
    for capacity, used in (
        (view.cpu_capacity, view.cpu_used),
        (view.memory_capacity, view.memory_used),
        (view.gpu_capacity, view.gpu_used),
    ):
        share += (capacity[rows] - used[rows]) / (3.1 * max(1, int(capacity.max())))
    np.clip(share, 0.0, 0.999, out=share)
    return np.round(share, DECIMALS, out=share)


def _insert(index: Buckets, view: ClusterView, name: str, cards: int, rows: RowArray) -> None:
    left = _left(view, name, cards, rows).tolist()
    usable, ranks = view.usable[rows].tolist(), view.name_rank[rows].tolist()
    for row, amount, in_use, rank in zip(rows.tolist(), left, usable, ranks, strict=True):
        if in_use:
            index.put(row, amount, rank)
        else:
            index.drop(row)


def _feasible(view: ClusterView, ask: Ask) -> Callable[[int], bool]:
    """Tell of one row whether every class fits; exact for pods with one demand."""

    def fits(row: int) -> bool:
        if view.cpu_capacity[row] - view.cpu_used[row] < ask.cpu_milli:
            return False
        if view.memory_capacity[row] - view.memory_used[row] < ask.memory_bytes:
            return False
        for units, cards in ask.demands:
            if ask.admits is None:
                if cards > view.free_order.shape[0] or view.free_order[cards - 1, row] < units:
                    return False
            elif np.count_nonzero(ask.admits[row] & (view.free[row] >= units)) < cards:
                return False
        return True

    return fits


def make(parameters: Parameters) -> BestFit:
    """Build the policy.

    Args:
        parameters: `mode`, `buckets`, `limit`, `lower`, `fallback`, `order` (comma list of classes), and for
            a class `width-CLASS` or `bounds-CLASS` (comma list).

    Raises:
        PolicyError: a value that is not allowed.
    """
    mode, fallback, limit = "candidates", "closest", None
    numbers = {"buckets": 32, "lower": 1}
    order: tuple[str, ...] = CLASSES
    widths: dict[str, int] = {}
    bounds: dict[str, tuple[int, ...]] = {}
    for key, text in parameters.items():
        kind, _, name = key.partition("-")
        if key == "mode":
            mode = _choice(key, text, ("candidates", "pick"))
        elif key == "fallback":
            fallback = _choice(key, text, ("closest", "largest"))
        elif key == "limit":
            limit = _whole(key, text)
        elif key in numbers:
            numbers[key] = _whole(key, text)
        elif key == "order":
            order = tuple(part.strip() for part in text.split(","))
        elif kind == "width":
            widths[name] = _whole(key, text)
        elif kind == "bounds":
            bounds[name] = tuple(_whole(key, part) for part in text.split(","))
    return BestFit(
        Settings(
            cast("Mode", mode),
            numbers["buckets"],
            limit,
            numbers["lower"],
            widths,
            bounds,
            cast("Fallback", fallback),
            order,
        )
    )


def _choice(key: str, text: str, allowed: Sequence[str]) -> str:
    if text not in allowed:
        raise PolicyError(f"{NAME}: {key} is {text!r}; allowed are {', '.join(allowed)}")
    return text


def _whole(key: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise PolicyError(f"{NAME}: {key} is {text!r}; allowed is a whole number from 0")
    return int(text)


def _class(name: str) -> str:
    if name not in CLASSES:
        raise PolicyError(f"{NAME}: class {name!r} does not exist; allowed are {_listed()}")
    return name


def _listed() -> str:
    return ", ".join(CLASSES)


POLICY: Final = Entry(
    NAME,
    make,
    "the node whose card, or cpu or memory, is left with the least",
    (
        *("mode", "buckets", "limit", "lower", "fallback", "order"),
        *(f"{kind}-{name}" for kind in ("width", "bounds") for name in CLASSES),
    ),
)
