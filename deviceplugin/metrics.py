"""Metrics of the node daemon, read from the ledger and the counters at the moment Prometheus asks."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from allocator.names import MIB
from kubeapi.metrics import make_process_registry

SLICE: Final = 50
"""Samples that are written in one go: an Allocate waits for no more than these, some 0.3 ms."""

Counts = Mapping[str, tuple[str, Callable[[], int]]]
"""Counters that others keep, by metric name (without `_total`) with their help."""

Gauges = Mapping[str, tuple[str, Callable[[], float]]]
"""Gauges that other parts keep, likewise; a boolean is exported as 1 or 0."""


@dataclass(frozen=True, slots=True)
class CardState:
    """A card at the moment of asking; units where the name does not say otherwise.

    Attributes:
        used: published as used.
        promised: held by containers.
        beyond: used by others, or by pods beyond their promise.
        compute: percent of its compute published as given away.
        compute_limit: percent of its compute that containers are given in all.
        measured_mib: MiB that the driver counts as used; None if it was not measured yet.
        residue_mib: MiB among those that no process uses and that do not count; None if there can be none.
        memory_errors: what the card counts of its memory's errors, by kind.
    """

    uuid: str
    model: str
    size: int
    used: int
    promised: int
    beyond: int
    compute: int
    compute_limit: int
    measured_mib: int | None
    healthy: bool
    cordoned: bool
    memory_errors: Mapping[str, int]
    residue_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What is counted by card or resource of a node, at the moment of asking.

    Attributes:
        foreign_gpus: what another device plugin offers, by resource.
        faults: numbered errors of the driver so far, by UUID and code.
        health_changes: how often a card became healthy (True) or unhealthy, by UUID.
    """

    foreign_gpus: Mapping[str, int]
    faults: Mapping[tuple[str, int], int]
    health_changes: Mapping[tuple[str, bool], int]


class Metrics:
    """The daemon's metrics; those of other parts are read at scrape time."""

    def __init__(self) -> None:
        self._registry = make_process_registry()
        self._requests = Counter(
            "gpupack_node_kubelet_requests",
            "Requests of the kubelet by method and gRPC status.",
            ["method", "code"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpupack_node_kubelet_request_duration_seconds",
            "Duration of the kubelet's requests.",
            ["method"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10),
            registry=self._registry,
        )
        self._before: list[Callable[[], Awaitable[None]]] = []

    def add_collector(
        self, collector: Collector, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Read from a place, after calling `before` where it is given."""
        self._registry.register(collector)
        if before is not None:
            self._before.append(before)

    def count_call(self, method: str, seconds: float, code: str) -> None:
        self._requests.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)

    async def write_text(self) -> bytes:
        """Write everything in Prometheus' text format, with turns for others on the way."""
        for before in self._before:
            await before()
        written, samples = [], 0
        for metric in self._registry.collect():
            for count, text in _slices(metric):
                written.append(text)
                samples += count
                if samples >= SLICE:
                    samples = 0
                    await asyncio.sleep(0)
        return b"".join(written)


def _slices(metric: Metric) -> Iterator[tuple[int, bytes]]:
    """Write one metric, `SLICE` samples at a time, with their number; the first slice has the header."""
    samples, head = iter(metric.samples), True
    while (few := list(islice(samples, SLICE))) or head:
        part = copy(metric)
        part.samples = few
        text = generate_latest(_MetricCollector(part))
        yield len(few), text if head else text.split(b"\n", 2)[2]
        head = False


@dataclass(frozen=True, slots=True)
class _MetricCollector(Collector):
    metric: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    """Makes metrics of the cards, the node and the counters.

    Attributes:
        fault: what the vendor calls its numbered errors.
    """

    unit_mib: int
    cards: Callable[[], Iterable[CardState]]
    node: Callable[[], NodeState]
    gauges: Gauges
    counts: Counts
    fault: str

    def collect(self) -> Iterator[Metric]:
        cards = list(self.cards())
        yield from self._collect_cards(cards)
        for name, (help_text, number) in self.gauges.items():
            yield GaugeMetricFamily(f"gpupack_node_{name}", help_text, value=number())
        yield from self._collect_node({card.uuid: card.model for card in cards})
        for name, (help_text, count) in self.counts.items():
            yield CounterMetricFamily(f"gpupack_node_{name}", help_text, value=count())

    def _collect_cards(self, cards: Iterable[CardState]) -> Iterator[Metric]:
        unit_bytes = self.unit_mib * MIB
        for name, help_text, value in (
            ("size_bytes", "Memory that pods can get.", lambda c: c.size * unit_bytes),
            ("used_bytes", "Memory published as used.", lambda c: c.used * unit_bytes),
            ("promised_bytes", "Memory that containers hold.", lambda c: c.promised * unit_bytes),
            (
                "beyond_bytes",
                "Memory used by others or beyond promise.",
                lambda c: c.beyond * unit_bytes,
            ),
            ("compute_given_percent", "Percent of the compute published as given away.", lambda c: c.compute),
            (
                "compute_limit_percent",
                "Percent of the compute that containers are given in all.",
                lambda c: c.compute_limit,
            ),
            ("healthy", "1 where the card is fit for pods.", lambda c: int(c.healthy)),
            ("cordoned", "1 where people keep the card free.", lambda c: int(c.cordoned)),
        ):
            family = GaugeMetricFamily(f"gpupack_card_{name}", help_text, labels=["uuid", "model"])
            for card in cards:
                family.add_metric([card.uuid, card.model], value(card))
            yield family
        measured = GaugeMetricFamily(
            "gpupack_card_measured_bytes", "Memory in use by the driver's count.", labels=["uuid", "model"]
        )
        for card in cards:
            if card.measured_mib is not None:
                measured.add_metric([card.uuid, card.model], card.measured_mib * MIB)
        yield measured
        residue = GaugeMetricFamily(
            "gpupack_card_residue_bytes",
            "Memory that no process uses and that does not count, on cards whose memory the system manages.",
            labels=["uuid", "model"],
        )
        for card in cards:
            if card.residue_mib is not None:
                residue.add_metric([card.uuid, card.model], card.residue_mib * MIB)
        yield residue
        errors = GaugeMetricFamily(
            "gpupack_card_memory_errors",
            "What the card counts of its memory's errors, by kind.",
            labels=["uuid", "model", "kind"],
        )
        for card in cards:
            for kind, count in card.memory_errors.items():
                errors.add_metric([card.uuid, card.model, kind], count)
        yield errors

    def _collect_node(self, models: Mapping[str, str]) -> Iterator[Metric]:
        node = self.node()
        changes = CounterMetricFamily(
            "gpupack_card_health_changes",
            "How often a card became healthy or unhealthy.",
            labels=["uuid", "model", "to"],
        )
        for (uuid, healthy), count in sorted(node.health_changes.items()):
            to = "healthy" if healthy else "unhealthy"
            changes.add_metric([uuid, models.get(uuid, ""), to], count)
        yield changes
        foreign = GaugeMetricFamily(
            "gpupack_node_foreign_gpus",
            "GPUs that another device plugin offers on this node; it may give out the same cards.",
            labels=["resource"],
        )
        # A resource that is offered no more is not told any more: an alert on `> 0` ends.
        for resource, count in node.foreign_gpus.items():
            foreign.add_metric([resource], count)
        yield foreign
        faults = CounterMetricFamily(
            f"gpupack_card_{self.fault.lower()}_errors",
            f"{self.fault} errors by code.",
            labels=["uuid", "model", "code"],
        )
        for (uuid, code), count in sorted(node.faults.items()):
            faults.add_metric([uuid, models.get(uuid, ""), str(code)], count)
        yield faults
