"""A driver of plain data behind the real pynvml, for tests of the NVML source."""
# ruff: noqa: N802 (the fake driver's methods are named like NVML's functions)

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_library import install

MIB = 1 << 20
ABSENT = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
XID_EVENTS = pynvml.nvmlEventTypeXidCriticalError
MIG_EVENTS = pynvml.nvmlEventMigConfigChange


def process(pid: int, used_mib: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if used_mib is None else used_mib * MIB)


@dataclass
class Card:
    """One card as a driver holds it; `errors` maps NVML functions to the codes that they fail with.

    `used_has_reserved`: what the v2 call tells as used has the reserved part in it. `free_mib` is what it
    tells as free, None for what is neither used nor reserved. `links` says
    what each NVLink leads to: a bus address, `switch`, `npu`, or None for a link that is down.
    """

    uuid: str
    total_mib: int = 81559
    reserved_mib: int = 480
    used_mib: int = 0
    used_has_reserved: bool = False
    free_mib: int | None = None
    bus_id: str = "00000000:1A:00.0"
    minor: int = 3
    numa_mask: int = 2
    memory_node: int | None = None
    coherent: bool = False
    compute: list[SimpleNamespace] = field(default_factory=list)
    graphics: list[SimpleNamespace] = field(default_factory=list)
    mps: list[SimpleNamespace] = field(default_factory=list)
    busy: list[tuple[int, int, int]] = field(default_factory=list)
    ecc: int = 0
    action: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    pages: tuple[int, int, int] = (0, 0, 0)
    utilization: tuple[int, int] = (0, 0)
    temperature_c: int = 30
    power_mw: int = 70_000
    clocks_mhz: tuple[int, int] = (345, 2619)
    clocks_reasons: int = 1
    mig: list["Card"] | None = None
    instance: int = 0
    compute_instance: int = 0
    links: list[str | None] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


class Driver:
    """Answers for pynvml's functions from plain data."""

    def __init__(self, mocker: MockerFixture) -> None:
        self.cards = [Card("GPU-a"), Card("GPU-b", minor=4, numa_mask=1)]
        self.errors: dict[str, int] = {}
        self.version = "580.65.06"
        self.opened = 0
        self.news: list[Event | int] = []
        self.registered: list[str] = []
        self.calls: list[str] = []
        self.mig_places: dict[str, int] = {}
        self.heard = threading.Event()
        self.missing = {f"nvmlDevice{name}MemoryLimits_v1" for name in ("Set", "Get")}
        install(mocker, self)

    def call(self, name: str, *args: Any) -> Any:
        """Answer a function of NVML, or fail as `errors` of its card, else of the driver, say."""
        self.calls.append(name)
        errors = args[0].errors if args and isinstance(args[0], Card) else self.errors
        if name in errors:
            raise pynvml.NVMLError(errors[name])
        versioned = name.endswith(("RunningProcesses_v2", "RunningProcesses_v3", "Wait_v2"))
        return getattr(self, name[:-3] if versioned else name)(*args)

    def Init(self) -> None:
        self.opened += 1

    def Shutdown(self) -> None:
        assert self.opened > 0
        self.opened -= 1

    def set_mig_mode(self, card: Card, instances: list[Card] | None) -> None:
        """Change it as another process would, which cannot while this one has the driver open."""
        if self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        card.mig = instances

    def SystemGetDriverVersion(self) -> str:
        return self.version

    def SystemGetNVMLVersion(self) -> str:
        return f"13.{self.version}"

    def EventSetFree(self, events: object) -> None: ...

    def EventSetCreate(self) -> object:
        return object()

    def EventSetWait(self, events: object, timeout_ms: int) -> "Event":
        if not self.news:
            self.heard.set()
            threading.Event().wait(0.005)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        news = self.news.pop(0)
        if isinstance(news, int):
            raise pynvml.NVMLError(news)
        return news

    def DeviceGetCount(self) -> int:
        return len(self.cards)

    def DeviceGetHandleByIndex(self, index: int) -> Card:
        card = self.cards[index]
        if "Handle" in card.errors:
            raise pynvml.NVMLError(card.errors["Handle"])
        return card

    def DeviceGetHandleByUUID(self, uuid: str) -> Card:
        for card in self.cards:
            for each in (card, *(card.mig or ())):
                if each.uuid == uuid:
                    return each
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def DeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def DeviceGetName(self, card: Card) -> str:
        return "NVIDIA H100 80GB HBM3"

    def DeviceGetMinorNumber(self, card: Card) -> int:
        return card.minor

    def DeviceGetPciInfo(self, card: Card) -> str:
        return card.bus_id

    def DeviceGetMemoryInfo(self, card: Card, *, reserved_counts: bool = True) -> dict[str, int]:
        # A byte less than whole MiB, as drivers have it too.
        reserved = max(card.reserved_mib * MIB - 1, 0)
        used = card.used_mib * MIB
        free = card.total_mib * MIB - used - reserved if card.free_mib is None else card.free_mib * MIB
        if reserved_counts:
            used += reserved
        return {"total": card.total_mib * MIB, "reserved": reserved, "used": used, "free": free}

    def DeviceGetMemoryInfo_v2(self, card: Card) -> dict[str, int]:
        return self.DeviceGetMemoryInfo(card, reserved_counts=card.used_has_reserved)

    def DeviceGetMemoryAffinity(self, card: Card, scope: int) -> int:
        return card.numa_mask

    def DeviceGetNumaNodeId(self, card: Card) -> int:
        if card.memory_node is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card.memory_node

    def DeviceGetAddressingMode(self, card: Card) -> int:
        ats, none = pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS, pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE
        return int(ats if card.coherent else none)

    def DeviceGetMigMode(self, card: Card) -> list[int]:
        return [int(card.mig is not None)] * 2

    def DeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    def DeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        # NVML numbers the places; a place without an instance is not found.
        for instance in card.mig or ():
            if self.mig_places.get(instance.uuid, instance.instance) == index:
                if "Handle" in instance.errors:
                    raise pynvml.NVMLError(instance.errors["Handle"])
                return instance
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def DeviceGetGpuInstanceId(self, card: Card) -> int:
        return card.instance

    def DeviceGetComputeInstanceId(self, card: Card) -> int:
        return card.compute_instance

    def DeviceRegisterEvents(self, card: Card, kinds: int, events: object) -> None:
        assert kinds in (XID_EVENTS | MIG_EVENTS, XID_EVENTS)
        self.registered.append(card.uuid)

    def DeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        return card.ecc

    def DeviceGetRemappedRows(self, card: Card) -> tuple[int, int, int, int]:
        return card.rows

    def DeviceGetRetiredPages(self, card: Card, cause: int) -> list[int]:
        return list(range(card.pages[cause]))

    def DeviceGetRetiredPagesPendingStatus(self, card: Card) -> int:
        return card.pages[2]

    def DeviceGetFieldValues(self, card: Card, field: int) -> int:
        assert field == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        return card.action

    def DeviceGetArchitecture(self, card: Card) -> int:
        return int(pynvml.NVML_DEVICE_ARCH_HOPPER)

    def DeviceGetNvLinkState(self, card: Card, link: int) -> int:
        return int(self._end(card, link) is not None)

    def DeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> str:
        end = self._end(card, link)
        return end if end and ":" in end else "FFFFFFFF:FF:FF.0"

    def DeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:
        kinds = {
            "switch": pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
            "npu": pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU,
        }
        return int(kinds[self._end(card, link) or ""])

    def _end(self, card: Card, link: int) -> str | None:
        if link >= len(card.links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return card.links[link]

    def DeviceGetUtilizationRates(self, card: Card) -> tuple[int, int]:
        if card.mig is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card.utilization

    def DeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return card.temperature_c

    def DeviceGetPowerUsage(self, card: Card) -> int:
        return card.power_mw

    def DeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        return 700_000

    def DeviceGetClockInfo(self, card: Card, kind: int) -> int:
        return card.clocks_mhz[[pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM].index(kind)]

    def DeviceGetCurrentClocksEventReasons(self, card: Card) -> int:
        return card.clocks_reasons

    def DeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return card.clocks_reasons

    def DeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.compute

    def DeviceGetGraphicsRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.graphics

    def DeviceGetProcessUtilization(self, card: Card, since_us: int) -> list[tuple[int, int, int]]:
        """Pid, time and percent of the driver's samples of processes; there are none of MIG instances."""
        if card.uuid.startswith("MIG-"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        told = [sample for sample in card.busy if sample[1] > since_us]
        if not told:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return told

    def DeviceGetMPSComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.mps


@dataclass
class Event:
    """What a driver says unasked; of a card without instances it names none."""

    card: Card
    kind: int
    code: int
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


def xid(card: Card, code: int, gpu_instance: int = 0xFFFFFFFF) -> Event:
    return Event(card, XID_EVENTS, code, gpu_instance)


@pytest.fixture
def driver(mocker: MockerFixture) -> Driver:
    return Driver(mocker)


@pytest.fixture
def gpus(driver: Driver, tmp_path: Path) -> Iterator[NvmlGpus]:
    source = NvmlGpus(pci_devices=tmp_path)
    yield source
    source.close()
