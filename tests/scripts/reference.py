"""Writes the tables of the reference and of docs/ask.md that the code itself can tell: `make reference`.

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of a page is written by hand,
and tests/unit/test_docs.py compares both with the code.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock

import click
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from deviceplugin.container_memory import ContainerMemoryService
from deviceplugin.container_memory_metrics import ContainerMemoryMetrics
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.telemetry import CardTelemetry
from deviceplugin.metrics import CardState, NodeState, StateCollector
from deviceplugin.metrics import Metrics as NodeMetrics
from deviceplugin.monitoring.container_use import ContainerUse
from deviceplugin.monitoring.telemetry import CardActivity, TelemetryCollector
from deviceplugin.status import DaemonStatus
from gpupack.autoscale.metrics import AutoscaleMetrics
from gpupack.cli.app import cli
from scheduler_plugin.binding.shared_nodes import SharedNodes
from scheduler_plugin.extender.metrics import ClusterMetrics
from scheduler_plugin.extender.metrics import Metrics as SchedulerMetrics
from scheduler_plugin.extender.unschedulable_pods import UnschedulablePods
from scheduler_plugin.queue.controller.metrics import QueueMetrics
from scheduler_plugin.scheduling.reasons import FilterReason
from tests.extender_world import World

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
REFERENCE: Final = (DOCS / "reference.md", *sorted((DOCS / "reference").glob("*.md")))
PAGES: Final = (*REFERENCE, DOCS / "ask.md")
BLOCK: Final = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands(command: click.Command = cli, path: str = "gpupack") -> str:
    context = click.Context(command, info_name=path, max_content_width=100)
    parts = []
    if command is not cli:
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        parts += [f"### `{usage}`\n\n{command.get_short_help_str(200)}\n\n{_options(command, context)}"]
    if isinstance(command, click.Group):
        parts += [commands(command.commands[name], f"{path} {name}") for name in sorted(command.commands)]
    return "\n".join(parts)


def _options(command: click.Command, context: click.Context) -> str:
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1] and parameter.name != "version":
            names, text = record
            rows.append((f"`{names}`", text))
    return _table(("option", "meaning"), rows)


def node_metrics() -> str:
    """The metrics of `gpupack node`."""
    metrics = NodeMetrics()
    card, node = (
        _filled(CardState, memory_errors={"x": 1}),
        _filled(NodeState, foreign_gpus={"r": 1}, faults={("x", 1): 1}, health_changes={("x", True): 1}),
    )
    status = MagicMock(
        memory=MagicMock(list_counters=lambda: ContainerMemoryService.list_counters(MagicMock()))
    )
    metrics.add_collector(
        StateCollector(
            1024,
            lambda: [card],
            lambda: node,
            DaemonStatus.list_gauges(status),
            DaemonStatus.list_counters(status),
            "XID",
        )
    )
    row = ContainerUse("u", "n", "p", "c", "x", 1, 1, 1, Enforcement.DRIVER, compute=1, used_compute=1)
    held, forbidden = {"x": Enforcement.DRIVER}, {"x": False}
    metrics.add_collector(
        ContainerMemoryMetrics(lambda: [row], lambda _: True, lambda: held, lambda: forbidden)
    )
    activity = CardActivity("x", "m", ("x",), _filled(CardTelemetry, throttle_reasons=()))
    metrics.add_collector(TelemetryCollector(lambda: [activity]))
    metrics.count_call("Allocate", 0.001, "OK")
    return _metrics(metrics._registry)


def scheduler_metrics() -> str:
    """The metrics of `gpupack scheduler`."""
    state = World().state
    events: Any = SimpleNamespace(written=0, limited=0, dropped=0)
    fresh: Any = SimpleNamespace(age_s=0.0, skipped={"nodes": 0, "pods": 0})
    metrics = SchedulerMetrics(ClusterMetrics(state, fresh, UnschedulablePods(state.pods), events))
    metrics.follow_preemptor(MagicMock())
    metrics.follow_retrier(MagicMock())
    metrics.follow_shared_nodes(SharedNodes(), lambda: 0.0)
    return _metrics(metrics.registry)


def queue_metrics() -> str:
    """The metrics of `gpupack queue`."""
    return _metrics(QueueMetrics().registry)


def autoscale_metrics() -> str:
    """The metrics of `gpupack autoscale`."""
    return _metrics(AutoscaleMetrics().registry)


def filter_reasons() -> str:
    rows = [
        (f"`{reason.json_name}`", reason.sentence.format(unit="the pod"), ", or ".join(reason.cures))
        for reason in FilterReason
    ]
    return _table(("`reason` in JSON", "meaning", "what helps"), rows)


def _filled(kind: Any, **given: Any) -> Any:
    """An instance with some value of the right type in every field."""
    values = {"str": "x", "bool": True, "Mapping": {}}
    return kind(
        **{
            each.name: given.get(
                each.name, next((v for t, v in values.items() if str(each.type).find(t) >= 0), 1)
            )
            for each in fields(kind)
        }
    )


def _metrics(registry: CollectorRegistry) -> str:
    rows = []
    for family in registry.collect():
        if not family.name.startswith(("process_", "python_")):
            name = family.name + ("_total" if family.type == "counter" else "")
            rows.append((f"`{name}`", family.type, _labels(family, registry), family.documentation))
    return _table(("metric", "type", "labels", "meaning"), sorted(rows))


def _labels(family: Metric, registry: CollectorRegistry) -> str:
    names = getattr(family, "_labelnames", None)
    if names is None:
        owner = registry._names_to_collectors.get(family.name)
        names = getattr(owner, "_labelnames", ())
    return ", ".join(f"`{name}`" for name in names)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |\n"

    return line(heads) + "|---" * len(heads) + "|\n" + "".join(line(row) for row in rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "commands": commands,
    "node-metrics": node_metrics,
    "scheduler-metrics": scheduler_metrics,
    "queue-metrics": queue_metrics,
    "autoscale-metrics": autoscale_metrics,
    "filter-reasons": filter_reasons,
}


def served_series() -> dict[str, set[str]]:
    """Every time series of the product by name, with its labels."""
    tables = (node_metrics(), scheduler_metrics(), queue_metrics())
    found: dict[str, set[str]] = {}
    for line in "".join(tables).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0].startswith("`gpupack_"):
            name, labels = cells[0].strip("` "), set(re.findall(r"`(\w+)`", cells[2]))
            suffixes = ("_bucket", "_count", "_sum") if cells[1] == "histogram" else ("",)
            for suffix in suffixes:
                found[name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


def generated(page: str) -> str:
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[3]}", page)


def names_of(page: str, heading: str) -> Iterator[str]:
    """The names in the first column of the tables under a heading, without labels in braces."""
    section = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                yield name.split("{")[0]


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text(encoding="utf-8")), encoding="utf-8")
