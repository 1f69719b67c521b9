"""A packing run: pods arrive one by one, each goes where the policy says or is dropped, none ends.

A pod that the policy holds back is tried again with each later arrival, and when all have arrived.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from scheduler_plugin.scheduling.policies.registry import NodePolicy
from scheduler_plugin.simulator.cluster import SimulatedCluster, SimulatedPodKind
from scheduler_plugin.simulator.placer import HELD, PlacedPod, Placer
from scheduler_plugin.simulator.trace import CARD, TracePod

MOST_ROUNDS: Final = 1000
"""How often held pods are tried again once all have arrived."""

_HALF: Final = 50
_ALL: Final = 100
"""Percents asked for at which something is told."""


@dataclass(frozen=True, slots=True)
class PackingPoint:
    """The cluster when a share of it has been asked for; all in percent of the cluster's GPUs."""

    arrived: float
    allocated: float
    fragmented: float | None = None


@dataclass(slots=True)
class PackingOutcome:
    """Results of one run.

    Attributes:
        curve: Allocation against arrival, one point a percent.
        allocated_percent: By arrived percent, "100" and the last.
        whole_percent: Cards free as a whole when half of the GPUs had been asked for; None: that never was.
        failed: Dropped pods by reason.
        placed_units, failed_units: Cards asked for, by the units asked of each.
        wall_s: Seconds that placing took.
    """

    pods: int = 0
    placed: int = 0
    curve: list[PackingPoint] = field(default_factory=list)
    allocated_percent: dict[str, float] = field(default_factory=dict)
    whole_percent: float | None = None
    failed: Counter[str] = field(default_factory=Counter)
    placed_units: Counter[int] = field(default_factory=Counter)
    failed_units: Counter[int] = field(default_factory=Counter)
    wall_s: float = 0.0


def make_typical_workload(cluster: SimulatedCluster, pods: Sequence[TracePod]) -> TypicalWorkload:
    """Make the typical workload of a pod list: every kind, by how often it occurs."""
    workload = TypicalWorkload()
    for pod, count in Counter(pod.shape for pod in pods).items():
        workload.add(cluster.get_kind(pod, "").request, count)
    return workload


class _Packer:
    """Places pods, remembers who is held back, and counts into an outcome."""

    def __init__(self, placer: Placer, outcome: PackingOutcome) -> None:
        self._placer = placer
        self._outcome = outcome
        self._held: list[tuple[int, SimulatedPodKind]] = []
        self.units = 0

    def place(self, number: int, kind: SimulatedPodKind) -> None:
        """Try the pods that are held back, then the next one."""
        waiting, self._held = self._held, []
        for arrival in (*waiting, (number, kind)):
            self._try_pod(*arrival)

    def place_held(self) -> None:
        """Try held pods until none is left; those left after `MOST_ROUNDS` are dropped."""
        for _ in range(MOST_ROUNDS):
            waiting, self._held = self._held, []
            for arrival in waiting:
                self._try_pod(*arrival)
        for _, kind in self._held:
            self._outcome.failed[HELD] += 1
            _count(self._outcome.failed_units, kind)

    def _try_pod(self, number: int, kind: SimulatedPodKind) -> None:
        placed, outcome = self._placer.place_pod(kind, str(number)), self._outcome
        if placed == HELD:
            self._held.append((number, kind))
        elif isinstance(placed, PlacedPod):
            outcome.placed += 1
            self.units += placed.units
            _count(outcome.placed_units, kind)
        else:
            outcome.failed[placed] += 1
            _count(outcome.failed_units, kind)


def run_packing(
    cluster: SimulatedCluster,
    policy: NodePolicy,
    card_policy: str,
    pods: Sequence[TracePod],
    clock: Callable[[], float],
    *,
    last: str = "130",
    measure: Callable[[SimulatedCluster], float] | None = None,
) -> PackingOutcome:
    """Place pods in order.

    Args:
        cluster: Empty; full afterwards.
        card_policy: Chooses cards, unless the node policy does.
        last: Key of the end in `allocated_percent`.
        measure: Called at every percent that has arrived, for `PackingPoint.fragmented`. Its time does not
            count.
    """
    outcome = PackingOutcome(pods=len(pods))
    requests = [pod.requested_milli for pod in pods]
    total = cluster.gpus * CARD
    whole = cluster.units
    requested = 0
    next_point = 1
    start = clock()
    apart = 0.0
    packer = _Packer(Placer(cluster, policy), outcome)
    for number, pod in enumerate(pods):
        packer.place(number, cluster.get_kind(pod, card_policy))
        requested += requests[number]
        while requested * 100 >= next_point * total:
            paused = clock()
            fragmented = None if measure is None else measure(cluster)
            apart += clock() - paused
            outcome.curve.append(PackingPoint(float(next_point), 100.0 * packer.units / whole, fragmented))
            if next_point == _HALF:
                outcome.whole_percent = cluster.compute_whole_percent()
            if next_point == _ALL:
                outcome.allocated_percent["100"] = 100.0 * packer.units / whole
            next_point += 1
    packer.place_held()
    outcome.wall_s = clock() - start - apart
    allocated = 100.0 * packer.units / whole
    fragmented = None if measure is None else measure(cluster)
    outcome.curve.append(PackingPoint(100.0 * requested / total, allocated, fragmented))
    outcome.allocated_percent[last] = allocated
    return outcome


def _count(units: Counter[int], kind: SimulatedPodKind) -> None:
    for demand in kind.request.demands:
        units[demand.units] += demand.cards
