"""The typical workload: what pods ask for and how often, counted from the pods seen."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from allocator.selector import Selector
from scheduler_plugin.scheduling.policies.registry import NodePolicy, PolicyRequest

MAX_SHAPES: Final = 512
"""Shapes that are scored with; rarer ones are left out."""

MAX_COUNTED: Final = 1 << 14
"""Shapes that are counted; where there are more, all but the `MAX_SHAPES` most frequent are forgotten."""


class DemandShape(NamedTuple):
    """What a pod, or one of several containers in it, asks for.

    Attributes:
        units: GPU units on each card.
    """

    cpu_milli: int
    units: int
    cards: int
    selector: Selector


class WorkloadShare(NamedTuple):
    """A shape's part in the workload.

    Attributes:
        popularity: Pods of it for one pod seen, cpu-only ones included.
        memory_bytes: Mean host memory of its pods.
    """

    shape: DemandShape
    popularity: float
    memory_bytes: float


class TypicalWorkload:
    """Counts shapes. Pods that ask for no GPU count in the total only.

    A pod whose containers make several demands counts as one shape for each, with an equal part of its cpu
    and memory.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[DemandShape] = Counter()
        self._memory: Counter[DemandShape] = Counter()

    @classmethod
    def from_pods(cls, asks: Iterable[PolicyRequest]) -> Self:
        workload = cls()
        for ask in asks:
            workload.add(ask)
        return workload

    def add(self, ask: PolicyRequest, count: int = 1) -> None:
        self.total += count
        parts = len(ask.demands)
        for demand in ask.demands:
            shape = DemandShape(ask.cpu_milli // parts, demand.units, demand.cards, ask.selector)
            self._counts[shape] += count
            self._memory[shape] += count * (ask.memory_bytes // parts)
        if len(self._counts) > MAX_COUNTED:
            self._counts = Counter(dict(self._counts.most_common(MAX_SHAPES)))
            self._memory = Counter({shape: self._memory[shape] for shape in self._counts})

    def shares(self) -> list[WorkloadShare]:
        """List the shapes with their popularity, in an order that does not follow from that of counting."""
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], _key(item[0])))[:MAX_SHAPES]
        return [
            WorkloadShare(shape, count / self.total, self._memory[shape] / count)
            for shape, count in sorted(ranked, key=lambda item: _key(item[0]))
        ]

    @property
    def gpu_pods(self) -> int:
        """Pods counted that ask for a GPU, once for each of their demands."""
        return self._counts.total()

    def popularity(self) -> dict[DemandShape, float]:
        """Pods of each shape for one pod seen."""
        return {shape: count / self.total for shape, count in self._counts.items()}

    def card_demands(self) -> Mapping[int, float]:
        """Count how often each amount of units is asked of a single card."""
        demands: Counter[int] = Counter()
        for shape, count in self._counts.items():
            if shape.cards == 1:
                demands[shape.units] += count
        return demands


def _key(shape: DemandShape) -> tuple[object, ...]:
    selector = shape.selector
    names = (selector.models, selector.excluded_models, selector.uuids, selector.excluded_uuids)
    return (shape.cpu_milli, shape.units, shape.cards, *names)


@runtime_checkable
class WorkloadPolicy(Protocol):
    """The further interface of a node policy that ranks by a typical workload."""

    def with_workload(self, workload: TypicalWorkload) -> NodePolicy: ...


def compute_distance(left: Mapping[DemandShape, float], right: Mapping[DemandShape, float]) -> float:
    """Compute how much popularity must move to make one workload the other: 0 to 1."""
    shapes = {**left, **right}
    return sum(abs(left.get(shape, 0.0) - right.get(shape, 0.0)) for shape in shapes) / 2
