"""Interface to a source of cards: the boundary to NVML and to simulated cards.

Everything behind the Protocol may block (a driver call can take seconds), so the daemon calls it in a thread.
Trouble with one card is data (`error`), so that it cannot take the other cards down. Only trouble with the
whole source (no driver) is an exception, `GpuError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from deviceplugin.gpus.api.links import Links
from deviceplugin.gpus.api.memory_limits import MemoryLimits
from deviceplugin.gpus.api.telemetry import NO_TELEMETRY, CardTelemetry
from deviceplugin.gpus.api.vendor import Vendor

GONE_S: Final = 120.0
"""A driver that cannot be started for so many seconds does not come back to this process. To load it again
takes seconds, to install another one a minute or two."""

ENDS: Final = "this process ends, and its container begins anew with the node's driver"


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A card, or an instance of a card that is partitioned (MIG).

    Attributes:
        index: position in the node's word order, 0.. without gaps.
        uuid: `GPU-...` or `MIG-...`; stands in device IDs and in containers' environments.
        model: the driver's name of the card.
        total_mib: memory of the card in MiB, the driver's reserved part included; 0 when it cannot be read.
        reserved_mib: MiB that the driver keeps for itself; 0 if an old driver does not say.
        numa: NUMA node, None when unknown.
        bus_id: PCI address `0000:1a:00.0`; empty when unknown.
        minor: N of `/dev/nvidiaN`; -1 when unknown.
        error: why the card cannot be used at all (it is lost, its memory cannot be read), None when it can.
        parent: UUID of the card that this is an instance of, None for a whole card.
        memory_node: NUMA node of the system that the card's own memory is, None if the driver manages it.
        gpu_instance: the driver's number of the GPU instance that this is, None for a whole card or where the
            driver does not tell.
        compute_instance: its number of the compute instance in that, likewise.
        architecture: the driver's name of the card's generation, `hopper`; empty when unknown.
        links: UUIDs of other cards of the node that it is linked with, and with how many links each.
    """

    index: int
    uuid: str
    model: str
    total_mib: int
    reserved_mib: int
    numa: int | None
    bus_id: str
    minor: int
    error: str | None = None
    parent: str | None = None
    links: Links = ()
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_node: int | None = None
    architecture: str = ""

    @property
    def schedulable_mib(self) -> int:
        """MiB that containers can use, without what the driver reserves."""
        return max(0, self.total_mib - self.reserved_mib)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a card.

    Attributes:
        pid: in the host's pid namespace.
        compute_percent: percent of the time since the last measurement in which its kernels ran; None if the
            driver does not say.
    """

    pid: int
    used_mib: int | None
    compute_percent: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A measurement of one card.

    Attributes:
        used_mib: MiB in use, without the reserved part where the driver tells it apart.
        processes: who uses it, one entry a pid; None when processes cannot be told.
        error: why the card could not be measured, None when it could; then used_mib means nothing.
        memory_errors: what the card counts of its memory's errors, by kind, for the metrics.
        keeps_pages: the operating system manages the card's memory. So used_mib may have pages that no
            process uses: those of processes that ended, and cached files.
        telemetry: what the card does; for an instance, what its card does.
    """

    uuid: str
    used_mib: int
    processes: tuple[GpuProcess, ...] | None
    error: str | None = None
    memory_errors: Mapping[str, int] = field(default_factory=dict)
    keeps_pages: bool = False
    telemetry: CardTelemetry = NO_TELEMETRY


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """News of a card.

    Attributes:
        healthy: False with the reason, or True when its source knows that it is mended. None for a fault
            that says nothing of the card (the application's).
        code: number of the fault that this is (`Vendor.fault`), None if it is none.
    """

    uuid: str
    healthy: bool | None
    reason: str
    code: int | None = None
    count: int = 1


def sysfs_bus_id(text: str) -> str:
    """Write a PCI address as the kernel does, `0000:1a:00.0`; NVML's domain has 8 digits, and capitals."""
    text = text.lower()
    return text[4:] if len(text) == len("00000000:1a:00.0") and text.startswith("0000") else text


class GpuSource(Protocol):
    """Lists, measures and watches cards. All methods may block; open and close belong to one owner.

    Between open and close, cards, sample and events may be called from different threads.
    """

    @property
    def vendor(self) -> Vendor:
        """Vendor of the cards; never changes."""

    @property
    def limits(self) -> MemoryLimits | None:
        """Adapter that limits the memory of containers; None if the driver cannot."""

    def open(self) -> None:
        """Start the source and find the cards.

        Raises:
            GpuError: the source as a whole cannot work; the message says what to do.
        """

    def close(self) -> None:
        """Stop the source; a waiting `events` returns. Closing twice is allowed."""

    def driver_version(self) -> str:
        """Name the version of the driver of an open source; `of unknown version` if it does not say.

        It is what the driver said last: a driver that hangs keeps nobody who asks.
        """

    def cards(self) -> Sequence[GpuCard]:
        """Return the cards in word order, as of the newest sample; before that as they were found.

        A sample may change the list. Instances come and go when a card is partitioned anew. A card that could
        not be read so far is listed with its `error` and without memory, and then appears as it is. A card
        that is lost stays in the list as it was, and its samples fail, until it is back.
        """

    def sample(self) -> Sequence[GpuSample]:
        """Measure every card, in the order of `cards`; a card that fails has its `error` set.

        Raises:
            DriverGoneError: the driver does not come back to this process.
            GpuError: the cards cannot be measured now.
        """

    def detach(self) -> None:
        """Let the driver go: until the next sample this process has nothing of it open.

        NVIDIA's refuses a reset, and a change of MIG mode, while any process has.
        """

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        """Wait up to `timeout_s` seconds for news of the cards' health; empty when there was none.

        An empty answer before that means that a sample is worth taking now.
        """
