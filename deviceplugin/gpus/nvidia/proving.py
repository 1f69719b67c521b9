"""Asks NVIDIA's driver what `gpupack node --check --prove` needs beyond the daemon.

Source: NVML API Reference, "Event Handling Methods" and "Multi Instance GPU Management".
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pynvml

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.nvidia.cuda_process import CudaProcess
from deviceplugin.gpus.nvidia.events import KINDS
from deviceplugin.gpus.nvidia.nvml_calls import read_mig_mode
from deviceplugin.gpus.nvidia.source import NvmlGpus


class NvmlProvable:
    """`Provable` by NVML and the CUDA driver."""

    def __init__(self, source: NvmlGpus) -> None:
        self._source = source

    def memory_info(self, uuid: str) -> MemoryInfo:
        return self._source.memory_info(uuid)

    def event_kinds(self, uuid: str) -> Mapping[str, str]:
        """Register for each kind of event by itself; see `Provable.event_kinds`."""
        problems = {}
        for name, kind in KINDS.items():
            try:
                events = pynvml.nvmlEventSetCreate()
                try:
                    pynvml.nvmlDeviceRegisterEvents(_handle(uuid), kind, events)
                finally:
                    pynvml.nvmlEventSetFree(events)
            except (pynvml.NVMLError, GpuError) as error:
                problems[name] = str(error)
            else:
                problems[name] = ""
        return problems

    def mig_mode(self, uuid: str) -> tuple[bool, bool] | None:
        try:
            return read_mig_mode(_handle(uuid))
        except pynvml.NVMLError as error:
            raise GpuError(f"MIG mode of card {uuid} cannot be read: {error}") from error

    def create_instance(self, uuid: str) -> Callable[[], None]:
        """Create a GPU instance of one slice with one compute instance; see `Provable.create_instance`."""
        handle = _handle(uuid)
        try:
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(
                handle, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE
            )
            instance = pynvml.nvmlDeviceCreateGpuInstance(handle, profile.id)
        except pynvml.NVMLError as error:
            raise GpuError(f"no GPU instance can be created on card {uuid}: {error}") from error
        try:
            part = _create_part(instance)
        except BaseException as error:
            _destroy(pynvml.nvmlGpuInstanceDestroy, instance)
            if isinstance(error, pynvml.NVMLError):
                raise GpuError(f"no compute instance can be created on card {uuid}: {error}") from error
            raise

        def undo() -> None:
            _destroy(pynvml.nvmlComputeInstanceDestroy, part)
            _destroy(pynvml.nvmlGpuInstanceDestroy, instance)

        return undo

    def memory_user(self, uuid: str, cgroup: Path) -> CudaProcess:
        return CudaProcess(uuid, cgroup)


_SHARED: Final = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


def _create_part(instance: Any) -> Any:
    profile = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, _SHARED
    )
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)


def _destroy(call: Callable[[Any], None], what: Any) -> None:
    try:
        call(what)
    except pynvml.NVMLError as error:
        raise GpuError(f"a MIG instance cannot be destroyed: {error}") from error


def _handle(uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise GpuError(f"card {uuid[:256]!r} cannot be found: {error}") from error
