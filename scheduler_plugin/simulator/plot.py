"""Pictures of runs as PNG files; needs matplotlib, which is an extra."""

from pathlib import Path
from statistics import fmean
from typing import Any, Final

from scheduler_plugin.errors import SettingsError
from scheduler_plugin.simulator.replay_results import SERIES
from scheduler_plugin.simulator.results import Run, group_by_label

FILES: Final = {"allocation": 1, "fragmentation": 2}
"""PNG files by name, and the column of a run's curve that each shows."""

REPLAY_FILES: Final = {
    "replay-allocation": ("allocated_percent", "GPUs allocated, % of the cluster"),
    "replay-waiting": ("waiting", "pods that wait"),
    "replay-refused": ("turned_away", "pods that found no place when they came"),
}
"""PNG files of a replay by name: the column of its series that each shows, and what it is called."""

_LABELS: Final = {
    "allocation": "GPUs allocated, % of the cluster",
    "fragmentation": "free GPU that a typical pod cannot use, % of the cluster",
}


def load_matplotlib() -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra, loaded where it is used

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            "plots need matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return plt


def plot_packing(runs: list[Run], folder: str) -> list[Path]:
    """Draw one curve a policy, the mean of its seeds, into a PNG file for each of `FILES`.

    Raises:
        SettingsError: matplotlib is missing, or a file cannot be written.
    """
    load_matplotlib()
    arrived = "GPUs asked for by the pods that have arrived, % of the cluster"
    return [
        draw_lines(Path(folder) / f"{name}.png", average_curves(runs, column), arrived, _LABELS[name])
        for name, column in FILES.items()
    ]


def plot_replay(runs: list[Run], folder: str) -> list[Path]:
    """Do the same for replays: `REPLAY_FILES`, over time."""
    load_matplotlib()
    written = []
    for name, (column, label) in REPLAY_FILES.items():
        lines = average_over_time(runs, column)
        if name == "replay-allocation":
            lines = {"asked for": average_over_time(runs, "asked_percent")[runs[0]["label"]], **lines}
        days = "days from when a tenth of the pods has come"
        written.append(draw_lines(Path(folder) / f"{name}.png", lines, days, label))
    return written


def draw_lines(path: Path, lines: dict[str, list[tuple[float, float]]], along: str, up: str) -> Path:
    pyplot = load_matplotlib()
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for label, points in lines.items():
        style = {"color": "black", "linewidth": 0.8, "linestyle": ":"} if label == "asked for" else {}
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
    axes.set_xlabel(along)
    axes.set_ylabel(up)
    return save_figure(figure, axes, path)


def save_figure(figure: Any, axes: Any, path: Path) -> Path:
    """Write a picture, with a legend where there are axes for it."""
    if axes is not None:
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, bbox_inches="tight")
    except OSError as error:
        raise SettingsError(f"plot {path}: {error}") from error
    finally:
        load_matplotlib().close(figure)
    return path


def average_over_time(
    runs: list[Run], column: str | int, series: str = "series"
) -> dict[str, list[tuple[float, float]]]:
    """Average a column of each policy's series, by day; points that a run does not know are left out."""
    at = column if isinstance(column, int) else SERIES.index(column)
    result = {}
    for label, runs_of_label in group_by_label(runs).items():
        tables = [run[series] for run in runs_of_label]
        result[label] = [
            (fmean(point[0] for point in points), fmean(point[at] for point in points))
            for points in zip(*tables, strict=True)
            if all(point[at] is not None for point in points)
        ]
    return result


def average_curves(runs: list[Run], column: int) -> dict[str, list[tuple[float, float]]]:
    """Average the curves of each policy over the whole percents that all its runs have reached."""
    result: dict[str, list[tuple[float, float]]] = {}
    for label, runs_of_label in group_by_label(runs).items():
        tables = [
            {
                point[0]: point[column]
                for point in run["curve"]
                if point[column] is not None and point[0] % 1 == 0
            }
            for run in runs_of_label
        ]
        shared = sorted(set.intersection(*(set(table) for table in tables)))
        result[label] = [(at, fmean(table[at] for table in tables)) for at in shared]
    return result


def plot_queues(everything: dict[str, Any], folder: str) -> list[Path]:
    """Draw `queue-fairness.png`, Jain's index over time, and `queue-waiting.png`, the p95 wait of each queue.

    Raises:
        SettingsError: matplotlib is missing, or a file cannot be written.
    """
    runs, means = everything["runs"], everything["mean"]
    days = "days from when a tenth of the pods has come"
    lines = average_over_time(runs, 1, series="fairness_series")
    return [
        draw_lines(Path(folder) / "queue-fairness.png", lines, days, "Jain's index of GPUs by weight"),
        _draw_bars(Path(folder) / "queue-waiting.png", means),
    ]


def _draw_bars(path: Path, means: dict[str, Any]) -> Path:
    figure, axes = load_matplotlib().subplots(figsize=(8, 5))
    width = 0.8 / len(means)
    for at, (label, mean) in enumerate(means.items()):
        names = list(mean["queues"])
        places = [place + at * width for place in range(len(names))]
        for key, alpha in (("p95", 0.4), ("median", 1.0)):
            hours = [mean["queues"][name]["wait_s"][key] / 3600 for name in names]
            axes.bar(places, hours, width, color=f"C{at}", alpha=alpha, label=f"{label}, {key}")
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names)
    axes.set_ylabel("hours that pods wait, median and p95")
    return save_figure(figure, axes, path)
