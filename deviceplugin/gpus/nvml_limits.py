"""Memory limits that NVIDIA's driver holds on a cgroup, from r615 on; documented, not measured here.

The driver takes bytes, the cgroup's full path under /sys/fs/cgroup, and a soft limit that is not needed: 0.
Older drivers lack the calls, MIG instances and cgroup v1 are not supported: then a card is accounted.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pynvml

from deviceplugin.errors import LimitError, LimitFault
from deviceplugin.gpus.limits import HELD, LimitReading, Support

SINCE: Final = "driver 615 (CUDA 13.4) or later"
BINDINGS_SINCE: Final = "nvidia-ml-py 13.615 or later"
CGROUP_V2: Final = "cgroup v2 (systemd.unified_cgroup_hierarchy=1)"
CALLS: Final = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")

REQUEST_ENV: Final = "NVIDIA_GPU_MEMORY_REQUEST"
LIMIT_ENV: Final = "NVIDIA_GPU_MEMORY_LIMIT"

_MIB: Final = 1 << 20
_UNLIMITED: Final = (1 << 64) - 1

_ABSENT: Final = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
_UNSUPPORTED: Final = frozenset({_ABSENT, pynvml.NVML_ERROR_NOT_SUPPORTED})
# What a driver that has the calls may say of the cgroup that support is tried with.
_ABOUT_THE_CGROUP: Final = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND})
_KINDS: Final[Mapping[int, LimitFault]] = {
    _ABSENT: "unsupported",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "refused",
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: "refused",
}


class NvmlLimits:
    """`MemoryLimits` by the NVIDIA driver.

    Args:
        handle_of: the NVML handle of a card by UUID, None where the driver gave none.
        cgroup_root: where the host's cgroups are mounted, here and for the driver.
    """

    def __init__(self, handle_of: Callable[[str], Any], cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._handle_of = handle_of
        self._root = cgroup_root
        self._known: dict[str, Support] = {}

    def support(self, uuid: str) -> Support:
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
            raise LimitError("refused", f"limit of {hard_mib} MiB on card {uuid}: allowed are 1 MiB or more")
        wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=str(cgroup).encode(), softLimit=0, hardLimit=hard_mib * _MIB
        )
        self._call(CALLS[0], uuid, cgroup, wanted, f"limit of {hard_mib} MiB")

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        """Read limit and use; see `MemoryLimits.read`."""
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())
        self._call(CALLS[1], uuid, cgroup, found, "the limit")
        hard = int(found.hardLimit)
        return LimitReading(
            hard_mib=None if hard == _UNLIMITED else hard // _MIB, used_mib=-(-int(found.currentUsed) // _MIB)
        )

    def container_envs(self, hard_mib: int) -> Mapping[str, str]:
        """Both variables of the container toolkit's hook, which wants whole MiB and both of them."""
        return {REQUEST_ENV: str(hard_mib), LIMIT_ENV: str(hard_mib)}

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
            kind = _KINDS.get(error.value, "failed")
            if kind == "unsupported":
                self._known[uuid] = Support(False, f"the driver refuses limits: {error}", SINCE)
            raise LimitError(kind, f"{where}: {name}: {error}") from error

    def _find_out(self, uuid: str) -> tuple[Support, bool]:
        """Find out by a call that changes nothing; tells also whether the answer is for good."""
        if uuid.startswith("MIG-"):
            return Support(False, "the driver holds no limits on MIG instances"), True
        if not all(hasattr(pynvml, name) for name in (*CALLS, "c_nvmlSetMemoryLimits_v1_t")):
            return Support(False, "the Python bindings lack the call for memory limits", BINDINGS_SINCE), True
        support, lasting = self._ask(self._handle_of(uuid))
        if support.held and not (self._root / "cgroup.controllers").exists():
            reason = f"cgroup v1 at {self._root}: the driver holds limits on cgroup v2 only"
            return Support(False, reason, CGROUP_V2), True
        return support, lasting

    def _ask(self, handle: Any) -> tuple[Support, bool]:
        if handle is None:
            return Support(False, "the driver does not show the card now"), False
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(
                handle, pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(self._root).encode())
            )
        except pynvml.NVMLError as error:
            if error.value in _ABOUT_THE_CGROUP:
                return HELD, True
            if error.value in _UNSUPPORTED:
                lacks = "has no call for" if error.value == _ABSENT else "does not hold"
                return Support(False, f"driver {_driver_version()} {lacks} memory limits", SINCE), True
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return Support(False, f"the driver refuses to limit memory: {error}; run as root"), False
            return Support(False, f"the driver does not say whether it limits memory: {error}"), False
        return HELD, True


def _driver_version() -> str:
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "of unknown version"
