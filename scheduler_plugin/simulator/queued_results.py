"""Results of replays through queues: waits by queue, fairness over time."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.simulator.arrivals import Replay
from scheduler_plugin.simulator.queued_replay import QueuedReplayState
from scheduler_plugin.simulator.replay_report import format_duration
from scheduler_plugin.simulator.replay_results import (
    POINTS,
    average_steps,
    compute_wait_figures,
)
from scheduler_plugin.simulator.results import Run, average_by_key, average_known, group_by_label

if TYPE_CHECKING:
    from scheduler_plugin.cache.arrays import FloatArray


def compute_jain_index(shares: Sequence[float]) -> float:
    """Jain's index of shares: 1 where all are equal, 1 / n where one has everything; 1 for nobody."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def make_queue_result(replaying: QueuedReplayState, replay: Replay, config: QueueConfig) -> Run:
    """Write down what is not in `make_replay_result`.

    Returns:
        A mapping with these keys:

        - `queues {name: {weight, pods, never_started, wait_s}}`. A pod that never started counts with what it
          waited until the end.
        - `fairness`: the mean of Jain's index over the time that counts, of what each queue has by its
          weight. Over the queues that have or want something; None if nobody ever had anything.
        - `fairness_series [[day, index]]`: that index over time.
        - `evicted`: pods that went for lenders.
        - `reservations`: times that cards were reserved for a pod that waited long.
        - `quota_units`, `cluster_units`: what all nominal quotas and all cards add up to.
    """
    waits: dict[str, list[float]] = {name: [] for name in config.queues}
    pods, never = (dict.fromkeys(config.queues, 0) for _ in range(2))
    end_s = max([replay.until_s, *(share.at_s for share in replaying.shares[-1:])])
    for number, arrival in enumerate(replay.arrivals):
        if arrival.pod.cards and replay.from_s <= arrival.at_s <= replay.until_s:
            placed, name = replaying.record.placed_s[number], replaying.queues[number]
            pods[name] += 1
            if number in replaying.record.impossible:
                continue
            never[name] += placed is None
            waits[name].append((end_s if placed is None else placed) - arrival.at_s)
    edges = np.linspace(replay.from_s, max(replay.until_s, replay.from_s + 1), POINTS + 1)
    fair = _compute_fairness(replaying, config, edges)
    days = (edges[:-1] - replay.from_s) / 86_400.0
    return {
        "queues": {
            name: {
                "weight": form.weight,
                "pods": pods[name],
                "never_started": never[name],
                "wait_s": compute_wait_figures(waits[name]),
            }
            for name, form in config.queues.items()
        },
        "fairness": None if np.isnan(fair).all() else round(float(np.nanmean(fair)), 4),
        "evicted": replaying.evicted,
        "reservations": replaying.reservation_count,
        "quota_units": sum(form.nominal_quota or 0 for form in config.queues.values()),
        "cluster_units": replaying.cluster.units,
        "fairness_series": [
            [round(float(day), 4), None if np.isnan(value) else round(float(value), 4)]
            for day, value in zip(days, fair, strict=True)
        ],
    }


def _compute_fairness(replaying: QueuedReplayState, config: QueueConfig, edges: "FloatArray") -> "FloatArray":
    """Compute Jain's index between edges; nan where queues wanted something throughout and had nothing."""
    weights = [form.weight for form in config.queues.values()]
    values, defined = [], []
    for share in replaying.shares:
        active = [
            used / weight
            for used, waiting, weight in zip(share.used, share.waiting, weights, strict=True)
            if used or waiting
        ]
        defined.append(float(any(active) or not active))
        values.append(compute_jain_index(active) * defined[-1])
    times = [share.at_s for share in replaying.shares]
    part = average_steps(times, defined, edges)
    known: FloatArray = np.full(len(part), np.nan)
    return np.divide(average_steps(times, values, edges), part, out=known, where=part > 0)


def average_queue_runs(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Average the runs of each label: what `make_queue_result` has, but for the series."""
    result: dict[str, dict[str, Any]] = {}
    for label, runs_of_label in group_by_label(runs).items():
        result[label] = {
            "fairness": average_known([run["fairness"] for run in runs_of_label], 4),
            "evicted": round(fmean(run["evicted"] for run in runs_of_label), 1),
            "reservations": round(fmean(run["reservations"] for run in runs_of_label), 1),
            "quota_units": runs_of_label[0]["quota_units"],
            "cluster_units": round(fmean(run["cluster_units"] for run in runs_of_label), 1),
            "queues": {
                name: _average_queue([run["queues"][name] for run in runs_of_label])
                for name in runs_of_label[0]["queues"]
            },
        }
    return result


def _format_wait(queue: Mapping[str, Any], key: str) -> str:
    """Format a figure of a queue's waits; there is none if nobody started and nothing happened afterwards."""
    nobody = queue["never_started"] >= queue["pods"] and not queue["wait_s"]["most"]
    return "-" if nobody else format_duration(queue["wait_s"][key])


def _average_queue(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "weight": runs[0]["weight"],
        "pods": round(fmean(run["pods"] for run in runs), 1),
        "never_started": round(fmean(run["never_started"] for run in runs), 1),
        "wait_s": average_by_key([run["wait_s"] for run in runs], 1),
    }


def report_queues(means: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    head = f"{'weight':>8}{'pods':>9}{'not started':>13}{'median wait':>13}{'p95':>10}"
    yield f"{'policy':<40}{'queue':<20}{head}"
    for label, mean in means.items():
        for name, each in mean["queues"].items():
            median, p95 = (_format_wait(each, key) for key in ("median", "p95"))
            row = (
                f"{each['weight']:>8g}{each['pods']:>9.0f}{each['never_started']:>13.0f}{median:>13}{p95:>10}"
            )
            yield f"{label:<40}{name:<20}{row}"
    if any(each["never_started"] for mean in means.values() for each in mean["queues"].values()):
        yield "pods that never started count with what they waited until the end"
    for quota, units in dict.fromkeys(
        (each["quota_units"], each["cluster_units"]) for each in means.values()
    ):
        if quota:
            yield f"nominal quotas add up to {quota} units, the cluster's cards to {units:.0f}"
    yield ""
    for label, mean in means.items():
        busy = f"{mean['allocated_percent']:.2f} % of the GPUs allocated"
        more = f", {mean['evicted']:g} pods evicted for lenders" if mean["evicted"] else ""
        more += f", cards reserved {mean['reservations']:g} times" if mean["reservations"] else ""
        fairness = "-, for nobody had anything" if mean["fairness"] is None else f"{mean['fairness']:.3f}"
        yield f"{label}: {busy}, Jain's index {fairness}{more}"
