"""What Prometheus gets: read from the ledger and the counters at the moment it asks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MIB_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CardState:
    """One card at the moment of asking; units where the name does not say otherwise.

    Attributes:
        uuid: of the card.
        model: of the card.
        size: all units.
        used: published as used.
        promised: held by containers.
        reserved: kept for pods on their way.
        beyond: used by others, or by pods beyond their promise.
        measured_mib: MiB that the driver counts as used; None where it was not measured yet.
        healthy: fit for pods.
        cordoned: kept free by people.
    """

    uuid: str
    model: str
    size: int
    used: int
    promised: int
    reserved: int
    beyond: int
    measured_mib: int | None
    healthy: bool
    cordoned: bool


class Metrics:
    """The daemon's metrics.

    Args:
        unit_mib: MiB a unit.
        cards: the cards as they are.
        counts: counters that others keep, by metric name (without `_total`) with their help.
    """

    def __init__(
        self,
        unit_mib: int,
        cards: Callable[[], Iterable[CardState]],
        counts: Mapping[str, tuple[str, Callable[[], int]]],
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Cards(unit_mib, cards, counts))
        self._calls = Counter(
            "gpupack_node_kubelet_calls",
            "Calls of the kubelet by method and gRPC status.",
            ["method", "code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "gpupack_node_kubelet_call_seconds",
            "Duration of the kubelet's calls.",
            ["method"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10),
            registry=self.registry,
        )

    def call(self, method: str, seconds: float, code: str) -> None:
        """Count one call of the kubelet."""
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)

    def text(self) -> bytes:
        """Write everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _Cards(Collector):
    def __init__(
        self,
        unit_mib: int,
        cards: Callable[[], Iterable[CardState]],
        counts: Mapping[str, tuple[str, Callable[[], int]]],
    ) -> None:
        self._unit_bytes = unit_mib * MIB_BYTES
        self._cards = cards
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Read the cards and the counters."""
        cards = list(self._cards())
        for name, help_text, value in (
            ("size_bytes", "Memory that pods can get.", lambda c: c.size * self._unit_bytes),
            ("used_bytes", "Memory published as used.", lambda c: c.used * self._unit_bytes),
            ("promised_bytes", "Memory that containers hold.", lambda c: c.promised * self._unit_bytes),
            ("reserved_bytes", "Memory kept for bound pods.", lambda c: c.reserved * self._unit_bytes),
            (
                "beyond_bytes",
                "Memory used by others or beyond promise.",
                lambda c: c.beyond * self._unit_bytes,
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
                measured.add_metric([card.uuid, card.model], card.measured_mib * MIB_BYTES)
        yield measured
        for name, (help_text, count) in self._counts.items():
            yield CounterMetricFamily(f"gpupack_node_{name}", help_text, value=count())
