"""Pictures of replays through queues."""

from pathlib import Path
from typing import Any

from scheduler_plugin.simulator.plot import average_over_time, draw_lines, load_matplotlib, save_figure


def plot_queues(everything: dict[str, Any], folder: str) -> list[Path]:
    """Draw `queue-fairness.png`, Jain's index over time, and `queue-waiting.png`, the p95 wait of each queue.

    Args:
        everything: `{"runs": [...], "mean": {label: ...}}`.
        folder: Made if it is not there.

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
