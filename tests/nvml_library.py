"""NVML's shared library as C callbacks over a `Driver` of plain data, for the real pynvml to call.

It stands where pynvml keeps the library that it loaded, so tests of the NVML source run all of pynvml: which
symbol a call asks for, symbols that are missing, the layout and version of structs, lists that are asked for
twice, and the numbers that calls return in place of exceptions.
"""

import ctypes
from collections.abc import Callable, Iterable
from ctypes import c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, Protocol

import pynvml
from pytest_mock import MockerFixture

_NOT_AVAILABLE = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value


class Answers(Protocol):
    """What a library asks a driver of plain data.

    Attributes:
        missing: Symbols that the library lacks.
    """

    missing: set[str]

    def call(self, name: str, *args: Any) -> Any:
        """Answer a function of NVML, named without `nvml`; raises NVMLError where it fails."""


def install(mocker: MockerFixture, driver: Answers) -> None:
    """Let pynvml find the library of a driver loaded, as after its first call."""
    mocker.patch.object(pynvml, "nvmlLib", Library(driver))
    mocker.patch.object(pynvml, "_nvmlGetFunctionPointer_cache", {})
    mocker.patch.object(pynvml, "_nvmlLib_refcount", 0)


class Library:
    """A library whose symbols are C functions; a handle is the address of the object that it stands for."""

    def __init__(self, driver: Answers) -> None:
        self._driver = driver
        self._objects: dict[int, Any] = {}

    def __getattr__(self, symbol: str) -> Any:
        if symbol not in SYMBOLS or symbol in self._driver.missing:
            raise AttributeError(symbol)
        function, types = SYMBOLS[symbol]

        def call(*args: Any) -> int:
            try:
                function(self, *args)
            except pynvml.NVMLError as error:
                return int(error.value)
            return int(pynvml.NVML_SUCCESS)

        return ctypes.CFUNCTYPE(c_uint, *types)(call)

    def call(self, name: str, *args: Any) -> Any:
        return self._driver.call(name, *args)

    def find(self, handle: int | None) -> Any:
        if handle not in self._objects:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._objects[handle]

    def give(self, out: int, thing: Any) -> None:
        self._objects[id(thing)] = thing
        c_void_p.from_address(out).value = id(thing)


SYMBOLS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {}


def _symbol(name: str, *types: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        SYMBOLS[name] = function, types
        return function

    return register


def _numbers(kind: Any, names: Iterable[str]) -> None:
    """Functions of a card that tell one number, asked for with numbers or without."""
    for entry in names:
        symbol, *asked = entry.split()

        def tell(library: Library, card: int, *rest: int, name: str = symbol) -> None:
            *selectors, out = rest
            kind.from_address(out).value = library.call(name, library.find(card), *selectors)

        _symbol(f"nvml{symbol}", c_void_p, *[c_uint] * len(asked), c_void_p)(tell)


_numbers(
    c_uint,
    [
        "DeviceGetMinorNumber",
        "DeviceGetMaxMigDeviceCount",
        "DeviceGetGpuInstanceId",
        "DeviceGetComputeInstanceId",
        "DeviceGetRetiredPagesPendingStatus",
        "DeviceGetTemperature sensor",
        "DeviceGetPowerUsage",
        "DeviceGetEnforcedPowerLimit",
        "DeviceGetClockInfo type",
        "DeviceGetArchitecture",
        "DeviceGetNvLinkState link",
        "DeviceGetNvLinkRemoteDeviceType link",
    ],
)
_numbers(c_int, ["DeviceGetNumaNodeId"])
_numbers(
    c_ulonglong,
    [
        "DeviceGetCurrentClocksEventReasons",
        "DeviceGetCurrentClocksThrottleReasons",
        "DeviceGetTotalEccErrors error counter",
    ],
)


def _texts() -> None:
    for name in ("SystemGetDriverVersion", "SystemGetNVMLVersion"):

        def tell(library: Library, out: int, size: int, name: str = name) -> None:
            _write_text(out, size, library.call(name))

        _symbol(f"nvml{name}", c_void_p, c_uint)(tell)
    for name in ("DeviceGetUUID", "DeviceGetName"):

        def tell_of(library: Library, card: int, out: int, size: int, name: str = name) -> None:
            _write_text(out, size, library.call(name, library.find(card)))

        _symbol(f"nvml{name}", c_void_p, c_void_p, c_uint)(tell_of)


def _write_text(out: int, size: int, text: str) -> None:
    raw = text.encode() + b"\0"
    if len(raw) > size:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    ctypes.memmove(out, raw, len(raw))


_texts()


@_symbol("nvmlInitWithFlags", c_uint)
def _init(library: Library, flags: int) -> None:
    assert flags == 0
    library.call("Init")


@_symbol("nvmlShutdown")
def _shutdown(library: Library) -> None:
    library.call("Shutdown")


@_symbol("nvmlDeviceGetCount_v2", c_void_p)
def _count(library: Library, out: int) -> None:
    c_uint.from_address(out).value = library.call("DeviceGetCount")


@_symbol("nvmlDeviceGetHandleByIndex_v2", c_uint, c_void_p)
def _by_index(library: Library, index: int, out: int) -> None:
    library.give(out, library.call("DeviceGetHandleByIndex", index))


@_symbol("nvmlDeviceGetHandleByUUID", c_char_p, c_void_p)
def _by_uuid(library: Library, uuid: bytes, out: int) -> None:
    library.give(out, library.call("DeviceGetHandleByUUID", uuid.decode()))


@_symbol("nvmlDeviceGetMigDeviceHandleByIndex", c_void_p, c_uint, c_void_p)
def _mig_by_index(library: Library, card: int, index: int, out: int) -> None:
    library.give(out, library.call("DeviceGetMigDeviceHandleByIndex", library.find(card), index))


@_symbol("nvmlDeviceGetMigMode", c_void_p, c_void_p, c_void_p)
def _mig_mode(library: Library, card: int, current: int, pending: int) -> None:
    modes = library.call("DeviceGetMigMode", library.find(card))
    for out, mode in zip((current, pending), modes, strict=True):
        c_uint.from_address(out).value = mode


def _pci(name: str, library: Library, card: int, *rest: int) -> None:
    *link, out = rest
    bus_id = library.call(name, library.find(card), *link)
    pynvml.nvmlPciInfo_t.from_address(out).busId = bus_id.encode()


@_symbol("nvmlDeviceGetPciInfo_v3", c_void_p, c_void_p)
def _own_pci(library: Library, card: int, out: int) -> None:
    _pci("DeviceGetPciInfo", library, card, out)


@_symbol("nvmlDeviceGetNvLinkRemotePciInfo_v2", c_void_p, c_uint, c_void_p)
def _remote_pci(library: Library, card: int, link: int, out: int) -> None:
    _pci("DeviceGetNvLinkRemotePciInfo", library, card, link, out)


def _memory(kind: Any, name: str, library: Library, card: int, out: int) -> None:
    told = library.call(name, library.find(card))
    info = kind.from_address(out)
    for field in ("total", "reserved", "free", "used"):
        if hasattr(info, field):
            setattr(info, field, told[field])


@_symbol("nvmlDeviceGetMemoryInfo", c_void_p, c_void_p)
def _memory_v1(library: Library, card: int, out: int) -> None:
    _memory(pynvml.c_nvmlMemory_t, "DeviceGetMemoryInfo", library, card, out)


@_symbol("nvmlDeviceGetMemoryInfo_v2", c_void_p, c_void_p)
def _memory_v2(library: Library, card: int, out: int) -> None:
    _check_version(pynvml.c_nvmlMemory_v2_t, out, 2)
    _memory(pynvml.c_nvmlMemory_v2_t, "DeviceGetMemoryInfo_v2", library, card, out)


def _check_version(kind: Any, out: int, version: int) -> None:
    """Refuse a struct of another layout, as the driver does: size and version are in its first word."""
    if kind.from_address(out).version != version << 24 | ctypes.sizeof(kind):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


@_symbol("nvmlDeviceGetMemoryAffinity", c_void_p, c_uint, c_void_p, c_uint)
def _affinity(library: Library, card: int, words: int, out: int, scope: int) -> None:
    mask = library.call("DeviceGetMemoryAffinity", library.find(card), scope)
    (c_ulonglong * words).from_address(out)[0] = mask


@_symbol("nvmlDeviceGetAddressingMode", c_void_p, c_void_p)
def _addressing(library: Library, card: int, out: int) -> None:
    _check_version(pynvml.c_nvmlDeviceAddressingMode_t, out, 1)
    told = library.call("DeviceGetAddressingMode", library.find(card))
    pynvml.c_nvmlDeviceAddressingMode_t.from_address(out).value = told


@_symbol("nvmlDeviceGetRemappedRows", c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
def _rows(library: Library, card: int, *outs: int) -> None:
    for out, count in zip(outs, library.call("DeviceGetRemappedRows", library.find(card)), strict=True):
        c_uint.from_address(out).value = count


@_symbol("nvmlDeviceGetRetiredPages", c_void_p, c_uint, c_void_p, c_void_p)
def _pages(library: Library, card: int, cause: int, count: int, out: int | None) -> None:
    _write_list(c_ulonglong, library.call("DeviceGetRetiredPages", library.find(card), cause), count, out)


@_symbol("nvmlDeviceGetUtilizationRates", c_void_p, c_void_p)
def _utilization(library: Library, card: int, out: int) -> None:
    rates = pynvml.c_nvmlUtilization_t.from_address(out)
    rates.gpu, rates.memory = library.call("DeviceGetUtilizationRates", library.find(card))


@_symbol("nvmlDeviceGetFieldValues", c_void_p, c_int, c_void_p)
def _fields(library: Library, card: int, count: int, out: int) -> None:
    for value in (pynvml.c_nvmlFieldValue_t * count).from_address(out):
        value.value.uiVal = library.call("DeviceGetFieldValues", library.find(card), value.fieldId)
        value.nvmlReturn = pynvml.NVML_SUCCESS


def _write_list(kind: Any, items: list[Any], count: int, out: int | None) -> None:
    """Answer as NVML answers with lists: how many there are, or as many as there is room for."""
    room = c_uint.from_address(count)
    asked, room.value = (0 if out is None else room.value), len(items)
    if len(items) > asked:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    if out is not None and items:
        (kind * asked).from_address(out)[: len(items)] = items


def _processes() -> None:
    kinds = {"v2": pynvml.c_nvmlProcessInfo_v2_t, "v3": pynvml.c_nvmlProcessInfo_v3_t}
    for version, kind in kinds.items():
        for what in ("Compute", "Graphics", "MPSCompute"):

            def tell(
                library: Library,
                card: int,
                count: int,
                out: int | None,
                name: str = f"DeviceGet{what}RunningProcesses_{version}",
                kind: Any = kind,
            ) -> None:
                told = library.call(name, library.find(card))
                used = [_NOT_AVAILABLE if each.usedGpuMemory is None else each.usedGpuMemory for each in told]
                items = [kind(each.pid, mib) for each, mib in zip(told, used, strict=True)]
                _write_list(kind, items, count, out)

            _symbol(f"nvmlDeviceGet{what}RunningProcesses_{version}", c_void_p, c_void_p, c_void_p)(tell)


_processes()


@_symbol("nvmlDeviceGetProcessUtilization", c_void_p, c_void_p, c_void_p, c_ulonglong)
def _process_utilization(library: Library, card: int, out: int | None, count: int, since_us: int) -> None:
    kind = pynvml.c_nvmlProcessUtilizationSample_t
    told = library.call("DeviceGetProcessUtilization", library.find(card), since_us)
    items = [kind(pid=pid, timeStamp=time_us, smUtil=percent) for pid, time_us, percent in told]
    _write_list(kind, items, count, out)


@_symbol("nvmlEventSetCreate", c_void_p)
def _create_events(library: Library, out: int) -> None:
    library.give(out, library.call("EventSetCreate"))


@_symbol("nvmlEventSetFree", c_void_p)
def _free_events(library: Library, events: int) -> None:
    library.call("EventSetFree", library.find(events))


@_symbol("nvmlDeviceRegisterEvents", c_void_p, c_ulonglong, c_void_p)
def _register_events(library: Library, card: int, kinds: int, events: int) -> None:
    library.call("DeviceRegisterEvents", library.find(card), kinds, library.find(events))


@_symbol("nvmlEventSetWait_v2", c_void_p, c_void_p, c_uint)
def _wait(library: Library, events: int, out: int, timeout_ms: int) -> None:
    news = library.call("EventSetWait_v2", library.find(events), timeout_ms)
    event = pynvml.c_nvmlEventData_t.from_address(out)
    library.give(ctypes.addressof(event), news.card)
    event.eventType, event.eventData = news.kind, news.code
    event.gpuInstanceId, event.computeInstanceId = news.gpu_instance, news.compute_instance


@_symbol("nvmlDeviceGetGpuInstanceProfileInfoV", c_void_p, c_uint, c_void_p)
def _instance_profile(library: Library, card: int, profile: int, out: int) -> None:
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t.from_address(out)
    info.id = library.call("DeviceGetGpuInstanceProfileInfo", library.find(card), profile)


@_symbol("nvmlDeviceCreateGpuInstance", c_void_p, c_uint, c_void_p)
def _create_instance(library: Library, card: int, profile: int, out: int) -> None:
    library.give(out, library.call("DeviceCreateGpuInstance", library.find(card), profile))


@_symbol("nvmlGpuInstanceGetComputeInstanceProfileInfoV", c_void_p, c_uint, c_uint, c_void_p)
def _compute_profile(library: Library, instance: int, profile: int, engine: int, out: int) -> None:
    info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t.from_address(out)
    told = library.call("GpuInstanceGetComputeInstanceProfileInfo", library.find(instance), profile, engine)
    info.id = told


@_symbol("nvmlGpuInstanceCreateComputeInstance", c_void_p, c_uint, c_void_p)
def _create_compute(library: Library, instance: int, profile: int, out: int) -> None:
    library.give(out, library.call("GpuInstanceCreateComputeInstance", library.find(instance), profile))


@_symbol("nvmlGpuInstanceDestroy", c_void_p)
def _destroy_instance(library: Library, instance: int) -> None:
    library.call("GpuInstanceDestroy", library.find(instance))


@_symbol("nvmlComputeInstanceDestroy", c_void_p)
def _destroy_compute(library: Library, instance: int) -> None:
    library.call("ComputeInstanceDestroy", library.find(instance))


@_symbol("nvmlDeviceSetMemoryLimits_v1", c_void_p, c_void_p)
def _set_limits(library: Library, card: int, wanted: int) -> None:
    struct = pynvml.c_nvmlSetMemoryLimits_v1_t.from_address(wanted)
    library.call("DeviceSetMemoryLimits_v1", library.find(card), struct)


@_symbol("nvmlDeviceGetMemoryLimits_v1", c_void_p, c_void_p)
def _get_limits(library: Library, card: int, out: int) -> None:
    struct = pynvml.c_nvmlGetMemoryLimits_v1_t.from_address(out)
    library.call("DeviceGetMemoryLimits_v1", library.find(card), struct)
