"""Asks NVML about one card, and reads its answers; nothing here keeps anything.

Memory comes from the v2 call, which tells the driver's reserved part apart (`memory_info`). Drivers without
it give v1: then reserved is unknown (0) and `used` includes it, so that an idle card looks a little fuller.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pynvml

from allocator.names import MIB
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.api.source import GpuProcess

_V2_MISSING: Final = (
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)
NOT_EVERYWHERE: Final = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlEventSetWait_v2",
)
"""Calls that older drivers lack."""

# Answers that say for certain that a card has no such thing; all others may pass.
_HAS_NONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
# What the driver may ask for before a card can work again; draining peer-to-peer work (3) is not on the list.
_RECOVERY: Final = {
    1: "a GPU reset",
    2: "a reboot of the node",
    4: "draining and a GPU reset",
    6: "a reset of the bus",
    7: "a reboot of the system",
}

_LAST_NUMA_NODE: Final = 1023

_FULLY_BUSY: Final = 100
"""Percent; drivers were seen to tell more of processes that have just begun."""

_ROWS: Final = (
    "rows_remapped_corrected",
    "rows_remapped_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
)


def has_call(name: str) -> bool:
    """Tell whether the driver's library has a call, without making it."""
    try:
        pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - a call might change something
    except pynvml.NVMLError:
        return False
    return True


def call_optional(call: Callable[[], Any]) -> Any:
    """Ask for something the product can do without: None if the driver fails."""
    try:
        return call()
    except pynvml.NVMLError:
        return None


def read_driver_version() -> str:
    return str(call_optional(pynvml.nvmlSystemGetDriverVersion) or "of unknown version")


def handle_address(handle: Any) -> int | None:
    """Return the address of a handle, which identifies it; None for a null pointer."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return None


def read_memory(handle: Any) -> MemoryInfo:
    """Read what a card says of its memory.

    Raises:
        NVMLError: the card does not say.
    """
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _V2_MISSING:
            raise
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return MemoryInfo(info.total, 0, info.free, info.used)
    return MemoryInfo(info.total, info.reserved, info.free, info.used)


def read_mig_mode(handle: Any) -> tuple[bool, bool] | None:
    """Tell whether a card is in MIG mode, and will be after a reset; None if it has none.

    Raises:
        NVMLError: the card does not say, for the moment.
    """
    try:
        now, pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        if error.value in _HAS_NONE:
            return None
        raise
    return now == pynvml.NVML_DEVICE_MIG_ENABLE, pending == pynvml.NVML_DEVICE_MIG_ENABLE


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG instance in one of its card's places, with NVML's error where the driver refuses it."""

    place: int
    handle: Any
    uuid: str | None
    error: Any = None


def list_mig_devices(handle: Any) -> list[MigDevice]:
    """List a card's MIG instances, those too of which the driver refuses handle or UUID.

    An instance made after this process' container is refused with NO_PERMISSION, unless the container may
    access all of them. So a refusal is trouble of that instance, unless nothing of the card can be had. Seen
    in k8s-device-plugin, issues 399 and 992, and gpu-feature-discovery, issue 6.

    Raises:
        NVMLError: the card does not say, for the moment.
    """
    devices = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        instance = None
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            devices.append(MigDevice(place, instance, pynvml.nvmlDeviceGetUUID(instance)))
        except pynvml.NVMLError as error:
            if instance is not None or error.value not in _HAS_NONE:
                devices.append(MigDevice(place, instance, None, error))
    if devices and all(device.error is not None for device in devices):
        raise devices[0].error
    return devices


def is_refused(error: Any) -> bool:
    """Tell whether an error is for want of a right: the same process gets the same answer again."""
    return bool(error.value == pynvml.NVML_ERROR_NO_PERMISSION)


def is_without_memory(error: Any) -> bool:
    """Return True if this error for a card's memory is permanent.

    NVIDIA's DGX Spark User Guide, "Known Issues": memory of a GPU that shares the system's is not supported.
    """
    return bool(error.value == pynvml.NVML_ERROR_NOT_SUPPORTED)


def read_gpu_instance(handle: Any) -> int | None:
    number = call_optional(lambda: pynvml.nvmlDeviceGetGpuInstanceId(handle))
    return None if number is None else int(number)


def read_compute_instance(handle: Any) -> int | None:
    number = call_optional(lambda: pynvml.nvmlDeviceGetComputeInstanceId(handle))
    return None if number is None else int(number)


def find_memory_node(handle: Any, nodes: Path) -> int | None:
    """Find the NUMA node that a card's own memory is; None if the driver manages it.

    GPU memory of GH200, GB200 and GB300 is a node of the system unless the driver manages it. See NVIDIA's
    "Understanding Memory Management on Hardware-Coherent Platforms", NUMA and CDMM. The call that names the
    node is for such platforms only (NVML API Reference, nvmlDeviceGetNumaNodeId). On others libraries were
    seen to name the card's nearest node. A node of GPU memory has no CPUs. Where the kernel does not show
    that, the card's addressing mode decides.

    Args:
        nodes: where the kernel shows NUMA nodes.
    """
    node = call_optional(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle))
    if node is None or not 0 <= int(node) <= _LAST_NUMA_NODE:
        return None
    try:
        has_cpus = bool((nodes / f"node{int(node)}" / "cpulist").read_text("ascii", "replace").strip())
    except OSError:
        mode = call_optional(lambda: pynvml.nvmlDeviceGetAddressingMode(handle))
        has_cpus = mode != pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS
    return None if has_cpus else int(node)


def list_processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    """List the processes on the card, one entry a pid; None if the driver or the pid namespace hides them."""
    compute = _process_list(handle, "Compute")
    if compute is None:
        return None
    told_mib: dict[int, list[int]] = {}
    for entry in (
        *compute,
        *(_process_list(handle, "Graphics") or ()),
        *(_process_list(handle, "MPSCompute") or ()),
    ):
        if entry.pid == 0:
            return None
        told = told_mib.setdefault(entry.pid, [])
        if entry.usedGpuMemory is not None:
            told.append(-(-entry.usedGpuMemory // MIB))
    return tuple(GpuProcess(pid, max(told, default=None)) for pid, told in sorted(told_mib.items()))


def read_process_compute(handle: Any, since_us: int) -> tuple[Mapping[int, int], int]:
    """Read how busy each process kept a card, in percent by pid, and the driver's time of the newest sample.

    Args:
        since_us: answer of the last call, 0 for none: what was sampled before does not count.

    Raises:
        NVMLError: the card does not say.
    """
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:
            return {}, since_us
        raise
    by_pid: dict[int, list[int]] = {}
    for sample in samples:
        if sample.timeStamp > since_us and sample.smUtil <= _FULLY_BUSY:
            by_pid.setdefault(sample.pid, []).append(sample.smUtil)
    newest_us = max((sample.timeStamp for sample in samples), default=since_us)
    return {pid: round(sum(found) / len(found)) for pid, found in by_pid.items()}, newest_us


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


def find_recovery_action(handle: Any) -> str | None:
    """Return the recovery action that the driver asks for; None on drivers without that call."""
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = call_optional(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [field]))
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = _RECOVERY.get(values[0].value.uiVal)
    return f"the driver asks for {action}" if action else None


def count_memory_errors(handle: Any) -> Mapping[str, int]:
    """Count a card's memory errors by kind, without kinds that it does not report.

    Ampere and later remap rows of memory, earlier cards retire pages. Either waits for a reset of the card.
    """
    counts: dict[str, int] = {}
    uncorrected, since_boot = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    ecc = call_optional(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, since_boot))
    if ecc is not None:
        counts["ecc_uncorrected"] = int(ecc)
    rows = call_optional(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    if rows is not None:
        counts.update(zip(_ROWS, (int(count) for count in rows), strict=True))
    for kind, cause in (
        ("pages_retired_corrected", pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
        ("pages_retired_uncorrected", pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
    ):
        pages = call_optional(lambda cause=cause: pynvml.nvmlDeviceGetRetiredPages(handle, cause))  # type: ignore[misc]
        if pages is not None:
            counts[kind] = len(pages)
    pending = call_optional(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    if pending is not None:
        counts["page_retirement_pending"] = int(pending)
    return counts


def find_memory_fault(now: Mapping[str, int], before: Mapping[str, int]) -> str | None:
    """Say why a card's memory makes it unfit for pods; None if it is fit.

    New uncorrectable ECC errors are trouble once, at the look that finds them. A remapping that failed stays:
    the card has no spare rows left there. A remapping that waits for a reset does not: the bad row is out of
    use.
    """
    troubles = []
    errors, known = now.get("ecc_uncorrected"), before.get("ecc_uncorrected")
    if errors is not None and known is not None and errors > known:
        troubles.append(f"uncorrectable ECC errors: {errors}, {known} at the last look")
    if now.get("row_remap_failed"):
        troubles.append("memory row remapping failed: the card is to be replaced")
    return "; ".join(troubles) or None
