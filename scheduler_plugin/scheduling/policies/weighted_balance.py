"""weighted-balance: keep cpu, memory and GPU memory of a node level, the scarce class weighing more.

Weights `w = (W0 + W1 + W2) / 3`: W0 configured, W1 the precedence chart of the pods that wait for each class,
W2 that of the cluster's use of each. After placing a pod `d_i = (used_i + request_i) / capacity_i`,
`m = mean(d)`, `y = sqrt(sum(w_i (d_i - m)^2))`; smaller is better. Classes with capacity 0 are dropped.

The cluster's use is `U = mean_i(used_i / total_i)`:

- At or above the threshold the node with the smallest y wins.
- Below it nodes are polled in order of their names, and the first that the pod makes more level wins. If
  there is none, the smallest y wins (`place`). Or the pod waits for some rounds (`hold`), unless a node has
  no GPU in use. A round is an attempt to place the pod; whoever only asks (`score`) changes nothing.

The classes are cpu, memory, gpu-memory and the further resources that its parameter names.

A class is short of a waiting pod on the node that lacks fewest classes for it, of all nodes, ties by name.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Final, Literal, cast

import numpy as np

from allocator.registry import Entry, Parameters
from kubeapi.bounded import BoundedDict
from scheduler_plugin.cache.amounts import NOTHING
from scheduler_plugin.cache.arrays import BoolArray, ClusterView, FloatArray, RowArray
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies.fractions import (
    CLASSES,
    DECIMALS,
    GPU,
    Fractions,
    add_classes,
    list_asked,
    list_columns,
    parse_resources,
)
from scheduler_plugin.scheduling.policies.fractions import compute_mean as level
from scheduler_plugin.scheduling.policies.registry import PolicyRequest

NAME: Final = "weighted-balance"
PARTS: Final = ("W0", "W1", "W2")

_POLLED_FIRST: Final = 64
_WINNER: Final = -1.0
_NEVER_POLLED: Final = 2.0
_ANY: Final = PolicyRequest(NOTHING, ())
"""Nodes without cards are among those whose y is remembered."""

_HALF: Final = Fraction(1, 2)
_TINY: Final = 1e-300
_HELD_PODS: Final = 65536
_PENDING_PODS: Final = 65536


@dataclass(frozen=True, slots=True)
class WeightedBalanceSettings:
    """Parameters of the policy.

    Attributes:
        configured: W0 for cpu, memory, gpu-memory and further resources.
        threshold: T, of the cluster's use, 0 to 1.
        parts: Which of W0, W1, W2 are averaged.
        on_no_improvement: What to do below the threshold when the pod makes no node more level.
        hold_rounds: Attempts to place a pod that are refused at most.
        rotate: Poll from the node after the last winner instead of from the first name.
    """

    configured: tuple[Fraction, ...] = (Fraction(1, 3),) * 3
    threshold: Fraction = Fraction(1, 2)
    parts: tuple[str, ...] = PARTS
    on_no_improvement: Literal["place", "hold"] = "place"
    hold_rounds: int = 3
    rotate: bool = False
    other_resources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check everything.

        Raises:
            PolicyError: a value that is not allowed.
        """
        classes = (*CLASSES, *self.other_resources)
        if len(self.configured) != len(classes) or sum(self.configured) != 1 or min(self.configured) < 0:
            shown = ",".join(str(weight) for weight in self.configured)
            raise PolicyError(
                f"{NAME}: weights are {shown}; allowed: {len(classes)} from 0 that sum to 1,"
                f" of {', '.join(classes)}"
            )
        if not 0 <= self.threshold <= 1:
            raise PolicyError(f"{NAME}: threshold is {float(self.threshold):g}; allowed: 0 to 1")
        if not self.parts or set(self.parts) - set(PARTS):
            raise PolicyError(f"{NAME}: parts are {','.join(self.parts)}; allowed: some of W0,W1,W2")
        if self.hold_rounds < 0:
            raise PolicyError(f"{NAME}: hold-rounds is {self.hold_rounds}; allowed: 0 or more")


class WeightedBalance:
    """The node policy; see the module's text."""

    ranks_plain_pods = True

    def __init__(self, settings: WeightedBalanceSettings | None = None) -> None:
        self.settings = WeightedBalanceSettings() if settings is None else settings
        self.epoch = 0
        # Comparing with a Fraction costs as much as an array operation.
        self._threshold = float(self.settings.threshold)
        self._blocked: dict[str, tuple[int, ...]] = {}
        self._counts: Counter[int] = Counter()
        self._rounds: BoundedDict[str, int] = BoundedDict(_HELD_PODS)
        self._orders: tuple[object, ...] = ()
        self._weights: tuple[Fraction, ...] = ()
        self._count = len(self.settings.configured)
        self._column: FloatArray = np.zeros((self._count, 1), dtype=np.float64)
        self._cursor: int | None = None
        self._fractions = Fractions(self.settings.other_resources)
        self._y: FloatArray = np.zeros(0, dtype=np.float64)
        self._y_epoch = -1
        self._polls_far = False

    @property
    def other_resources(self) -> tuple[str, ...]:
        return self.settings.other_resources

    @property
    def pending_by_class(self) -> tuple[int, ...]:
        return tuple(self._counts[at] for at in range(self._count))

    def weights(self, view: ClusterView) -> tuple[Fraction, ...]:
        """The weights in force, exact; `epoch` grows when they change."""
        self._update_weights(view)
        return self._weigh(self._shares())

    def _update_weights(self, view: ClusterView) -> None:
        """Follow outside of `score`: what was kept of single rows is stale then."""
        if self._fractions.follow(view).size:
            self._y_epoch = -1

    def _weigh(self, shares: Sequence[float]) -> tuple[Fraction, ...]:
        # Charts depend on the order of the values only, and that seldom changes.
        orders = (_order(self.pending_by_class), _order(shares))
        if orders != self._orders:
            self._orders = orders
            charts = {
                "W0": self.settings.configured,
                "W1": compute_chart(self.pending_by_class),
                "W2": compute_chart(shares),
            }
            weights = average_charts([charts[part] for part in PARTS if part in self.settings.parts])
            if weights != self._weights:
                self._weights = weights
                self._column = np.array([[float(weight)] for weight in weights])
                self.epoch += 1
        return self._weights

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by y after placing the pod; below the threshold the first to get more level wins."""
        changed = self._fractions.follow(view)
        shares = self._shares()
        self._weigh(shares)
        if self._utilisation(shares) >= self._threshold:
            if changed.size:
                self._y_epoch = -1
            return self._after(ask, rows)
        before = self._before(view, changed)
        order = self._polling_order(view, rows)
        result: FloatArray = np.empty(len(rows), dtype=np.float64)
        # Where the last pod's winner was far, this one's is likely to be: then all are polled in one go.
        start, end = 0, len(rows) if self._polls_far else _POLLED_FIRST
        while start < len(rows):
            at = order[start:end]
            polled = rows[at]
            result[at] = self._after(ask, polled)
            better = result[at] < before[polled]
            if better.any():
                winner = at[np.argmax(better)]
                self._polls_far = winner not in order[:_POLLED_FIRST]
                # Whoever comes later was never asked; the order among them is the polling order.
                later = order[end:] if self._polls_far else order[_POLLED_FIRST:]
                result[later] = _NEVER_POLLED + np.arange(len(later))
                result[winner] = _WINNER
                return result
            start, end = end, len(rows)
        self._polls_far = True
        return self._unimproved(view, ask, rows, result)

    def _before(self, view: ClusterView, changed: RowArray) -> FloatArray:
        """Y of every row as it is, brought up to date."""
        if len(self._y) != len(view.version) or self._y_epoch != self.epoch:
            self._y = np.zeros(len(view.version), dtype=np.float64)
            self._y_epoch = self.epoch
            changed = np.arange(len(view.version))
        if changed.size:
            present = self._fractions.present(changed, _ANY)
            self._y[changed] = _imbalances(self._fractions.before(changed), present, self._column)
        return self._y

    def _shares(self) -> tuple[float, ...]:
        """Used / total of each class over the cluster, 0 if there is none."""
        pairs = zip(self._fractions.used_total, self._fractions.capacity_total, strict=True)
        return tuple(used / total if total > 0 else 0.0 for used, total in pairs)

    def _utilisation(self, shares: Sequence[float]) -> float:
        """U; classes that nobody has are dropped."""
        return sum(shares) / max(1, sum(total > 0 for total in self._fractions.capacity_total))

    def _after(self, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        present = self._fractions.present(rows, ask)
        return _imbalances(self._fractions.after(ask, rows), present, self._column)

    def _polling_order(self, view: ClusterView, rows: RowArray) -> RowArray:
        """Positions in `rows` by name, from the one after the last winner when the cursor rotates."""
        ranks = view.name_rank[rows]
        # Rows are often in the order of names already.
        sorted_already = bool((ranks[1:] > ranks[:-1]).all())
        order: RowArray = np.arange(len(rows)) if sorted_already else np.argsort(ranks)
        if self.settings.rotate and self._cursor is not None:
            order = np.roll(order, -int(np.searchsorted(ranks[order], self._cursor, side="right")))
        return order

    def record_attempt(self, view: ClusterView, pod: str, row: int | None) -> None:
        """Count a round of a pod that was held back; poll from the node after a winner."""
        if row is not None:
            self._cursor = int(view.name_rank[row]) if self.settings.rotate else None
            return
        self._rounds[pod] = self._rounds.get(pod, 0) + 1

    def pending(self, uid: str, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> None:
        """Count a pod that no row can take against the classes that it is short of.

        A pod that some other node has enough for may run on none but `rows`: there is the shortage then.
        """
        self._forget(uid)
        others = self.settings.other_resources
        self._block(uid, _short_classes(view, ask, others) or _short_classes(view, ask, others, rows))

    def waiting(self, view: ClusterView, pods: Sequence[tuple[PolicyRequest, Sequence[str]]]) -> None:
        """Count every pod that waits now; who is not among them counts no more.

        A pod that some node has enough for counts only where it was refused, see `pending`.
        """
        known = self._blocked
        self._blocked = {}
        self._counts.clear()
        for ask, uids in pods:
            classes = _short_classes(view, ask, self.settings.other_resources)
            for uid in uids:
                self._block(uid, classes or known.get(uid, ()))

    def pod_resolved(self, uid: str, ask: PolicyRequest | None) -> None:  # noqa: ARG002 - part of the protocol
        self._forget(uid)
        self._rounds.pop(uid, None)

    def _block(self, uid: str, classes: Sequence[int]) -> None:
        if classes:
            if len(self._blocked) >= _PENDING_PODS:
                self._forget(next(iter(self._blocked)))
            self._blocked[uid] = tuple(classes)
            self._counts.update(classes)

    def _forget(self, uid: str) -> None:
        self._counts.subtract(self._blocked.pop(uid, ()))

    def _unimproved(
        self, view: ClusterView, ask: PolicyRequest, rows: RowArray, after: FloatArray
    ) -> FloatArray:
        """No node gets more level: place; or hold, unless a node is empty or the pod waited long enough."""
        if (
            self.settings.on_no_improvement == "place"
            or self._rounds.get(ask.pod, 0) >= self.settings.hold_rounds
        ):
            return after
        # A node's own daemons use some cpu and memory.
        accepted: FloatArray = np.where(view.gpu_used[rows] == 0, after, np.inf)
        return accepted


def _order(values: Sequence[float]) -> tuple[int, ...]:
    """Compute what a precedence chart sees of values: how each pair compares."""
    return tuple([(a > b) - (a < b) for a, b in combinations(values, 2)])


def _imbalances(d: FloatArray, present: FloatArray | None, weights: FloatArray) -> FloatArray:
    """Y of many nodes: fractions float64[k, n], present float64[k, n], weights float64[k, 1] -> float64[n].

    Overwrites `d`.
    """
    d -= level(d, present)
    d *= d
    share = weights if present is None else present * weights
    d *= share
    spread = add_classes(d)
    spread /= np.maximum(add_classes(share), _TINY)
    np.sqrt(spread, out=spread)
    return np.round(spread, DECIMALS, out=spread)


def _short_classes(
    view: ClusterView, ask: PolicyRequest, others: Sequence[str], rows: RowArray | None = None
) -> tuple[int, ...]:
    """Find the classes that are short on the node, of these or all rows, that lacks fewest; ties by name."""
    there = view.usable | (view.cpu_capacity > 0) if not ask.demands else view.usable
    rows = np.flatnonzero(there) if rows is None else rows[there[rows]]
    if not rows.size:
        return ()
    short = _shortages(view, ask, others, rows)
    lacking = short.sum(axis=0)
    fewest = np.flatnonzero(lacking == lacking.min())
    closest = fewest[view.name_rank[rows[fewest]].argmin()]
    return tuple(np.flatnonzero(short[:, closest]).tolist())


def _shortages(view: ClusterView, ask: PolicyRequest, others: Sequence[str], rows: RowArray) -> BoolArray:
    """Find the classes that are short on nodes: bool[k, n]."""
    columns, asked = list_columns(view, others), list_asked(ask, others)
    asked[CLASSES.index(GPU)] = 0
    short = np.zeros((len(columns), len(rows)), dtype=np.bool_)
    for at, (amount, (capacity, used)) in enumerate(zip(asked, columns, strict=True)):
        # Of what a pod does not ask for it is never short, as kube-scheduler has it.
        if amount:
            short[at] = capacity[rows] - used[rows] < amount
    gpu = short[CLASSES.index(GPU)]
    for units, cards, _ in ask.demands:
        if ask.admits is None and cards <= view.free_order.shape[0]:
            gpu |= view.free_order[cards - 1][rows] < units
        else:
            fits = view.free[rows] >= units
            fits &= True if ask.admits is None else ask.admits[rows]
            gpu |= np.count_nonzero(fits, axis=1) < cards
    return short


def make(parameters: Parameters) -> WeightedBalance:
    """Build the policy.

    Args:
        parameters: Some of these:

            - `weights`: numbers that sum to 1, for cpu, memory, gpu-memory and `resources`.
            - `threshold`: a use of the cluster, 0 to 1.
            - `hold-rounds`: rounds for which a pod waits with `hold`, 0 or more.
            - `parts`: some of W0, W1, W2.
            - `on-no-improvement`: place or hold.
            - `rotate`: yes or no.
            - `resources`: further classes.

    Raises:
        PolicyError: a value that is not allowed.
    """
    given = dict(parameters)
    others = parse_resources(NAME, parameters)
    equal = ",".join([f"1/{len(CLASSES) + len(others)}"] * (len(CLASSES) + len(others)))
    weights = tuple(_number("weights", part) for part in given.get("weights", equal).split(","))
    choice = given.get("on-no-improvement", "place")
    if choice not in {"place", "hold"}:
        raise PolicyError(f"{NAME}: on-no-improvement is {choice!r}; allowed: place, hold")
    rotate = given.get("rotate", "no")
    if rotate not in {"yes", "no"}:
        raise PolicyError(f"{NAME}: rotate is {rotate!r}; allowed: yes, no")
    rounds = _number("hold-rounds", given.get("hold-rounds", "3"))
    if rounds.denominator != 1:
        raise PolicyError(f"{NAME}: hold-rounds is {rounds}; allowed: a whole number")
    return WeightedBalance(
        WeightedBalanceSettings(
            weights,
            _number("threshold", given.get("threshold", "1/2")),
            tuple(part.strip() for part in given.get("parts", "W0,W1,W2").split(",")),
            cast("Literal['place', 'hold']", choice),
            int(rounds),
            rotate == "yes",
            others,
        )
    )


def _number(key: str, text: str) -> Fraction:
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise PolicyError(f"{NAME}: {key} is {text!r}; allowed: numbers like 0.25 or 1/4") from error


POLICY: Final = Entry(
    NAME,
    make,
    "keep cpu, memory and GPU memory level, the scarce class weighing more",
    ("weights", "threshold", "parts", "on-no-improvement", "hold-rounds", "rotate", "resources"),
)


def compute_chart(values: Sequence[Fraction | int | float]) -> tuple[Fraction, ...]:
    """Weigh k classes: `p_ij` is 1 if v_i > v_j, 1/2 if equal, else 0; `w_i = sum_j p_ij / (k*k/2)`.

    Returns:
        Weights that sum to 1, the larger the value the larger the weight.

    Raises:
        PolicyError: fewer than two classes.
    """
    count = len(values)
    if count < 2:  # noqa: PLR2004 - nothing to compare
        raise PolicyError(f"precedence chart of {count} classes; allowed: 2 or more")
    scores = [
        sum((Fraction(1) if mine > other else _HALF if mine == other else Fraction(0)) for other in values)
        for mine in values
    ]
    return tuple(Fraction(score) / Fraction(count * count, 2) for score in scores)


def average_charts(charts: Sequence[Sequence[Fraction]]) -> tuple[Fraction, ...]:
    return tuple(sum(column, Fraction(0)) / len(charts) for column in zip(*charts, strict=True))
