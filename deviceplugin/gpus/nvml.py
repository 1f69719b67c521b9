"""GPUs through NVIDIA's management library; this file and its `nvml_*` neighbours alone import pynvml.

Memory comes from the v2 call, which tells the driver's reserved part apart. Drivers without it give v1: then
reserved is unknown (0) and `used` includes it, so that an idle card looks a little fuller than it is.
A card in MIG mode is listed as its MIG instances.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml

from deviceplugin.errors import GpuError
from deviceplugin.gpus.events import EventQueue
from deviceplugin.gpus.health import DEFAULT_IGNORED_XIDS, fault_event
from deviceplugin.gpus.nvml_limits import NvmlLimits
from deviceplugin.gpus.nvml_links import read_links
from deviceplugin.gpus.source import GpuCard, GpuProcess, GpuSample, HealthEvent, sysfs_bus_id
from deviceplugin.gpus.vendor import NVIDIA, Vendor

LIBRARY = "libnvidia-ml.so.1"

_MIB = 1 << 20
_EVENT_WAIT_MS = 500
_NO_INSTANCE = 0xFFFFFFFF
_AFFINITY_WORDS = 16
_AFFINITY_WORD_BITS = 64
_V2_MISSING = (
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)
_START_ADVICE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "install the NVIDIA driver; in a container let the NVIDIA runtime bring it in "
        "(runtimeClassName, NVIDIA_DRIVER_CAPABILITIES=utility); without GPUs use --gpus simulated"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the kernel module (modprobe nvidia) and look at dmesg",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the library and the loaded kernel module are of different drivers: reboot the node"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "run as root or give access to /dev/nvidiactl",
}
# What the driver may ask for before a card can work again; draining peer-to-peer work (3) is not on the list.
_RECOVERY = {
    1: "a GPU reset",
    2: "a reboot of the node",
    4: "draining and a GPU reset",
    6: "a reset of the bus",
    7: "a reboot of the system",
}


@dataclass(slots=True)
class _Device:
    """A card with its NVML handle; the handle is None where the driver gave none.

    For a MIG instance `parent` is the handle of its card and `gpu_instance` its number there.
    """

    card: GpuCard
    handle: Any
    parent: Any
    gpu_instance: int | None = None
    ecc_errors: int | None = None


class NvmlGpus:
    """A `GpuSource` on the NVIDIA driver. Safe to use from several threads between open and close.

    A change of MIG mode or instances needs a restart of the daemon, as it does for running pods.

    Args:
        ignored_xids: XID codes that leave a card healthy; the others make it unhealthy.
        pci_devices: where the kernel shows PCI devices.
        cgroup_root: where the host's cgroups are mounted.

    Attributes:
        limits: holds memory limits by the driver.
    """

    def __init__(
        self,
        ignored_xids: frozenset[int] = DEFAULT_IGNORED_XIDS,
        pci_devices: Path = Path("/sys/bus/pci/devices"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._ignored_xids = ignored_xids
        self._pci_devices = pci_devices
        self._lock = threading.Lock()
        self._devices: list[_Device] = []
        self._events = EventQueue()
        self._event_set: Any = None
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._open = False
        self.limits = NvmlLimits(self._handle_of, cgroup_root)

    @property
    def vendor(self) -> Vendor:
        """NVIDIA."""
        return NVIDIA

    def open(self) -> None:
        """Load the driver's library, list the cards and start to watch for XID errors.

        Raises:
            GpuError: no driver, or it shows no card; the message says what to do.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            advice = _START_ADVICE.get(error.value, "look at dmesg and nvidia-smi")
            raise GpuError(f"NVML ({LIBRARY}) cannot start: {error}; {advice}") from error
        self._open = True
        try:
            self._devices = self._enumerate()
        except BaseException:
            self.close()
            raise
        self._events.open()
        self._stop.clear()
        self._watch()

    def close(self) -> None:
        """Stop watching and let the library go."""
        self._stop.set()
        self._events.close()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        if self._event_set is not None:
            _quietly(lambda: pynvml.nvmlEventSetFree(self._event_set))
            self._event_set = None
        if self._open:
            self._open = False
            _quietly(pynvml.nvmlShutdown)

    def cards(self) -> Sequence[GpuCard]:
        """Return the cards in the driver's order, MIG instances in place of their card."""
        with self._lock:
            return [device.card for device in self._devices]

    def sample(self) -> Sequence[GpuSample]:
        """Measure every card; one that was unreadable so far and answers now takes its size in `cards`."""
        with self._lock:
            return [self._sample(device) for device in self._devices]

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        """Wait up to `timeout_s` seconds for XID errors that concern the cards' health."""
        return self._events.take(timeout_s)

    def _handle_of(self, uuid: str) -> Any:
        """Find a card's handle, without waiting for a measurement that hangs; None where there is none."""
        return next((device.handle for device in self._devices if device.card.uuid == uuid), None)

    def _enumerate(self) -> list[_Device]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise GpuError(f"NVML ({LIBRARY}) cannot count the cards: {error}; look at dmesg") from error
        if count == 0:
            raise GpuError(f"NVML ({LIBRARY}) shows no card: this node has none, or the container sees none")
        devices: list[_Device] = []
        for number in range(count):
            for device in self._list_card(number):
                device.card = replace(device.card, index=len(devices))
                devices.append(device)
        whole = {device.card.uuid: device for device in devices if device.handle is not None}
        whole = {uuid: device for uuid, device in whole.items() if device.handle is device.parent}
        links = read_links(
            {uuid: device.handle for uuid, device in whole.items()},
            {uuid: device.card.bus_id for uuid, device in whole.items()},
        )
        for uuid, device in whole.items():
            device.card = replace(device.card, links=links[uuid])
        return devices

    def _list_card(self, number: int) -> Iterator[_Device]:
        """Yield the card of that NVML number, or its MIG instances; never fails."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        except pynvml.NVMLError as error:
            unknown = GpuCard(number, f"GPU-unreadable-{number}", "", 0, 0, None, "", -1, error=str(error))
            yield _Device(unknown, None, None)
            return
        whole = self._read_card(number, handle, handle)
        if not _mig_enabled(handle):
            yield _Device(whole, handle, handle)
            return
        instances = 0
        for mig in _mig_handles(handle):
            card = self._read_card(number, mig, handle)
            instance = _quietly(lambda mig=mig: pynvml.nvmlDeviceGetGpuInstanceId(mig))  # type: ignore[misc]
            yield _Device(card, mig, handle, gpu_instance=instance)
            instances += 1
        if not instances:
            reason = "MIG mode is on and there are no instances: create some or turn it off"
            yield _Device(replace(whole, total_mib=0, reserved_mib=0, error=reason), None, handle)

    def _read_card(self, number: int, handle: Any, parent: Any) -> GpuCard:
        uuid = _quietly(lambda: pynvml.nvmlDeviceGetUUID(handle))
        total_mib = reserved_mib = 0
        error = None if uuid else "the driver does not tell its UUID"
        try:
            total_mib, reserved_mib, _ = _memory(handle)
        except pynvml.NVMLError as failure:
            error = f"memory cannot be read: {failure}"
        bus_id = _quietly(lambda: sysfs_bus_id(str(pynvml.nvmlDeviceGetPciInfo(parent).busId))) or ""
        minor = _quietly(lambda: pynvml.nvmlDeviceGetMinorNumber(parent))
        return GpuCard(
            index=number,
            uuid=uuid or f"GPU-unreadable-{number}",
            model=_quietly(lambda: pynvml.nvmlDeviceGetName(handle)) or "",
            total_mib=total_mib,
            reserved_mib=reserved_mib,
            numa=self._numa(parent, bus_id),
            bus_id=bus_id,
            minor=-1 if minor is None else minor,
            error=error,
        )

    def _numa(self, handle: Any, bus_id: str) -> int | None:
        """Find the card's NUMA node: the driver's word, else the kernel's; None unless it is exactly one.

        nvmlDeviceGetNumaNodeId is of no use here: it names the node that a coherent card's own memory is.
        """
        scope = pynvml.NVML_AFFINITY_SCOPE_NODE
        words = _quietly(lambda: list(pynvml.nvmlDeviceGetMemoryAffinity(handle, _AFFINITY_WORDS, scope)))
        mask = sum(word << (_AFFINITY_WORD_BITS * at) for at, word in enumerate(words or ()))
        if mask.bit_count() == 1:
            return int(mask.bit_length() - 1)
        if not bus_id:
            return None
        try:
            node = int((self._pci_devices / bus_id / "numa_node").read_text("ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _sample(self, device: _Device) -> GpuSample:
        uuid = device.card.uuid
        if device.handle is None:
            return GpuSample(uuid, 0, None, error=device.card.error)
        try:
            total_mib, reserved_mib, used_mib = _memory(device.handle)
        except pynvml.NVMLError as error:
            return GpuSample(uuid, 0, None, error=f"memory cannot be read: {error}")
        if device.card.error is not None:
            self._reread(device, total_mib, reserved_mib)
            uuid = device.card.uuid
        trouble = device.card.error or _asks_for_recovery(device.parent) or _new_ecc_errors(device)
        return GpuSample(uuid, used_mib, _processes(device.handle), error=trouble)

    def _reread(self, device: _Device, total_mib: int, reserved_mib: int) -> None:
        """Take in what a card that was unreadable at the start says now."""
        uuid = _quietly(lambda: pynvml.nvmlDeviceGetUUID(device.handle))
        if uuid:
            card = device.card
            model = _quietly(lambda: pynvml.nvmlDeviceGetName(device.handle)) or card.model
            device.card = replace(
                card, uuid=uuid, model=model, total_mib=total_mib, reserved_mib=reserved_mib, error=None
            )

    def _watch(self) -> None:
        """Start the thread that waits for XID errors; without events health rests on the samples alone."""
        try:
            self._event_set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        registered = 0
        seen: list[Any] = []
        for device in self._devices:
            if device.parent is not None and device.parent not in seen:
                seen.append(device.parent)
                registered += self._register(device.parent)
        if registered:
            self._watcher = threading.Thread(target=self._wait_for_xids, name="nvml-events", daemon=True)
            self._watcher.start()

    def _register(self, parent: Any) -> bool:
        kind = pynvml.nvmlEventTypeXidCriticalError
        try:
            pynvml.nvmlDeviceRegisterEvents(parent, kind, self._event_set)
        except pynvml.NVMLError:
            return False
        return True

    def _wait_for_xids(self) -> None:
        while not self._stop.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._event_set, _EVENT_WAIT_MS)
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                # A lost card makes the wait fail for all; the samples say which one it is.
                self._stop.wait(_EVENT_WAIT_MS / 1000)
                continue
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._report(int(event.eventData), event)

    def _report(self, code: int, event: Any) -> None:
        """Queue an XID for the cards it concerns: all of them when the driver does not say which."""
        parent_uuid = _quietly(lambda: pynvml.nvmlDeviceGetUUID(event.device))
        with self._lock:
            devices = list(self._devices)
        address = _address(event.device)
        concerned = [
            device
            for device in devices
            if (address is not None and address == _address(device.parent))
            or (parent_uuid and parent_uuid == device.card.uuid)
        ]
        instance = getattr(event, "gpuInstanceId", _NO_INSTANCE)
        narrowed = [device for device in concerned if device.gpu_instance in (None, instance)]
        for device in narrowed or concerned or devices:
            self._events.put(fault_event(device.card.uuid, code, self._ignored_xids))


def _quietly(call: Callable[[], Any]) -> Any:
    """Ask for something the product can do without: None where the driver fails."""
    try:
        return call()
    except pynvml.NVMLError:
        return None


def _address(handle: Any) -> int | None:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return None


def _memory(handle: Any) -> tuple[int, int, int]:
    """Return total, reserved and used MiB; total rounds down, the others up.

    Raises:
        NVMLError: the card does not say.
    """
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        reserved = info.reserved
    except pynvml.NVMLError as error:
        if error.value not in _V2_MISSING:
            raise
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        reserved = 0
    return info.total // _MIB, -(-reserved // _MIB), -(-info.used // _MIB)


def _mig_enabled(handle: Any) -> bool:
    mode = _quietly(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _mig_handles(handle: Any) -> Iterator[Any]:
    for number in range(_quietly(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError:
            continue


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    """List who uses the card, one entry a pid; None when the driver or the pid namespace hides it."""
    compute = _process_list(handle, "Compute")
    if compute is None:
        return None
    used: dict[int, int | None] = {}
    for entry in (
        *compute,
        *(_process_list(handle, "Graphics") or ()),
        *(_process_list(handle, "MPSCompute") or ()),
    ):
        if entry.pid == 0:
            return None
        mib = None if entry.usedGpuMemory is None else -(-entry.usedGpuMemory // _MIB)
        known = used.get(entry.pid)
        used[entry.pid] = mib if known is None or mib is None else max(known, mib)
    return tuple(GpuProcess(pid, mib) for pid, mib in sorted(used.items()))


def _process_list(handle: Any, kind: str) -> list[Any] | None:
    for version in ("v3", "v2"):
        try:
            found: list[Any] = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}")(handle)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return None
        else:
            return found
    return None


def _asks_for_recovery(handle: Any) -> str | None:
    """Say what the driver wants done before the card can work again; None on drivers that do not tell."""
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = _quietly(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [field]))
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = _RECOVERY.get(values[0].value.uiVal)
    return f"the driver asks for {action}" if action else None


def _new_ecc_errors(device: _Device) -> str | None:
    """Compare the uncorrectable ECC errors since boot with the last sample's; None where none came."""
    before = device.ecc_errors
    kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    now = _quietly(lambda: pynvml.nvmlDeviceGetTotalEccErrors(device.parent, kind, counter))
    device.ecc_errors = now
    if before is None or now is None or now <= before:
        return None
    return f"uncorrectable ECC errors: {now}, {before} at the last look"
