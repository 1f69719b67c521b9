"""What Prometheus gets of containers' memory: real use by pod, also where many share one card."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.gpus.limits import Enforcement
from deviceplugin.node.memory import ContainerMemory

MIB_BYTES = 1 << 20
LABELS = ("namespace", "pod", "container", "uuid")


@dataclass(frozen=True, slots=True)
class MemoryMetrics(Collector):
    """Reads the containers and the cards at the moment of asking.

    Attributes:
        rows: what containers use.
        over: whether one uses more than is tolerated.
        held: how the cards are held, by UUID.
    """

    rows: Callable[[], Iterable[ContainerMemory]]
    over: Callable[[ContainerMemory], bool]
    held: Callable[[], Mapping[str, Enforcement]]

    def collect(self) -> Iterator[Metric]:
        """Write one sample for each container on each card."""
        promised = _family("promised_bytes", "Memory that a container was given on a card.")
        used = _family("used_bytes", "Memory that it uses there; missing where nobody can tell.")
        limit = _family("limit_bytes", "Its limit there, as it was read back; missing where there is none.")
        beyond = _family(
            "over_use_bytes", "Memory used beyond the promise where that is not tolerated, else 0."
        )
        for row in self.rows():
            labels = [row.namespace, row.pod, row.container, row.uuid]
            promised.add_metric(labels, row.promised_mib * MIB_BYTES)
            beyond.add_metric(labels, row.beyond_mib * MIB_BYTES if self.over(row) else 0)
            if row.used_mib is not None:
                used.add_metric(labels, row.used_mib * MIB_BYTES)
            if row.limit_mib is not None:
                limit.add_metric(labels, row.limit_mib * MIB_BYTES)
        yield from (promised, used, limit, beyond)
        cards = GaugeMetricFamily(
            "gpupack_card_memory_held",
            "1 for what holds containers to their shares of a card: driver, mps, accounted.",
            labels=["uuid", "by"],
        )
        for uuid, by in self.held().items():
            cards.add_metric([uuid, by.value], 1)
        yield cards


def _family(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"gpupack_container_{name}", help_text, labels=LABELS)
