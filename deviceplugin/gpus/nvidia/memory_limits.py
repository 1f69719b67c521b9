"""Memory limits that NVIDIA's driver holds on a cgroup, from r615 on; documented, not measured here.

The driver takes bytes, the cgroup's full path under /sys/fs/cgroup, and a soft limit that is not needed: 0.
Older drivers lack the calls, MIG instances and cgroup v1 are not supported: then a card is accounted.

Sources: NVML API Reference, `nvmlDeviceSetMemoryLimits_v1`, `nvmlDeviceGetMemoryLimits_v1` and their structs;
NVIDIA's "MPS v3 Memory Partitioning" (docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html).

- A read answers NOT_FOUND where there is no limit for this card and cgroup (reference of the Get call). Other
  backends answer NOT_SUPPORTED there. Both say that there is none, not that none can be set.
- With the kernel's dmem controller, setting a limit on a cgroup without dmem files answers NOT_FOUND too.
  A read there tells the limit of a cgroup above ("Setting on a leaf versus a parent").
- Setting limits is for the administrator, reading them for everybody (reference of the two calls). For
  NVIDIA's kernel module that is any process with CAP_SYS_ADMIN (open-gpu-kernel-modules, `NV_IS_SUSER` in
  kernel-open/common/inc/nv-linux.h). So only a limit that was set and read back proves that limits hold. A
  limit is tried beside the pods' cgroups: with the dmem controller what is above a cgroup decides as well.
- A soft limit is added to `dmem.min` of every cgroup above, and stays there when its cgroup is deleted
  ("Ancestor reservation propagation"). So it is 0, also where the toolkit sets it. The toolkit's hook takes
  any whole number of MiB up to the limit (nvidia-container-toolkit, cmd/nvidia-cdi-hook, cuda-memory-limits).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pynvml

from allocator.names import MIB
from deviceplugin.errors import LimitError, LimitFault
from deviceplugin.gpus.api.memory_limits import (
    DMEM_FILE,
    HELD,
    NO_FILES,
    NOT_ON_INSTANCES,
    LimitReading,
    LimitSupport,
)
from deviceplugin.gpus.nvidia.mig import INSTANCE_PREFIX
from deviceplugin.gpus.nvidia.nvml_calls import read_driver_version

SINCE: Final = "driver 615 (CUDA 13.4) or later"
BINDINGS_SINCE: Final = "nvidia-ml-py 13.615 or later"
CGROUP_V2: Final = "cgroup v2 (systemd.unified_cgroup_hierarchy=1)"
CALLS: Final = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")

REQUEST_ENV: Final = "NVIDIA_GPU_MEMORY_REQUEST"
LIMIT_ENV: Final = "NVIDIA_GPU_MEMORY_LIMIT"

RIGHT: Final = "CAP_SYS_ADMIN (the component memory-limits, docs/limits.md)"
PROBE: Final = "gpupack-limit-probe"
PROBE_MIB: Final = 1024
"""The limit that is tried: a smaller one might be refused for being small."""

_UNLIMITED: Final = (1 << 64) - 1

_ABSENT: Final = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
_UNSET: Final = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED})
_KINDS: Final[Mapping[int, LimitFault]] = {
    _ABSENT: "unsupported",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
    pynvml.NVML_ERROR_NO_PERMISSION: "forbidden",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "refused",
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: "refused",
}


class NvmlLimits:
    """`MemoryLimits` by the NVIDIA driver.

    Args:
        cgroup_root: where the host's cgroups are mounted, here and for the driver.
        probe_parent: finds the cgroup in which a limit is tried; by default the root.
    """

    def __init__(
        self,
        handle_of: Callable[[str], Any],
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        probe_parent: Callable[[], Path] | None = None,
    ) -> None:
        self._handle_of = handle_of
        self._root = cgroup_root
        self._probe_parent = probe_parent or (lambda: cgroup_root)
        self._known: dict[str, LimitSupport] = {}

    def support(self, uuid: str) -> LimitSupport:
        """Tell whether the driver can hold limits on a card; what may pass is asked again each time."""
        known = self._known.get(uuid)
        if known is None:
            known, lasting = self._find_out(uuid)
            if lasting:
                self._known[uuid] = known
        return known

    def set(self, uuid: str, cgroup: Path, hard_mib: int) -> None:
        """Set the hard limit, and no soft one; see `MemoryLimits.set`."""
        if hard_mib <= 0:
            raise LimitError("refused", f"limit of {hard_mib} MiB on card {uuid}; allowed: 1 MiB or more")
        self._call(CALLS[0], uuid, cgroup, _limit(cgroup, hard_mib * MIB), f"limit of {hard_mib} MiB")

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        found = _reading(cgroup)
        self._call(CALLS[1], uuid, cgroup, found, "the limit")
        return LimitReading(
            hard_mib=_read_hard_mib(found),
            used_mib=-(-int(found.currentUsed) // MIB),
            soft_mib=-(-int(found.softLimit) // MIB),
        )

    def clear(self, uuid: str, cgroup: Path) -> None:
        """Set the limits that mean none, as the reference of `nvmlSetMemoryLimits_v1_t` says."""
        self._call(CALLS[0], uuid, cgroup, _limit(cgroup, _UNLIMITED), "no limit")

    def container_envs(self, hard_mib: int) -> Mapping[str, str]:
        """Return both variables, because the container toolkit's hook requires both; 0 is no soft limit."""
        return {REQUEST_ENV: "0", LIMIT_ENV: str(hard_mib)}

    def _call(self, name: str, uuid: str, cgroup: Path, argument: Any, what: str) -> None:
        where = f"{what} on card {uuid} for cgroup {cgroup}"
        handle = self._handle_of(uuid)
        if handle is None:
            raise LimitError("failed", f"{where}: the driver does not show the card now")
        try:
            getattr(pynvml, name)(handle, argument)
        except AttributeError as error:
            raise LimitError("unsupported", f"{where}: it takes {BINDINGS_SINCE}") from error
        except pynvml.NVMLError as error:
            if not cgroup.is_dir():
                raise LimitError("gone", f"{where}: the cgroup is gone") from error
            if name == CALLS[1] and error.value in _UNSET:
                raise LimitError("unset", f"{where}: there is none: {error}") from error
            kind = _KINDS.get(error.value, "failed")
            if kind == "unsupported":
                self._known[uuid] = LimitSupport(False, f"the driver refuses limits: {error}", SINCE)
            elif kind == "forbidden" and name == CALLS[0]:
                self._known[uuid] = _forbidden(error)
            lacks = f"; it {NO_FILES}" if name == CALLS[0] and _lacks_files(error, cgroup) else ""
            raise LimitError(kind, f"{where}: {name}: {error}{lacks}") from error

    def _find_out(self, uuid: str) -> tuple[LimitSupport, bool]:
        """Find out without touching other cgroups; return also whether the answer is final."""
        if uuid.startswith(INSTANCE_PREFIX):
            return NOT_ON_INSTANCES, True
        if not all(hasattr(pynvml, name) for name in (*CALLS, "c_nvmlSetMemoryLimits_v1_t")):
            return LimitSupport(
                False, "the Python bindings lack the call for memory limits", BINDINGS_SINCE
            ), True
        handle = self._handle_of(uuid)
        if handle is None:
            return LimitSupport(False, "the driver does not show the card now"), False
        if not (self._root / "cgroup.controllers").exists():
            return self._without_v2(handle), True
        return self._try(handle)

    def _try(self, handle: Any) -> tuple[LimitSupport, bool]:
        """Judge by a limit that is tried."""
        try:
            stood_mib = self._set_probe(handle)
        except OSError as error:
            return LimitSupport(False, f"whether the driver limits memory cannot be tried: {error}"), False
        except pynvml.NVMLError as error:
            support, lasting = _classify_error(error)
            lacks = f"; it {NO_FILES}" if error.value == pynvml.NVML_ERROR_NOT_FOUND else ""
            return replace(support, reason=support.reason + lacks), lasting
        if stood_mib is None:
            return LimitSupport(
                False, f"the driver took a limit of {PROBE_MIB} MiB, and there was none"
            ), False
        return HELD, True

    def _without_v2(self, handle: Any) -> LimitSupport:
        """Say what is missing on a node with cgroup v1: the driver comes first, it is the longer way."""
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, _reading(self._root))
        except pynvml.NVMLError as error:
            if error.value == _ABSENT:
                return _classify_error(error)[0]
        reason = f"cgroup v1 at {self._root}: the driver holds limits on cgroup v2 only"
        return LimitSupport(False, reason, CGROUP_V2)

    def _set_probe(self, handle: Any) -> int | None:
        """Set a limit on a cgroup of our own, which takes it along; return the MiB that then stood there."""
        probe = self._probe_parent() / PROBE
        probe.mkdir(exist_ok=True)
        try:
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, _limit(probe, PROBE_MIB * MIB))
            found = _reading(probe)
            try:
                pynvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
            except pynvml.NVMLError as error:
                if error.value not in _UNSET:
                    raise
                return None
            return _read_hard_mib(found)
        finally:
            with suppress(OSError):  # another card's question may have removed it
                probe.rmdir()


def _read_hard_mib(found: Any) -> int | None:
    hard = int(found.hardLimit)
    return None if hard == _UNLIMITED else hard // MIB


def _lacks_files(error: Any, cgroup: Path) -> bool:
    return error.value == pynvml.NVML_ERROR_NOT_FOUND and not (cgroup / DMEM_FILE).exists()


def _limit(cgroup: Path, hard_bytes: int) -> Any:
    return pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=str(cgroup).encode(), softLimit=0, hardLimit=hard_bytes
    )


def _reading(cgroup: Path) -> Any:
    return pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())


def _classify_error(error: Any) -> tuple[LimitSupport, bool]:
    """Tell what an error of the driver says of its limits, and whether that is for good."""
    if error.value == _ABSENT:
        return LimitSupport(
            False, f"driver {read_driver_version()} has no call for memory limits", SINCE
        ), True
    if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return LimitSupport(False, f"driver {read_driver_version()} does not hold memory limits", SINCE), True
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return _forbidden(error), True
    return LimitSupport(False, f"the driver does not say whether it limits memory: {error}"), False


def _forbidden(error: Any) -> LimitSupport:
    """Say that this process lacks the right, which is final: only a new process can get it."""
    return LimitSupport(False, f"the driver refuses to limit memory: {error}", RIGHT, is_forbidden=True)
