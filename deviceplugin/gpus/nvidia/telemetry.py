"""Reads telemetry from NVML. Every call is optional: drivers and cards differ in what they report."""

import math
from collections.abc import Callable
from typing import Any

import pynvml

from deviceplugin.gpus.api.telemetry import CardTelemetry, name_throttle_reasons
from deviceplugin.gpus.nvidia.nvml_calls import call_optional

_MILLI = 1000


def read_telemetry(handle: Any) -> CardTelemetry:
    """Ask a whole card what it does.

    NVML tells no utilization of a card in MIG mode (NVML API Reference, nvmlDeviceGetUtilizationRates), and
    drivers before 535 name the clocks event reasons throttle reasons.
    """
    rates = call_optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    mask = call_optional(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if mask is None:
        mask = call_optional(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return CardTelemetry(
        utilization_percent=_read_number(lambda: rates.gpu if rates is not None else None, most=100),
        memory_utilization_percent=_read_number(
            lambda: rates.memory if rates is not None else None, most=100
        ),
        temperature_c=_read_number(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
        power_w=_read_number(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLI),
        power_limit_w=_read_number(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / _MILLI),
        sm_clock_mhz=_read_number(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        memory_clock_mhz=_read_number(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        throttle_reasons=None if mask is None else name_throttle_reasons(int(mask)),
    )


def _read_number(call: Callable[[], Any], most: float = math.inf) -> float | None:
    """Read one value; None if the driver does not report it, or reports an impossible one."""
    value = call_optional(call)
    return None if value is None or not 0 <= value <= most else float(value)
