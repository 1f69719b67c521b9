"""Results of packing runs: plain values for JSON, and a text of a few tables for people."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from scheduler_plugin.simulator.bound import compute_unavoidable_waste
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.packing import PackingOutcome

Run = dict[str, Any]
"""A run, ready for JSON; see `make_run_result`."""

_LEAST_SHOWN: Final = 0.005


def make_run_result(outcome: PackingOutcome, cluster: SimulatedCluster, split: dict[str, float]) -> Run:
    """Write a run down.

    Returns:
        A mapping with these keys:

        - `pods`, `placed`, `failed {reason: n}`: counts.
        - `allocated_percent {"100": x, "130": y}`.
        - `whole_percent`: cards free as a whole when half of the GPUs had been asked for, or null.
        - `free_percent`, and of it `unavoidable_percent`: free in every placement of the same pods. In
          percent of all GPUs; 0 if the cards differ in size.
        - `fragmentation {cause: percent}`.
        - `curve [[arrived, allocated, fragmented or null]]`, `wall_s`.
    """
    whole = cluster.units
    free = 100.0 * (whole - int(cluster.arrays.gpu_used.sum())) / whole
    waste = 0.0
    if cluster.even:
        waste = compute_unavoidable_waste(
            cluster.card_units, cluster.gpus, outcome.placed_units, outcome.failed_units
        )
    return {
        "pods": outcome.pods,
        "placed": outcome.placed,
        "allocated_percent": {at: round(value, 6) for at, value in outcome.allocated_percent.items()},
        "whole_percent": None if outcome.whole_percent is None else round(outcome.whole_percent, 6),
        "failed": dict(sorted(outcome.failed.items())),
        "free_percent": round(free, 6),
        "unavoidable_percent": round(min(free, 100.0 * waste / whole), 6),
        "fragmentation": {cause: round(amount, 6) for cause, amount in split.items()},
        "curve": [
            [at.arrived, round(at.allocated, 6), None if at.fragmented is None else round(at.fragmented, 6)]
            for at in outcome.curve
        ],
        "wall_s": round(outcome.wall_s, 3),
    }


def group_by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run["label"], []).append(run)
    return groups


def average_runs(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Average the runs of each label.

    Returns:
        By label: `card_policy, runs, pods, allocated_percent, spread` (standard deviation over the seeds),
        `whole_percent, failed, free_percent, unavoidable_percent, fragmentation, wall_s`.
    """
    result: dict[str, dict[str, Any]] = {}
    for label, runs_of_label in group_by_label(runs).items():
        allocated = [run["allocated_percent"] for run in runs_of_label]
        result[label] = {
            "card_policy": runs_of_label[0]["card_policy"],
            "runs": len(runs_of_label),
            "pods": round(fmean(run["pods"] for run in runs_of_label), 1),
            "allocated_percent": average_by_key(allocated, 6),
            "spread": {at: round(pstdev(run[at] for run in allocated), 6) for at in _list_keys(allocated)},
            "whole_percent": average_known([run["whole_percent"] for run in runs_of_label], 6),
            "failed": _average_totals([run["failed"] for run in runs_of_label]),
            "free_percent": round(fmean(run["free_percent"] for run in runs_of_label), 6),
            "unavoidable_percent": round(fmean(run["unavoidable_percent"] for run in runs_of_label), 6),
            "fragmentation": average_by_key([run["fragmentation"] for run in runs_of_label], 6),
            "wall_s": round(fmean(run["wall_s"] for run in runs_of_label), 3),
        }
    return result


def average_known(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), digits) if known else None


def _list_keys(tables: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(key for table in tables for key in table))


def average_by_key(tables: Sequence[Mapping[str, float]], digits: int) -> dict[str, float]:
    """Average by key over the tables that have it."""
    return {
        key: round(fmean(table[key] for table in tables if key in table), digits)
        for key in _list_keys(tables)
    }


def _average_totals(tables: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Average by key over all tables, 0 where it is missing."""
    return {
        key: round(sum(t.get(key, 0) for t in tables) / len(tables), 1) for key in sorted(_list_keys(tables))
    }


def report_packing(means: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Write lines about the mean of each policy's runs."""
    arrived = list(dict.fromkeys(at for mean in means.values() for at in mean["allocated_percent"]))
    head = "".join(f"{f'at {at} %':>10}{'+-':>7}" for at in arrived)
    yield f"{'GPUs allocated, %':<20}{'cards by':<15}{head}{'at most':>10}{'runs':>6}{'s/run':>8}"
    for policy, mean in means.items():
        cells = "".join(
            f"{mean['allocated_percent'].get(at, float('nan')):>10.2f}{mean['spread'].get(at, 0.0):>7.2f}"
            for at in arrived
        )
        end = f"{100.0 - mean['unavoidable_percent']:>10.2f}{mean['runs']:>6}{mean['wall_s']:>8.2f}"
        yield f"{policy:<20}{mean['card_policy']:<15}{cells}{end}"
    for policy, mean in means.items():
        yield ""
        free, lost = mean["free_percent"], mean["unavoidable_percent"]
        yield f"{policy}: {free:.2f} % of the GPUs are free at the end"
        if free:
            yield f"  of that, {100 * lost / free:.0f} % could be used by no placement of the same pods"
        if mean["whole_percent"] is not None:
            yield f"  cards whole when half of the GPUs had been asked for: {mean['whole_percent']:.1f} %"
        yield f"  pods dropped: {_format_list(mean['failed'], '.1f', '')}"
        yield f"  free GPU as a typical pod sees it: {_format_list(mean['fragmentation'], '.2f', ' %')}"


def _format_list(amounts: dict[str, float], form: str, unit: str) -> str:
    ranked = sorted(amounts.items(), key=lambda item: -item[1])
    shown = [
        (name, f"{amount:{form}}".removesuffix(".0")) for name, amount in ranked if amount >= _LEAST_SHOWN
    ]
    return ", ".join(f"{name} {amount}{unit}" for name, amount in shown) or "none"
