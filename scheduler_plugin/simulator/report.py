"""Report of packing runs for people: a text of a few tables."""

from collections.abc import Iterator
from typing import Any, Final

_LEAST_SHOWN: Final = 0.005


def report_packing(means: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Write lines about the mean of each policy's runs.

    Args:
        means: Result of `average_runs`.
    """
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
