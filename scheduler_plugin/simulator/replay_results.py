"""Results of replays as plain values: what the JSON holds, and their means."""

from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scheduler_plugin.simulator.arrivals import Replay
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.replay import ReplayRecord
from scheduler_plugin.simulator.results import Run, average_by_key, group_by_label
from scheduler_plugin.simulator.trace import CARD, TracePod

if TYPE_CHECKING:
    from scheduler_plugin.cache.arrays import FloatArray

POINTS: Final = 240
"""Points of a curve; each is the mean over its part of the time that counts."""

_DAY_S: Final = 86_400.0

SERIES: Final = ("day", "asked_percent", "allocated_percent", "waiting", "turned_away")
"""Columns of `series`: days since the time that counts began, then means and, at last, pods of that point."""

FIGURES: Final = (
    "load",
    "allocated_percent",
    "turned_away_percent",
    "waiting",
    "waiting_most",
    "waiting_gpus_percent",
    "impossible",
    "never_placed",
    "gpu_pods",
    "wall_s",
)


def make_replay_result(story: ReplayRecord, replay: Replay, cluster: SimulatedCluster, wall_s: float) -> Run:
    """Write a replay down. Pods count that ask for a GPU and came in the time that counts.

    Returns:
        A mapping with these keys. Waits are seconds, of all pods that were placed, 0 included.

        - `nodes`, `gpus`, `copies`, `pods`, `gpu_pods`: counts.
        - `load`: GPUs asked for at a time if none waited, as a multiple of the cluster's.
        - `allocated_percent`: mean over the time that counts.
        - `turned_away_percent`: pods that found no place when they came.
        - `wait_s {mean, median, p95, most}`, `wait_mean_s {size: mean}`.
        - `waiting`, `waiting_most`: pods at a time.
        - `waiting_gpus_percent`: what they ask for, of the cluster's GPUs.
        - `impossible`: pods that no empty node takes.
        - `never_placed`: pods that waited to the end.
        - `series [[SERIES]]`, `wall_s`.
    """
    first, last = replay.from_s, replay.until_s
    counted = [
        number
        for number, arrival in enumerate(replay.arrivals)
        if arrival.pod.cards and first <= arrival.at_s <= last
    ]
    among = set(counted)
    waits = {
        number: placed - replay.arrivals[number].at_s
        for number in counted
        if (placed := story.placed_s[number]) is not None
    }
    away = [number for number in story.turned_away if number in among]
    edges = np.linspace(first, last, POINTS + 1) if last > first else np.array([first, first + 1.0])
    times = [sample.at_s for sample in story.samples]
    whole = 100.0 / cluster.units
    requested = _compute_asked(replay, edges) * (100.0 / cluster.gpus)
    used = average_steps(times, [sample.used * whole for sample in story.samples], edges)
    waiting = average_steps(times, [float(sample.waiting) for sample in story.samples], edges)
    milli = average_steps(times, [float(sample.waiting_milli) for sample in story.samples], edges)
    came = np.histogram([replay.arrivals[number].at_s for number in away], edges)[0]
    days = (edges[:-1] - first) / _DAY_S
    in_time = [sample.waiting for sample in story.samples if first <= sample.at_s <= last]
    return {
        "nodes": len(replay.nodes),
        "gpus": cluster.gpus,
        "copies": round(replay.copies, 4),
        "pods": len(replay.arrivals),
        "gpu_pods": len(counted),
        "load": round(float(requested.mean()) / 100.0, 4),
        "allocated_percent": round(float(used.mean()), 4),
        "turned_away_percent": round(100.0 * len(away) / max(1, len(counted)), 4),
        "wait_s": compute_wait_figures(list(waits.values())),
        "wait_mean_s": {
            size: round(
                fmean(
                    [
                        wait
                        for number, wait in waits.items()
                        if _format_size(replay.arrivals[number].pod) == size
                    ]
                ),
                1,
            )
            for size in sorted({_format_size(replay.arrivals[number].pod) for number in waits})
        },
        "waiting": round(float(waiting.mean()), 3),
        "waiting_most": max(in_time, default=0),
        "waiting_gpus_percent": round(float(milli.mean()) / (CARD * cluster.gpus) * 100.0, 4),
        "impossible": len(story.impossible & among),
        "never_placed": len(counted) - len(waits) - len(story.impossible & among),
        "series": [
            [round(float(value), 4) for value in row]
            for row in zip(days, requested, used, waiting, came, strict=True)
        ],
        "wall_s": round(wall_s, 3),
    }


def average_replays(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Average the runs of each label: `card_policy, runs`, FIGURES, `spread` of allocation, the waits."""
    result: dict[str, dict[str, Any]] = {}
    for label, runs_of_label in group_by_label(runs).items():
        result[label] = {
            "card_policy": runs_of_label[0]["card_policy"],
            "runs": len(runs_of_label),
            **{name: round(fmean(run[name] for run in runs_of_label), 4) for name in FIGURES},
            "spread": round(pstdev(run["allocated_percent"] for run in runs_of_label), 4),
            "wait_s": average_by_key([run["wait_s"] for run in runs_of_label], 1),
            "wait_mean_s": average_by_key([run["wait_mean_s"] for run in runs_of_label], 1),
        }
    return result


def _format_size(pod: TracePod) -> str:
    if pod.cards > 1:
        return "several cards"
    return "a whole card" if pod.gpu_milli == CARD else "part of a card"


def compute_wait_figures(waits: list[float]) -> dict[str, float]:
    """Compute mean, median, p95 (the least wait that 95 % do not pass) and the longest."""
    if not waits:
        return {"mean": 0.0, "median": 0.0, "p95": 0.0, "most": 0.0}
    ranked = sorted(waits)
    p95 = ranked[-(-95 * len(ranked) // 100) - 1]
    found = {"mean": fmean(ranked), "median": median(ranked), "p95": p95, "most": ranked[-1]}
    return {name: round(value, 1) for name, value in found.items()}


def average_steps(times: Sequence[float], values: Sequence[float], edges: "FloatArray") -> "FloatArray":
    """Average a step function, which is 0 before its first time, between edges."""
    at = np.array([edges[0], *times, max(edges[-1], times[-1] if times else edges[-1])], dtype=np.float64)
    at[0] = min(at[0], at[1])
    steps = np.array([0.0, *values], dtype=np.float64)
    area = np.concatenate(([0.0], np.cumsum(steps * np.diff(at))))
    result: FloatArray = np.diff(np.interp(edges, at, area)) / np.diff(edges)
    return result


def _compute_asked(replay: Replay, edges: "FloatArray") -> "FloatArray":
    """Compute the cards that would be in use if no pod ever waited, as the mean between edges."""
    changes: list[tuple[float, int]] = []
    for at, runs, pod in replay.arrivals:
        if pod.requested_milli:
            changes.append((at, pod.requested_milli))
            if runs is not None:
                changes.append((at + runs, -pod.requested_milli))
    changes.sort()
    now = np.cumsum([amount for _, amount in changes]) / CARD
    return average_steps([at for at, _ in changes], now.tolist(), edges)
