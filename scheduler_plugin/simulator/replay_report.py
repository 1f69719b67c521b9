"""Report of replays for people: a text of a few tables."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any, Final

_UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def report_replays(everything: dict[str, Any]) -> Iterator[str]:
    """Write lines about the mean of each policy's replays."""
    runs, means = everything["runs"], everything["mean"]
    nodes, gpus, pods = (fmean(run[name] for run in runs) for name in ("nodes", "gpus", "pods"))
    load, copies = (fmean(run[name] for run in runs) for name in ("load", "copies"))
    yield f"{pods:.0f} pods, {copies:.2f} times the list, come and end on {nodes:.0f} nodes, {gpus:.0f} GPUs"
    how = "through the queues" if "queues" in runs[0] else "first come, first served, with backfill"
    yield f"they ask for {100 * load:.1f} % of the GPUs at a time; {how}"
    yield "counted are pods with a GPU from when a tenth of all has come until the last comes"
    yield "wait, %: GPUs waited for at a time, of the cluster's; pods: that wait at a time; most: of them"
    yield ""
    columns = (
        "allocated, %",
        "+-",
        "wait, %",
        "pods",
        "most",
        "had to wait",
        "mean wait",
        "median",
        "p95",
        "s/run",
    )
    head = "".join(f"{name:>{max(9, len(name) + 2)}}" for name in columns)
    wide = max(24, *(len(label) + 2 for label in means))
    yield f"{'policy':<{wide}}{'cards by':<15}{head}"
    for label, mean in means.items():
        waits = mean["wait_s"]
        cells = (
            f"{mean['allocated_percent']:.2f}",
            f"{mean['spread']:.2f}",
            f"{mean['waiting_gpus_percent']:.1f}",
            f"{mean['waiting']:.1f}",
            f"{mean['waiting_most']:.0f}",
            f"{mean['turned_away_percent']:.1f} %",
            *(format_duration(waits[name]) for name in ("mean", "median", "p95")),
            f"{mean['wall_s']:.1f}",
        )
        row = "".join(f"{cell:>{max(9, len(name) + 2)}}" for name, cell in zip(columns, cells, strict=True))
        yield f"{label:<{wide}}{mean['card_policy']:<15}{row}"
    yield ""
    for label, mean in means.items():
        sizes = ", ".join(f"{size} {format_duration(wait)}" for size, wait in mean["wait_mean_s"].items())
        yield f"{label}: mean wait for {sizes or 'no pod'}"
        rest = [
            f"{mean[name]:.1f} pods {what}"
            for name, what in (
                ("never_placed", "never found a place"),
                (
                    "impossible",
                    "fit on no node of this cluster even when it is empty, and are not counted above",
                ),
            )
            if mean[name]
        ]
        if rest:
            yield f"  {'; '.join(rest)}"


def format_duration(seconds: float) -> str:
    """Write seconds in the largest unit that leaves at least one of it."""
    for unit_s, name in _UNITS:
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {name}"
    return f"{seconds:.0f} s"
