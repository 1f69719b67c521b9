"""A driver of plain data whose functions are patched into pynvml, for tests of the NVML source."""
# ruff: noqa: N802 (the fake driver's methods are named like NVML's functions)

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.nvidia.source import NvmlGpus

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
    tells as free, None for what is neither used nor reserved.
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
    errors: dict[str, int] = field(default_factory=dict)


class Driver:
    """Answers for pynvml's functions from plain data."""

    def __init__(self, mocker: MockerFixture) -> None:
        self.cards = [Card("GPU-a"), Card("GPU-b", minor=4, numa_mask=1)]
        self.errors: dict[str, int] = {}
        self.version = "580.65.06"
        self.opened = 0
        self.news: list[SimpleNamespace | int] = []
        self.registered: list[str] = []
        self.calls: list[str] = []
        self.mig_places: dict[str, int] = {}
        self.heard = threading.Event()
        for name in [
            "Init",
            "Shutdown",
            "SystemGetDriverVersion",
            "SystemGetNVMLVersion",
            "EventSetCreate",
            "EventSetFree",
            "EventSetWait_v2",
            "DeviceGetCount",
            "DeviceGetHandleByIndex",
            "DeviceGetUUID",
            "DeviceGetName",
            "DeviceGetMinorNumber",
            "DeviceGetPciInfo",
            "DeviceGetMemoryInfo",
            "DeviceGetMemoryAffinity",
            "DeviceGetNumaNodeId",
            "DeviceGetAddressingMode",
            "DeviceGetMigMode",
            "DeviceGetMaxMigDeviceCount",
            "DeviceGetGpuInstanceId",
            "DeviceGetComputeInstanceId",
            "DeviceGetMigDeviceHandleByIndex",
            "DeviceRegisterEvents",
            "DeviceGetTotalEccErrors",
            "DeviceGetRemappedRows",
            "DeviceGetRetiredPages",
            "DeviceGetRetiredPagesPendingStatus",
            "DeviceGetFieldValues",
            "DeviceGetUtilizationRates",
            "DeviceGetTemperature",
            "DeviceGetPowerUsage",
            "DeviceGetEnforcedPowerLimit",
            "DeviceGetClockInfo",
            "DeviceGetCurrentClocksEventReasons",
            "DeviceGetCurrentClocksThrottleReasons",
            "DeviceGetComputeRunningProcesses_v3",
            "DeviceGetComputeRunningProcesses_v2",
            "DeviceGetGraphicsRunningProcesses_v3",
            "DeviceGetGraphicsRunningProcesses_v2",
            "DeviceGetMPSComputeRunningProcesses_v3",
            "DeviceGetMPSComputeRunningProcesses_v2",
        ]:
            mocker.patch.object(pynvml, f"nvml{name}", self._answer(name))

    def _answer(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            errors = args[0].errors if args and isinstance(args[0], Card) else self.errors
            key = f"{name}_v2" if kwargs.get("version") else name
            if key in errors:
                raise pynvml.NVMLError(errors[key])
            return getattr(self, name.removesuffix("_v2").removesuffix("_v3"))(*args, **kwargs)

        return call

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

    def EventSetWait(self, events: object, timeout_ms: int) -> SimpleNamespace:
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

    def DeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def DeviceGetName(self, card: Card) -> str:
        return "NVIDIA H100 80GB HBM3"

    def DeviceGetMinorNumber(self, card: Card) -> int:
        return card.minor

    def DeviceGetPciInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(busId=card.bus_id)

    def DeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> SimpleNamespace:
        # A byte less than whole MiB, as drivers have it too.
        reserved = card.reserved_mib * MIB - 1
        used = card.used_mib * MIB
        free = card.total_mib * MIB - used - reserved if card.free_mib is None else card.free_mib * MIB
        with_reserved = version is None or card.used_has_reserved
        info = SimpleNamespace(
            total=card.total_mib * MIB, used=used + (reserved if with_reserved else 0), free=free
        )
        if version:
            assert version == pynvml.nvmlMemory_v2
            info.reserved = reserved
        return info

    def DeviceGetMemoryAffinity(self, card: Card, words: int, scope: int) -> list[int]:
        return [card.numa_mask] + [0] * (words - 1)

    def DeviceGetNumaNodeId(self, card: Card) -> int:
        if card.memory_node is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card.memory_node

    def DeviceGetAddressingMode(self, card: Card) -> SimpleNamespace:
        ats, none = pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS, pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE
        return SimpleNamespace(value=ats if card.coherent else none)

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

    def DeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=card.action))]

    def DeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        if card.mig is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=card.utilization[0], memory=card.utilization[1])

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

    def DeviceGetMPSComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.mps


def xid(card: Any, code: int, **fields: int) -> SimpleNamespace:
    return SimpleNamespace(
        device=card, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=code, **fields
    )


@pytest.fixture
def driver(mocker: MockerFixture) -> Driver:
    return Driver(mocker)


@pytest.fixture
def gpus(driver: Driver, tmp_path: Path) -> Iterator[NvmlGpus]:
    source = NvmlGpus(pci_devices=tmp_path)
    yield source
    source.close()
