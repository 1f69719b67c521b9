"""Curves as PNG files; needs matplotlib, which is an extra."""

from pathlib import Path
from statistics import fmean
from typing import Any, Final

from scheduler_plugin.errors import SettingsError
from scheduler_plugin.simulator.results import Run

FILES: Final = {"allocation": 1, "fragmentation": 2}
"""PNG files by name, and the column of a run's curve that each shows."""

_LABELS: Final = {
    "allocation": "GPUs allocated, % of the cluster",
    "fragmentation": "free GPU that a typical pod cannot use, % of the cluster",
}


def library() -> Any:
    """Load matplotlib.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra, loaded where it is used

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            "plots need matplotlib, which is not installed: pip install 'gpupack[plot]'"
        ) from error
    return plt


def plot(runs: list[Run], folder: str) -> list[Path]:
    """Draw one curve a policy, the mean of its seeds, into a PNG file for each of `FILES`.

    Args:
        runs: Of all policies.
        folder: Made if it is not there.

    Returns:
        The files.

    Raises:
        SettingsError: matplotlib is missing, or a file cannot be written.
    """
    pyplot = library()
    written = []
    for name, column in FILES.items():
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for policy, points in curves(runs, column).items():
            axes.plot([x for x, _ in points], [y for _, y in points], label=policy)
        axes.set_xlabel("GPUs asked for by the pods that have arrived, % of the cluster")
        axes.set_ylabel(_LABELS[name])
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        path = Path(folder) / f"{name}.png"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120, bbox_inches="tight")
        except OSError as error:
            raise SettingsError(f"plot {path}: {error}") from error
        finally:
            pyplot.close(figure)
        written.append(path)
    return written


def curves(runs: list[Run], column: int) -> dict[str, list[tuple[float, float]]]:
    """Mean curve of each policy over the whole percents that all its runs have reached."""
    result: dict[str, list[tuple[float, float]]] = {}
    for policy in dict.fromkeys(run["policy"] for run in runs):
        tables = [
            {
                point[0]: point[column]
                for point in run["curve"]
                if point[column] is not None and point[0] % 1 == 0
            }
            for run in runs
            if run["policy"] == policy
        ]
        shared = sorted(set.intersection(*(set(table) for table in tables)))
        result[policy] = [(at, fmean(table[at] for table in tables)) for at in shared]
    return result
