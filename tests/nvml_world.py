"""A driver of plain data behind the real pynvml: what each function of NVML answers, and memory limits."""
# ruff: noqa: N802 (the driver's methods are named like NVML's functions)

import ctypes
import threading
from collections import defaultdict
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_library import HANDLE, TEXT, At, Many, Symbol, give_handle, install, symbol, write_list

MIB = 1 << 20
ABSENT = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
XID_EVENTS = pynvml.nvmlEventTypeXidCriticalError
MIG_EVENTS = pynvml.nvmlEventMigConfigChange
UNLIMITED = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
LIMIT_CALLS = ("DeviceSetMemoryLimits_v1", "DeviceGetMemoryLimits_v1")

Process = tuple[int, int]
"""Its PID, and the bytes that it uses."""
_PROCESSES_V2 = Many(pynvml.c_nvmlProcessInfo_v2_t)
_PROCESSES_V3 = Many(pynvml.c_nvmlProcessInfo_v3_t)


def process(pid: int, used_mib: int | None) -> Process:
    return pid, pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value if used_mib is None else used_mib * MIB


@dataclass
class Card:
    """One card as a driver holds it; `errors` maps functions of NVML to the codes that they fail with.

    A function is named without `nvml`: with its version, or without for all versions.

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
    compute: list[Process] = field(default_factory=list)
    graphics: list[Process] = field(default_factory=list)
    mps: list[Process] = field(default_factory=list)
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


@dataclass
class Limits:
    """Memory limits of a driver by UUID of a card and path of a cgroup, in bytes.

    `unset` is what a read fails with where nothing is set, None for a read that says so. With the
    backend dmem soft limits are added to the cgroups above (`reserved`), and stay when their own is deleted.
    A read of a cgroup without a limit tells that of the nearest one above with `inherits`. Cgroups without a
    file dmem.max take no limit with `files`. Without `keeps` it takes limits and forgets them.
    """

    hard: dict[tuple[str, str], int] = field(default_factory=dict)
    soft: dict[tuple[str, str], int] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    unset: int | None = None
    inherits: bool = False
    files: bool = False
    keeps: bool = True

    def standing(self) -> dict[tuple[str, str], int]:
        """Hard limits of cgroups that are there: one that goes takes its limit along."""
        return {
            key: limit for key, limit in self.hard.items() if Path(key[1]).is_dir() and limit != UNLIMITED
        }

    def set(self, uuid: str, wanted: Any) -> None:
        path = wanted.nameSpace
        if self.files and not (Path(path) / "dmem.max").exists():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        if not self.keeps:
            return
        key = uuid, path
        for above in Path(path).parents:
            self.reserved[str(above)] += wanted.softLimit - self.soft.get(key, 0)
        self.hard[key], self.soft[key] = wanted.hardLimit, wanted.softLimit

    def get(self, uuid: str, found: Any) -> None:
        key = self.told_by(uuid, found.nameSpace)
        if self.unset is not None and self.hard.get(key, UNLIMITED) == UNLIMITED:
            raise pynvml.NVMLError(self.unset)
        found.hardLimit, found.softLimit = self.hard.get(key, UNLIMITED), self.soft.get(key, 0)
        found.currentUsed = self.used.get(key, 0)

    def told_by(self, uuid: str, path: str) -> tuple[str, str]:
        """Find the cgroup whose limit a read of this one tells."""
        places = [path, *map(str, Path(path).parents)] if self.inherits else [path]
        return next(((uuid, place) for place in places if (uuid, place) in self.standing()), (uuid, path))


class Driver:
    """Answers pynvml from plain data; version 580, which has no memory limits, until `upgrade`.

    Attributes:
        errors: As those of a card, of the functions that ask of none.
        calls: The functions that were called, with their versions.
        registered: Cards whose events were asked for, and of which kinds.
        refused_kinds: Kinds of events, and the codes with which registering for them fails.
    """

    def __init__(self, mocker: MockerFixture) -> None:
        self.cards = [Card("GPU-a"), Card("GPU-b", minor=4, numa_mask=1)]
        self.errors: dict[str, int] = {}
        self.version = "580.65.06"
        self.opened = 0
        self.news: list[Event | int] = []
        self.registered: list[tuple[str, int]] = []
        self.refused_kinds: dict[int, int] = {}
        self.calls: list[str] = []
        self.mig_places: dict[str, int] = {}
        self.heard = threading.Event()
        self.limits = Limits()
        self.missing = {f"nvml{name}" for name in LIMIT_CALLS}
        self.objects: dict[int, Any] = {}
        install(mocker, self)

    def upgrade(self) -> None:
        """Be a driver that holds memory limits."""
        self.version = "615.71.09"
        self.missing.clear()

    def call(self, symbol: Symbol, *args: Any) -> Any:
        """Answer a function of NVML, or fail as `errors` of its card, else of the driver, say."""
        self.calls.append(symbol.name)
        card = args[0] if args else None
        if isinstance(card, tuple):
            card = card[0]  # of an instance
        errors = card.errors if isinstance(card, Card) else self.errors
        code = errors.get(symbol.name, errors.get(symbol.method))
        if code is not None:
            raise pynvml.NVMLError(code)
        return getattr(self, symbol.method)(*args)

    def set_mig_mode(self, card: Card, instances: list[Card] | None) -> None:
        """Change it as another process would, which cannot while this one has the driver open."""
        if self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        card.mig = instances

    @symbol(c_uint, name="nvmlInitWithFlags")
    def Init(self, flags: int) -> None:
        assert flags == 0
        self.opened += 1

    @symbol()
    def Shutdown(self) -> None:
        assert self.opened > 0
        self.opened -= 1

    @symbol(gives=TEXT)
    def SystemGetDriverVersion(self) -> str:
        return self.version

    @symbol(gives=TEXT)
    def SystemGetNVMLVersion(self) -> str:
        return f"13.{self.version}"

    @symbol(HANDLE)
    def EventSetFree(self, events: object) -> None: ...

    @symbol(gives=HANDLE)
    def EventSetCreate(self) -> object:
        return object()

    @symbol(HANDLE, At(pynvml.c_nvmlEventData_t), c_uint, name="nvmlEventSetWait_v2")
    def EventSetWait(self, events: object, event: Any, timeout_ms: int) -> None:
        if not self.news:
            self.heard.set()
            threading.Event().wait(0.005)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        news = self.news.pop(0)
        if isinstance(news, int):
            raise pynvml.NVMLError(news)
        give_handle(self, news.card, ctypes.addressof(event))
        event.eventType, event.eventData = news.kind, news.code
        event.gpuInstanceId, event.computeInstanceId = news.gpu_instance, news.compute_instance

    @symbol(gives=c_uint, name="nvmlDeviceGetCount_v2")
    def DeviceGetCount(self) -> int:
        return len(self.cards)

    @symbol(c_uint, gives=HANDLE, name="nvmlDeviceGetHandleByIndex_v2")
    def DeviceGetHandleByIndex(self, index: int) -> Card:
        card = self.cards[index]
        if "Handle" in card.errors:
            raise pynvml.NVMLError(card.errors["Handle"])
        return card

    @symbol(c_char_p, gives=HANDLE)
    def DeviceGetHandleByUUID(self, uuid: str) -> Card:
        for card in self.cards:
            for each in (card, *(card.mig or ())):
                if each.uuid == uuid:
                    return each
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    @symbol(HANDLE, gives=TEXT)
    def DeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    @symbol(HANDLE, gives=TEXT)
    def DeviceGetName(self, card: Card) -> str:
        return "NVIDIA H100 80GB HBM3"

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetMinorNumber(self, card: Card) -> int:
        return card.minor

    @symbol(HANDLE, At(pynvml.nvmlPciInfo_t), name="nvmlDeviceGetPciInfo_v3")
    def DeviceGetPciInfo(self, card: Card, info: Any) -> None:
        info.busId = card.bus_id.encode()

    @symbol(HANDLE, At(pynvml.c_nvmlMemory_t))
    @symbol(HANDLE, At(pynvml.c_nvmlMemory_v2_t, version=2), name="nvmlDeviceGetMemoryInfo_v2")
    def DeviceGetMemoryInfo(self, card: Card, info: Any) -> None:
        # A byte less than whole MiB, as drivers have it too.
        reserved = max(card.reserved_mib * MIB - 1, 0)
        info.total, info.used = card.total_mib * MIB, card.used_mib * MIB
        left = info.total - info.used - reserved
        info.free = left if card.free_mib is None else card.free_mib * MIB
        tells_reserved = isinstance(info, pynvml.c_nvmlMemory_v2_t)
        if tells_reserved:
            info.reserved = reserved
        if card.used_has_reserved or not tells_reserved:
            info.used += reserved

    @symbol(HANDLE, c_uint, c_void_p, c_uint)
    def DeviceGetMemoryAffinity(self, card: Card, words: int, mask: int, scope: int) -> None:
        (c_ulonglong * words).from_address(mask)[0] = card.numa_mask

    @symbol(HANDLE, gives=c_int)
    def DeviceGetNumaNodeId(self, card: Card) -> int:
        if card.memory_node is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card.memory_node

    @symbol(HANDLE, At(pynvml.c_nvmlDeviceAddressingMode_t, version=1))
    def DeviceGetAddressingMode(self, card: Card, mode: Any) -> None:
        ats, none = pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS, pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE
        mode.value = ats if card.coherent else none

    @symbol(HANDLE, At(c_uint), At(c_uint))
    def DeviceGetMigMode(self, card: Card, current: c_uint, pending: c_uint) -> None:
        current.value = pending.value = int(card.mig is not None)

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    @symbol(HANDLE, c_uint, gives=HANDLE)
    def DeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        # NVML numbers the places; a place without an instance is not found.
        for instance in card.mig or ():
            if self.mig_places.get(instance.uuid, instance.instance) == index:
                if "Handle" in instance.errors:
                    raise pynvml.NVMLError(instance.errors["Handle"])
                return instance
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetGpuInstanceId(self, card: Card) -> int:
        return card.instance

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetComputeInstanceId(self, card: Card) -> int:
        return card.compute_instance

    @symbol(
        HANDLE,
        c_uint,
        At(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
        name="nvmlDeviceGetGpuInstanceProfileInfoV",
    )
    def DeviceGetGpuInstanceProfileInfo(self, card: Card, profile: int, info: Any) -> None:
        assert profile == pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE
        info.id = 19

    @symbol(HANDLE, c_uint, gives=HANDLE)
    def DeviceCreateGpuInstance(self, card: Card, profile: int) -> tuple[Card, int]:
        assert profile == 19
        assert card.mig is not None
        if len(card.mig) == 7:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        return card, 8 + len(card.mig)

    @symbol(
        HANDLE,
        c_uint,
        c_uint,
        At(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t),
        name="nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    )
    def GpuInstanceGetComputeInstanceProfileInfo(
        self, instance: tuple[Card, int], profile: int, engine: int, info: Any
    ) -> None:
        assert (profile, engine) == (0, 0)
        info.id = 0

    @symbol(HANDLE, c_uint, gives=HANDLE)
    def GpuInstanceCreateComputeInstance(self, instance: tuple[Card, int], profile: int) -> tuple[Card, int]:
        card, number = instance
        assert card.mig is not None
        card.mig.append(Card(f"MIG-{number}", total_mib=9728, reserved_mib=10, instance=number))
        self.mig_places[f"MIG-{number}"] = len(card.mig) - 1
        return instance

    @symbol(HANDLE)
    def ComputeInstanceDestroy(self, instance: tuple[Card, int]) -> None:
        card, number = instance
        card.mig = [each for each in card.mig or () if each.instance != number]

    @symbol(HANDLE)
    def GpuInstanceDestroy(self, instance: tuple[Card, int]) -> None:
        card, number = instance
        self.calls.append(f"destroyed {number}")
        assert all(each.instance != number for each in card.mig or ())

    @symbol(HANDLE, c_ulonglong, HANDLE)
    def DeviceRegisterEvents(self, card: Card, kinds: int, events: object) -> None:
        if kinds in self.refused_kinds:
            raise pynvml.NVMLError(self.refused_kinds[kinds])
        self.registered.append((card.uuid, kinds))

    @symbol(HANDLE, c_uint, c_uint, gives=c_ulonglong)
    def DeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        return card.ecc

    @symbol(HANDLE, *[At(c_uint)] * 4)
    def DeviceGetRemappedRows(self, card: Card, *counts: c_uint) -> None:
        for count, rows in zip(counts, card.rows, strict=True):
            count.value = rows

    @symbol(HANDLE, c_uint, gives=Many(c_ulonglong))
    def DeviceGetRetiredPages(self, card: Card, cause: int) -> range:
        return range(card.pages[cause])

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetRetiredPagesPendingStatus(self, card: Card) -> int:
        return card.pages[2]

    @symbol(HANDLE, c_int, c_void_p)
    def DeviceGetFieldValues(self, card: Card, count: int, values: int) -> None:
        for value in (pynvml.c_nvmlFieldValue_t * count).from_address(values):
            assert value.fieldId == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
            value.value.uiVal, value.nvmlReturn = card.action, pynvml.NVML_SUCCESS

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetArchitecture(self, card: Card) -> int:
        return int(pynvml.NVML_DEVICE_ARCH_HOPPER)

    @symbol(HANDLE, c_uint, gives=c_uint)
    def DeviceGetNvLinkState(self, card: Card, link: int) -> int:
        return int(self._end(card, link) is not None)

    @symbol(HANDLE, c_uint, At(pynvml.nvmlPciInfo_t), name="nvmlDeviceGetNvLinkRemotePciInfo_v2")
    def DeviceGetNvLinkRemotePciInfo(self, card: Card, link: int, info: Any) -> None:
        end = self._end(card, link)
        info.busId = (end if end and ":" in end else "FFFFFFFF:FF:FF.0").encode()

    @symbol(HANDLE, c_uint, gives=c_uint)
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

    @symbol(HANDLE, At(pynvml.c_nvmlUtilization_t))
    def DeviceGetUtilizationRates(self, card: Card, rates: Any) -> None:
        if card.mig is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        rates.gpu, rates.memory = card.utilization

    @symbol(HANDLE, c_uint, gives=c_uint)
    def DeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return card.temperature_c

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetPowerUsage(self, card: Card) -> int:
        return card.power_mw

    @symbol(HANDLE, gives=c_uint)
    def DeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        return 700_000

    @symbol(HANDLE, c_uint, gives=c_uint)
    def DeviceGetClockInfo(self, card: Card, kind: int) -> int:
        return card.clocks_mhz[[pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM].index(kind)]

    @symbol(HANDLE, gives=c_ulonglong)
    def DeviceGetCurrentClocksEventReasons(self, card: Card) -> int:
        return card.clocks_reasons

    @symbol(HANDLE, gives=c_ulonglong)
    def DeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return card.clocks_reasons

    @symbol(HANDLE, gives=_PROCESSES_V2, name="nvmlDeviceGetComputeRunningProcesses_v2")
    @symbol(HANDLE, gives=_PROCESSES_V3, name="nvmlDeviceGetComputeRunningProcesses_v3")
    def DeviceGetComputeRunningProcesses(self, card: Card) -> list[Process]:
        return card.compute

    @symbol(HANDLE, gives=_PROCESSES_V2, name="nvmlDeviceGetGraphicsRunningProcesses_v2")
    @symbol(HANDLE, gives=_PROCESSES_V3, name="nvmlDeviceGetGraphicsRunningProcesses_v3")
    def DeviceGetGraphicsRunningProcesses(self, card: Card) -> list[Process]:
        return card.graphics

    @symbol(HANDLE, gives=_PROCESSES_V2, name="nvmlDeviceGetMPSComputeRunningProcesses_v2")
    @symbol(HANDLE, gives=_PROCESSES_V3, name="nvmlDeviceGetMPSComputeRunningProcesses_v3")
    def DeviceGetMPSComputeRunningProcesses(self, card: Card) -> list[Process]:
        return card.mps

    @symbol(HANDLE, c_void_p, c_void_p, c_ulonglong)
    def DeviceGetProcessUtilization(self, card: Card, out: int | None, count: int, since_us: int) -> None:
        """Tell the driver's samples of processes; there are none of MIG instances."""
        if card.uuid.startswith("MIG-"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        told = [sample for sample in card.busy if sample[1] > since_us]
        if not told:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        write_list(pynvml.c_nvmlProcessUtilizationSample_t, told, count, out)

    @symbol(HANDLE, At(pynvml.c_nvmlSetMemoryLimits_v1_t))
    def DeviceSetMemoryLimits_v1(self, card: Card, wanted: Any) -> None:
        self.limits.set(card.uuid, wanted)

    @symbol(HANDLE, At(pynvml.c_nvmlGetMemoryLimits_v1_t))
    def DeviceGetMemoryLimits_v1(self, card: Card, found: Any) -> None:
        self.limits.get(card.uuid, found)


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
