"""Arrivals of a replay: the trace's own times, at the load asked for.

Load is what the pods would ask for at a time if none of them waited, as a multiple of the cluster's GPUs.
Load is the mean over the time that counts. That time begins when a tenth of the pods have arrived, so that
the cluster is no longer empty. The time ends with the last arrival.

To change the load, pods are copied or left out at random. A copy comes up to an hour later than its original,
so the pace stays that of the trace. Where that takes more pods than the limit, the cluster is made smaller
instead: nodes are drawn from it evenly over models and sizes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduler_plugin.errors import TraceError
from scheduler_plugin.simulator.trace import CARD, TraceNode, TracePod

_SPREAD_S: Final = 3600
_SPREAD_SHARE: Final = 100
"""Copies come up to an hour later, and in short traces up to a hundredth of its time."""

_WARM_UP: Final = 10
"""The time that counts begins when 1 / _WARM_UP of the pods have arrived."""


class Arrival(NamedTuple):
    """A pod that comes at a time, in seconds of the trace, and runs so long; None: to the end."""

    at_s: float
    runs_s: int | None
    pod: TracePod


@dataclass(frozen=True, slots=True)
class Replay:
    """Input of one run: nodes by name, arrivals by time, mean copies of a pod, and the time that counts."""

    nodes: tuple[TraceNode, ...]
    arrivals: tuple[Arrival, ...]
    copies: float
    from_s: float
    until_s: float


def make_replay(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], load: float | None, max_pods: int, seed: int
) -> Replay:
    """Make one run.

    Args:
        load: GPUs asked for at a time, as a multiple of the cluster's; None: the trace as it is.
        max_pods: Pods that a run may have; the list itself may always run.

    Raises:
        TraceError: the pods ask for no GPU in the time that counts, so no number of them makes a load.
    """
    rng = random.Random(seed)  # noqa: S311 - a simulation, no secret
    times = [(pod, *_get_times(pod)) for pod in pods]
    starts = sorted(at for _, at, _ in times)
    from_s, until_s = starts[len(starts) // _WARM_UP], starts[-1]
    kept, copies = tuple(nodes), 1.0
    if load is not None:
        requested = sum(
            pod.requested_milli / CARD * _count_seconds_within(at, runs, from_s, until_s)
            for pod, at, runs in times
        )
        if not (until_s > from_s and requested > 0):
            raise TraceError(
                f"the {len(pods)} pods ask for no GPU at any time that counts, from {from_s} to {until_s} s; "
                "a load needs pods with GPUs and different creation times"
            )
        cards = requested / (until_s - from_s)
        most = max(1.0, max_pods / len(pods))
        gpus = sum(node.cards for node in nodes)
        kept = _draw_nodes(nodes, cards * most / load, rng) if load * gpus / cards > most else kept
        copies = load * sum(node.cards for node in kept) / cards
    spread = min(_SPREAD_S, (until_s - starts[0]) / _SPREAD_SHARE)
    arrivals = [Arrival(at, runs, pod) for pod, at, runs in times] if copies >= 1 else []
    more = rng.sample(times, round((copies % 1) * len(times)))
    for pod, at, runs in (*(times * (int(copies) - 1)), *more):
        arrivals.append(Arrival(at + (rng.uniform(0, spread) if copies >= 1 else 0), runs, pod))
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return Replay(kept, tuple(arrivals), copies, from_s, until_s)


def _get_times(pod: TracePod) -> tuple[int, int | None]:
    if pod.times is None:
        raise TraceError(f"pod {pod.name!r} has no times; a replay needs them")
    return pod.times


def _count_seconds_within(at: float, runs: int | None, from_s: float, until_s: float) -> float:
    """Count the seconds of a pod's time that lie in the time that counts."""
    end = until_s if runs is None else min(until_s, at + runs)
    return max(0.0, end - max(from_s, at))


def _draw_nodes(nodes: Sequence[TraceNode], gpus: float, rng: random.Random) -> tuple[TraceNode, ...]:
    """Draw nodes with about so many cards, at least one: every k-th of them by model and size."""
    ordered = sorted(nodes, key=lambda n: (n.model, n.cards, n.cpu_milli, n.memory_mib, n.name))
    step = sum(node.cards for node in nodes) / max(gpus, 1.0)
    at = rng.uniform(0, step)
    drawn, passed = [], 0.0
    for node in ordered:
        weight = max(1, node.cards)
        passed += weight
        if passed > at:
            drawn.append(node)
            at += step * weight
    if not any(node.cards for node in drawn):
        drawn.append(next(node for node in ordered if node.cards))
    return tuple(sorted(drawn, key=lambda node: node.name))
