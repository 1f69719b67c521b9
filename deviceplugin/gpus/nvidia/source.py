"""GPUs through NVIDIA's management library.

A card in MIG mode is listed as its MIG instances. Each sample looks first whether the driver shows the same
cards as before: instances come and go, cards are lost and come back.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml
import structlog

from allocator.names import MIB
from deviceplugin.errors import DriverGoneError, GpuError
from deviceplugin.gpus.api.card_listing import (
    NO_INSTANCES,
    DetectedCard,
    describe_shared_memory,
    merge_cards,
    physical_uuid,
)
from deviceplugin.gpus.api.health import fault_event
from deviceplugin.gpus.api.health_events import HealthEventQueue
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.api.source import (
    ENDS,
    GONE_S,
    GpuCard,
    GpuProcess,
    GpuSample,
    HealthEvent,
    sysfs_bus_id,
)
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.nvidia import nvml_calls as calls
from deviceplugin.gpus.nvidia.events import NvmlEvents
from deviceplugin.gpus.nvidia.generations import ARCHITECTURES
from deviceplugin.gpus.nvidia.links import read_links
from deviceplugin.gpus.nvidia.memory_limits import CALLS as LIMIT_CALLS
from deviceplugin.gpus.nvidia.memory_limits import NvmlLimits
from deviceplugin.gpus.nvidia.mig import INSTANCE_PREFIX
from deviceplugin.gpus.nvidia.nvml_calls import MigDevice
from deviceplugin.gpus.nvidia.telemetry import read_telemetry
from deviceplugin.gpus.nvidia.vendor import IGNORED_XIDS, NVIDIA

if TYPE_CHECKING:
    from deviceplugin.gpus.api.telemetry import CardTelemetry

log = structlog.get_logger(__name__)

LIBRARY: Final = "libnvidia-ml.so.1"

AGAIN_S: Final = 30.0
AGAIN_CAP_S: Final = 600.0
"""While a card is lost the library is started again after so long, then after twice as long each time.

A library that was started before a card was reset or came back does not show it. Starting it again costs
the other cards seconds where nothing else keeps the driver loaded, hence the patience.
"""

_NO_INSTANCE: Final = 0xFFFFFFFF
_AFFINITY_WORDS: Final = 16
_AFFINITY_WORD_BITS: Final = 64
_NOT_SHOWN: Final = "the driver does not show the card any more"
_NONE_OF_ITS_OWN: Final = "the driver tells none, as of an integrated GPU, which shares the system's"
_REFUSED: Final = (
    "; the daemon's container needs NVIDIA_MIG_MONITOR_DEVICES=all and CAP_SYS_ADMIN "
    "(the component mig, docs/hardware.md)"
)
_START_ADVICE: Final = {
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


@dataclass(frozen=True, slots=True)
class _Shown:
    """A card as the driver shows it under one index.

    Attributes:
        number: its index in the driver, from 0.
        instances: each MIG instance, None for a card that is not in MIG mode.
        error: why the card cannot be described now, None if it can.
    """

    number: int
    handle: Any
    uuid: str | None
    instances: tuple[MigDevice, ...] | None = None
    error: str | None = None

    @property
    def shape(self) -> tuple[object, ...]:
        """Key that differs when the list of cards has to be read again."""
        instances = self.instances
        seen = (
            None
            if instances is None
            else tuple((entry.place, entry.uuid, str(entry.error)) for entry in instances)
        )
        return self.number, self.uuid, calls.handle_address(self.handle), seen, self.error


@dataclass(frozen=True, slots=True)
class _NvmlDevice:
    """A card with its NVML handle, None while the driver gives none.

    Attributes:
        handle: handle of the card or the instance, None while the driver gives none.
        place: place of a MIG instance on its card, see `MigDevice`.
        trouble: why a card that stays listed as it was cannot be measured, None when it can.
        lasts: the library, started again, would say the same of it.
    """

    card: GpuCard
    handle: Any = None
    parent: Any = None
    place: int | None = None
    trouble: str | None = None
    lasts: bool = False


class NvmlGpus:
    """A `GpuSource` on the NVIDIA driver. Safe to use from several threads between open and close.

    Args:
        ignored_xids: XID codes that leave a card healthy; the others make it unhealthy.
        probe_parent: finds the cgroup in which a memory limit is tried; see `NvmlLimits`.
        sees_processes: the driver shows all processes; it hides those of other pid namespaces.
    """

    def __init__(
        self,
        ignored_xids: frozenset[int] = IGNORED_XIDS,
        pci_devices: Path = Path("/sys/bus/pci/devices"),
        numa_nodes: Path = Path("/sys/devices/system/node"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        probe_parent: Callable[[], Path] | None = None,
        sees_processes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ignored_xids = ignored_xids
        self._pci_devices = pci_devices
        self._numa_nodes = numa_nodes
        self._sees_processes = sees_processes
        self._clock = clock
        self._sampling = threading.Lock()
        # Replaced, never changed: who reads it waits for no call of the driver.
        self._devices: tuple[_NvmlDevice, ...] = ()
        self._shape: tuple[object, ...] = ()
        self._watched: tuple[object, ...] = ()
        self._memory_errors: Mapping[str, Mapping[str, int]] = {}
        self._telemetry: dict[str, CardTelemetry] = {}
        self._compute_seen_us: dict[str, int] = {}
        self._without_compute: set[str] = set()
        self._events = HealthEventQueue()
        self._driver_events = NvmlEvents(self._report, self._events.wake)
        self._open = self._lost = False
        self._again_s = AGAIN_S
        self._started_s = float("-inf")
        self._versions: Mapping[str, str] | None = None
        self._failing_since_s: float | None = None
        self.limits = NvmlLimits(self._handle_of, cgroup_root, probe_parent)

    @property
    def vendor(self) -> Vendor:
        return NVIDIA

    def open(self) -> None:
        """Load the driver's library, list the cards and start to watch for XID errors.

        Raises:
            GpuError: no driver, or it shows no card; the message says what to do.
        """
        self._devices, self._versions, self._failing_since_s = (), None, None
        self._events.open()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        if not self._devices:
            self.close()
            raise GpuError(f"NVML ({LIBRARY}) shows no card: this node has none, or the container sees none")

    def close(self) -> None:
        self._events.close()
        self._stop()

    def cards(self) -> Sequence[GpuCard]:
        """Return the cards in the driver's order, MIG instances in place of their card."""
        return [device.card for device in self._devices]

    def sample(self) -> Sequence[GpuSample]:
        """See whether the driver shows the same cards, and measure every one."""
        with self._sampling:
            self._follow()
            before, self._memory_errors = self._memory_errors, {}
            self._telemetry = {}
            self._lost = False
            found = [self._sample(device, before) for device in self._devices]
            now = self._memory_errors
            # What cannot be read of a card this time is as it was: what comes meanwhile is new.
            self._memory_errors = {
                uuid: {**before.get(uuid, {}), **now.get(uuid, {})} for uuid in {**before, **now}
            }
            if not self._lost:
                self._again_s = AGAIN_S
            return found

    def detach(self) -> None:
        """Let the library go until the next sample.

        `nvmlDeviceSetMigMode` answers NVML_ERROR_IN_USE for a device that is not idle (NVML API Reference). A
        reset fails while a client has the driver open (mig-parted, issue 19; gpu-operator, issue 118).
        """
        with self._sampling:
            self._stop()

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        """Wait up to `timeout_s` seconds for XID errors that concern the cards' health."""
        return self._events.take_events(timeout_s)

    def driver_version(self) -> str:
        return (self._versions or {}).get("driver", "of unknown version")

    def memory_info(self, uuid: str) -> MemoryInfo:
        """Read what the driver says of a card's memory, as it says it.

        Raises:
            GpuError: it does not say.
        """
        handle = self._handle_of(uuid)
        if handle is None:
            raise GpuError(f"memory of card {uuid[:256]!r} cannot be read: {_NOT_SHOWN}")
        try:
            return calls.read_memory(handle)
        except pynvml.NVMLError as error:
            raise GpuError(f"memory of card {uuid[:256]!r} cannot be read: {error}") from error

    def calls(self) -> dict[str, bool]:
        return {name: calls.has_call(name) for name in (*calls.NOT_EVERYWHERE, *LIMIT_CALLS)}

    def _handle_of(self, uuid: str) -> Any:
        """Find a card's handle, without waiting for a measurement that hangs; None if there is none."""
        return next((device.handle for device in self._devices if device.card.uuid == uuid), None)

    # --- the library --------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the library and list the cards.

        Raises:
            DriverGoneError: it worked in this process, and does not any more.
            GpuError: it cannot be started now.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            advice = _START_ADVICE.get(error.value, "look at dmesg and nvidia-smi")
            said = f"NVML ({LIBRARY}) cannot start: {str(error).rstrip('.')}"
            if self._is_gone(error):
                raise DriverGoneError(f"{said}; {ENDS}") from error
            raise GpuError(f"{said}; {advice}") from error
        self._failing_since_s = None
        self._open, self._started_s = True, self._clock()
        self._check_versions()
        self._list(self._survey())

    def _is_gone(self, error: Any) -> bool:
        """Tell whether a library that cannot be started will not be, in this process.

        The library stays loaded, also by pynvml's nvmlShutdown. With another driver's kernel module it says
        that the two do not match (NVML API Reference, NVML_ERROR_LIB_RM_VERSION_MISMATCH), as often as it is
        asked. While no module is loaded it may be the same one that comes back.
        """
        if self._versions is None:
            return False
        now_s = self._clock()
        self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        exchanged = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        return bool(exchanged or now_s - self._failing_since_s >= GONE_S)

    def _check_versions(self) -> None:
        """Compare driver and library with those that this process began with.

        Raises:
            DriverGoneError: they are others.
        """
        calls_for = {"driver": pynvml.nvmlSystemGetDriverVersion, "library": pynvml.nvmlSystemGetNVMLVersion}
        before = self._versions or {}
        now = {what: str(found) for what, call in calls_for.items() if (found := calls.call_optional(call))}
        self._versions = {**before, **now}
        for what, version in now.items():
            was = before.get(what, version)
            if version != was:
                self._stop()
                raise DriverGoneError(f"the {what} was version {was} and is {version}; {ENDS}")

    def _stop(self) -> None:
        self._driver_events.stop()
        self._shape = self._watched = ()
        # A handle is the library's that gave it.
        self._devices = tuple(replace(device, handle=None, parent=None) for device in self._devices)
        if self._open:
            self._open = False
            calls.call_optional(pynvml.nvmlShutdown)

    def _follow(self) -> None:
        """Update the list of cards; restart the library if that may bring a card back."""
        if self._open and self._lost and self._clock() >= self._started_s + self._again_s:
            self._again_s = min(AGAIN_CAP_S, 2 * self._again_s)
            self._stop()
        if not self._open:
            self._start()
            return
        shown = self._survey()
        doubtful = any(device.card.error is not None and not device.lasts for device in self._devices)
        if doubtful or tuple(entry.shape for entry in shown) != self._shape:
            self._list(shown)

    # --- the list of cards --------------------------------------------------------------------------

    def _survey(self) -> list[_Shown]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._stop()
            raise GpuError(f"NVML ({LIBRARY}) cannot count the cards: {error}; look at dmesg") from error
        return [self._read_card(number) for number in range(count)]

    def _read_card(self, number: int) -> _Shown:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        except pynvml.NVMLError as error:
            return _Shown(number, None, None, error=str(error))
        uuid = calls.call_optional(lambda: pynvml.nvmlDeviceGetUUID(handle))
        if not uuid:
            return _Shown(number, handle, None, error="the driver does not tell its UUID")
        try:
            is_mig, _ = calls.read_mig_mode(handle) or (False, False)
            instances = tuple(calls.list_mig_devices(handle)) if is_mig else None
        except pynvml.NVMLError as error:
            return _Shown(
                number, handle, uuid, error=f"its MIG instances cannot be listed: {_explain(error)}"
            )
        return _Shown(number, handle, uuid, instances)

    def _list(self, shown: Sequence[_Shown]) -> None:
        """Build the list of cards that the driver shows, and watch their events."""
        devices: dict[str, _NvmlDevice] = {}
        detected = []
        read = [(entry, self._read(entry)) for entry in shown]
        whole_cards = {
            device.card.uuid: device
            for _, mine in read
            for device in mine
            if device.handle is not None and device.handle is device.parent
        }
        links = read_links(
            {uuid: device.handle for uuid, device in whole_cards.items()},
            {uuid: device.card.bus_id for uuid, device in whole_cards.items()},
        )
        for entry, mine in read:
            linked = [
                replace(device, card=replace(device.card, links=links.get(device.card.uuid, ())))
                for device in mine
            ]
            devices.update((device.card.uuid, device) for device in linked)
            detected.append(
                DetectedCard(entry.uuid, tuple(device.card for device in linked), entry.error is None)
            )
        cards = merge_cards([device.card for device in self._devices], detected)
        # Which of the missing cards these are, nobody says.
        untold = sorted({entry.error for entry in shown if entry.uuid is None and entry.error})
        not_shown = f"{_NOT_SHOWN}: {', '.join(untold)}" if untold else _NOT_SHOWN
        troubles = {entry.uuid: entry.error for entry in shown if entry.error}
        for device in self._devices:
            trouble = troubles.get(physical_uuid(device.card), not_shown)
            stays = replace(device, handle=None, parent=None, trouble=trouble, lasts=False)
            devices.setdefault(device.card.uuid, stays)
        self._devices = tuple(replace(devices[card.uuid], card=card) for card in cards)
        self._shape = tuple(entry.shape for entry in shown)
        watched = tuple((entry.uuid, calls.handle_address(entry.handle)) for entry in shown if entry.uuid)
        if watched != self._watched:
            self._driver_events.stop()
            self._watched = watched
            self._driver_events.start([entry.handle for entry in shown if entry.uuid])

    def _read(self, entry: _Shown) -> list[_NvmlDevice]:
        """Describe what is listed for a card: itself, or its instances."""
        if entry.handle is None or entry.instances is None:
            return [
                self._with_memory(
                    entry, _NvmlDevice(self._describe(entry, entry.handle, entry.uuid), entry.handle)
                )
            ]
        if not entry.instances:
            card = self._describe(entry, entry.handle, entry.uuid, NO_INSTANCES)
            return [_NvmlDevice(card, None, entry.handle)]
        readable = [instance for instance in entry.instances if instance.error is None]
        numbers = [calls.read_gpu_instance(instance.handle) for instance in readable]
        told = iter(zip(numbers, describe_shared_memory(numbers), strict=True))
        return [
            self._read_instance(entry, instance, *next(told))
            if instance.error is None
            else self._without_answer(entry, instance)
            for instance in entry.instances
        ]

    def _read_instance(
        self, entry: _Shown, instance: MigDevice, number: int | None, reason: str | None
    ) -> _NvmlDevice:
        handle = instance.handle
        card = replace(
            self._describe(entry, handle, instance.uuid, reason),
            gpu_instance=number,
            compute_instance=calls.read_compute_instance(handle),
        )
        device = _NvmlDevice(card, None if reason else handle, entry.handle, instance.place)
        return device if reason else self._with_memory(entry, device)

    def _without_answer(self, entry: _Shown, instance: MigDevice) -> _NvmlDevice:
        """Describe an instance that the driver refuses: the one that was in its place, if one was."""
        trouble = f"the driver refuses the MIG instance in place {instance.place}: {_explain(instance.error)}"
        lasts = calls.is_refused(instance.error)
        shown = {other.uuid for other in entry.instances or ()}
        for known in self._devices:
            was_there = physical_uuid(known.card) == entry.uuid and known.place == instance.place
            if was_there and known.card.error is None and known.card.uuid not in shown:
                return replace(known, handle=None, parent=entry.handle, trouble=trouble, lasts=lasts)
        uuid = f"{INSTANCE_PREFIX}unreadable-{entry.number}-{instance.place}"
        card = self._describe(entry, entry.handle, uuid, trouble)
        return _NvmlDevice(card, None, entry.handle, instance.place, lasts=lasts)

    def _with_memory(self, entry: _Shown, device: _NvmlDevice) -> _NvmlDevice:
        """Read a card's size. Where that fails a known size stays as it was; the samples show the fault."""
        device = replace(device, parent=entry.handle)
        if device.card.error is not None:
            return device
        try:
            info = calls.read_memory(device.handle)
        except pynvml.NVMLError as error:
            lasts = calls.is_refused(error) or calls.is_without_memory(error)
            reason = f"memory cannot be read: {_explain(error)}"
        else:
            if info.total > 0:
                total_mib, reserved_mib = info.total // MIB, -(-info.reserved // MIB)
                card = replace(device.card, total_mib=total_mib, reserved_mib=reserved_mib)
                return replace(device, card=card)
            reason, lasts = f"memory cannot be read: {_NONE_OF_ITS_OWN}", True
        for known in self._devices:
            if known.card.uuid == device.card.uuid and known.card.error is None:
                return replace(device, card=known.card)
        return replace(device, card=replace(device.card, error=reason), lasts=lasts)

    def _describe(self, entry: _Shown, handle: Any, uuid: str | None, error: str | None = None) -> GpuCard:
        """Describe a card without its memory."""
        parent, quietly = entry.handle, calls.call_optional
        bus_id = minor = numa = model = memory_node = number = None
        if parent is not None:
            bus_id = quietly(lambda: sysfs_bus_id(str(pynvml.nvmlDeviceGetPciInfo(parent).busId)))
            minor = quietly(lambda: pynvml.nvmlDeviceGetMinorNumber(parent))
            numa = self._numa(parent, bus_id or "")
            memory_node = calls.find_memory_node(parent, self._numa_nodes)
            model = quietly(lambda: pynvml.nvmlDeviceGetName(handle))
            number = quietly(lambda: pynvml.nvmlDeviceGetArchitecture(parent))
        return GpuCard(
            index=entry.number,
            uuid=uuid or f"GPU-unreadable-{entry.number}",
            model=model or "",
            total_mib=0,
            reserved_mib=0,
            numa=numa,
            bus_id=bus_id or "",
            minor=-1 if minor is None else minor,
            error=error or entry.error,
            parent=entry.uuid if entry.instances else None,
            memory_node=memory_node,
            architecture=ARCHITECTURES.get(number, ""),
        )

    def _numa(self, handle: Any, bus_id: str) -> int | None:
        """Find the card's NUMA node: the driver's word, else the kernel's; None unless it is exactly one.

        nvmlDeviceGetNumaNodeId is of no use here: see `nvml_calls.find_memory_node`.
        """
        scope = pynvml.NVML_AFFINITY_SCOPE_NODE
        words = calls.call_optional(
            lambda: list(pynvml.nvmlDeviceGetMemoryAffinity(handle, _AFFINITY_WORDS, scope))
        )
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

    # --- measurements and news ----------------------------------------------------------------------

    def _sample(self, device: _NvmlDevice, before: Mapping[str, Mapping[str, int]]) -> GpuSample:
        uuid, card = device.card.uuid, physical_uuid(device.card)
        if device.card.error is not None or device.trouble is not None or device.handle is None:
            # A card in MIG mode without instances is all there: no start of the library brings more.
            passing = device.trouble is not None or device.handle is not None or device.parent is None
            self._lost |= passing and not device.lasts
            return GpuSample(uuid, 0, None, error=device.card.error or device.trouble or _NOT_SHOWN)
        try:
            used_mib = -(-calls.read_memory(device.handle).used_by_processes // MIB)
        except pynvml.NVMLError as error:
            self._lost |= not calls.is_refused(error)
            return GpuSample(uuid, 0, None, error=f"memory cannot be read: {_explain(error)}")
        errors = self._memory_errors.get(card)
        if errors is None:
            errors = calls.count_memory_errors(device.parent)
            self._memory_errors = {**self._memory_errors, card: errors}
        trouble = calls.find_recovery_action(device.parent) or calls.find_memory_fault(
            errors, before.get(card, {})
        )
        processes = calls.list_processes(device.handle)
        if not processes and not self._sees_processes:
            processes = None
        if processes:
            processes = self._add_compute(device, processes)
        keeps_pages = device.card.memory_node is not None
        # Asked once for all instances of a card.
        telemetry = self._telemetry.get(card)
        if telemetry is None:
            telemetry = self._telemetry[card] = read_telemetry(device.parent)
        return GpuSample(uuid, used_mib, processes, trouble, errors, keeps_pages, telemetry)

    def _add_compute(self, device: _NvmlDevice, processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
        """Add how busy each process kept the card, where the driver tells it."""
        uuid = device.card.uuid
        try:
            busy, seen_us = calls.read_process_compute(device.handle, self._compute_seen_us.get(uuid, 0))
        except pynvml.NVMLError as error:
            if uuid not in self._without_compute:
                self._without_compute.add(uuid)
                log.info("card does not tell what compute its processes use", card=uuid, error=str(error))
            return processes
        self._compute_seen_us[uuid] = seen_us
        return tuple(replace(process, compute_percent=busy.get(process.pid, 0)) for process in processes)

    def _report(self, event: Any) -> None:
        """Queue an XID for the cards it concerns: all of them when the driver does not say which."""
        code, devices = int(event.eventData), self._devices
        parent_uuid = calls.call_optional(lambda: pynvml.nvmlDeviceGetUUID(event.device))
        at = calls.handle_address(event.device)
        concerned = [
            device
            for device in devices
            if (at is not None and at == calls.handle_address(device.parent))
            or (parent_uuid and parent_uuid == physical_uuid(device.card))
        ]
        instance = getattr(event, "gpuInstanceId", _NO_INSTANCE)
        narrowed = [device for device in concerned if device.card.gpu_instance in (None, instance)]
        for device in narrowed or concerned or devices:
            self._events.put(fault_event(device.card.uuid, code, self._ignored_xids, NVIDIA))


def _explain(error: Any) -> str:
    """Say what the driver answered, with what it takes where a right is missing."""
    if calls.is_refused(error):
        return f"{error}{_REFUSED}"
    return f"{error}: {_NONE_OF_ITS_OWN}" if calls.is_without_memory(error) else str(error)
