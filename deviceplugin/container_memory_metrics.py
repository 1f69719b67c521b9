"""Metrics of containers' memory: real use by pod, also where many share one card."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from allocator.names import MIB
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.monitoring.container_use import ContainerUse

LABELS = ("namespace", "pod", "container", "uuid")


@dataclass(frozen=True, slots=True)
class ContainerMemoryMetrics(Collector):
    """Reads the containers and the cards at the moment of asking.

    Attributes:
        held: how the cards are held, by UUID.
        forbidden: whether the driver would hold a card's containers and this daemon lacks the right, by UUID.
    """

    rows: Callable[[], Iterable[ContainerUse]]
    over: Callable[[ContainerUse], bool]
    held: Callable[[], Mapping[str, Enforcement]]
    forbidden: Callable[[], Mapping[str, bool]] = dict

    def collect(self) -> Iterator[Metric]:
        rows = list(self.rows())
        for name, help_text, value in (
            ("promised_bytes", "Memory that a container was given on a card.", _promised_bytes),
            ("used_bytes", "Memory that it uses there; missing where nobody can tell.", _used_bytes),
            (
                "limit_bytes",
                "Its limit there, as it was read back; missing where there is none.",
                _limit_bytes,
            ),
            (
                "over_use_bytes",
                "Memory used beyond the promise where that is not tolerated, else 0.",
                self._over_use_bytes,
            ),
            (
                "compute_percent",
                "Percent of the card's compute that it asks for; missing where it asks for none.",
                _asked_compute,
            ),
            (
                "compute_limited",
                "1 if MPS limits it to that, 0 if nothing does; missing where it asks for none.",
                _limited_compute,
            ),
            (
                "compute_used_percent",
                "Percent of the time in which it kept the card busy; missing where nobody can tell.",
                _used_compute,
            ),
        ):
            family = GaugeMetricFamily(f"gpupack_container_{name}", help_text, labels=LABELS)
            family.samples = _samples(family.name, rows, value)  # type: ignore[assignment]  # is read once
            yield family
        cards = GaugeMetricFamily(
            "gpupack_card_memory_held",
            "1 for what holds containers to their shares of a card: driver, mps, accounted.",
            labels=["uuid", "by"],
        )
        for uuid, by in self.held().items():
            cards.add_metric([uuid, by.value], 1)
        yield cards
        denied = GaugeMetricFamily(
            "gpupack_card_memory_limits_forbidden",
            "1 where the driver would limit containers' memory and the daemon lacks the right to let it.",
            labels=["uuid"],
        )
        for uuid, forbidden in self.forbidden().items():
            denied.add_metric([uuid], int(forbidden))
        yield denied

    def _over_use_bytes(self, row: ContainerUse) -> int:
        return row.beyond_mib * MIB if self.over(row) else 0


def _samples(
    name: str, rows: Iterable[ContainerUse], read: Callable[[ContainerUse], int | None]
) -> Iterator[Sample]:
    for row in rows:
        value = read(row)
        if value is not None:
            labels = {
                "namespace": row.namespace,
                "pod": row.pod,
                "container": row.container,
                "uuid": row.uuid,
            }
            yield Sample(name, labels, value)


def _promised_bytes(row: ContainerUse) -> int:
    return row.promised_mib * MIB


def _used_bytes(row: ContainerUse) -> int | None:
    return None if row.used_mib is None else row.used_mib * MIB


def _limit_bytes(row: ContainerUse) -> int | None:
    return None if row.limit_mib is None else row.limit_mib * MIB


def _asked_compute(row: ContainerUse) -> int | None:
    return row.compute or None


def _limited_compute(row: ContainerUse) -> int | None:
    return int(row.compute_enforcement is Enforcement.MPS) if row.compute else None


def _used_compute(row: ContainerUse) -> int | None:
    return row.used_compute
