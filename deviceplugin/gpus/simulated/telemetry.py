"""Telemetry of simulated cards: values that follow from the processes on a card and the time; pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.api.telemetry import IDLE, CardTelemetry

WAVE_S: Final = 60.0
"""Period in which the load of a process goes up and down."""

_IDLE_C: Final = 32.0
_BUSY_C: Final = 45.0
"""By how much a card at full load is warmer."""

_CAPPED_PERCENT: Final = 95.0
"""Utilization from which on the power limit slows a card down."""


@dataclass(frozen=True, slots=True)
class _Generation:
    """What cards of one architecture draw, and how fast they run."""

    idle_w: float
    limit_w: float
    sm_mhz: float
    memory_mhz: float


_IDLE_MHZ: Final = 210.0
_GENERATIONS: Final = {
    "turing": _Generation(10, 70, 1590, 5001),
    "ampere": _Generation(45, 400, 1410, 1215),
    "ada_lovelace": _Generation(25, 350, 2520, 9001),
    "hopper": _Generation(75, 700, 1980, 2619),
}
_ANY: Final = _Generation(30, 300, 1500, 1500)


def simulate_telemetry(
    architecture: str, processes: Iterable[GpuProcess], now_s: float, *, partitioned: bool = False
) -> CardTelemetry:
    """Say what a card does: each process keeps it busy by 40 to 90 %, by its number, in slow waves."""
    kind = _GENERATIONS.get(architecture, _ANY)
    loads = [
        (_compute_load_percent(process.pid, now_s), _compute_share(process.pid, 2))
        for process in processes
        if process.used_mib != 0
    ]
    busy = min(100.0, sum(load for load, _ in loads))
    memory = min(100.0, sum(load * (0.35 + 0.3 * share) for load, share in loads))
    capped = busy >= _CAPPED_PERCENT
    reasons = ("sw_power_cap",) if capped else () if loads else (IDLE,)
    telemetry = CardTelemetry(
        utilization_percent=float(round(busy)),
        memory_utilization_percent=float(round(memory)),
        temperature_c=float(round(_IDLE_C + _BUSY_C * busy / 100)),
        power_w=round(kind.idle_w + (kind.limit_w - kind.idle_w) * busy / 100, 1),
        power_limit_w=kind.limit_w,
        sm_clock_mhz=_IDLE_MHZ if not loads else float(round(kind.sm_mhz * (0.93 if capped else 1.0))),
        memory_clock_mhz=kind.memory_mhz,
        throttle_reasons=reasons,
    )
    if partitioned:
        return replace(telemetry, utilization_percent=None, memory_utilization_percent=None)
    return telemetry


def _compute_load_percent(pid: int, now_s: float) -> float:
    turns = now_s / WAVE_S + _compute_share(pid, 1)
    return 40.0 + 42.0 * _compute_share(pid, 0) + 8.0 * math.sin(2 * math.pi * turns)


def _compute_share(pid: int, turn: int) -> float:
    """Spread numbers of processes over 0 to 1, another way at each turn (multiplicative hashing)."""
    return (pid + turn * 7919) * 2654435761 % (1 << 32) / (1 << 32)
