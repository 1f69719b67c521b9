"""Telemetry of a card at one moment: utilization, temperature, clocks, as far as reported; pure."""

from dataclasses import dataclass, fields
from typing import Final

IDLE: Final = "gpu_idle"
"""The reason of a card that has nothing to do."""

THROTTLE_REASONS: Final = (
    IDLE,
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
"""NVML's clocks event reasons, by the bit of its mask."""

UNKNOWN_REASON: Final = "unknown"
"""A bit that this release has no name for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTelemetry:
    """A physical card's activity; values that its driver does not report are None, never 0.

    Attributes:
        utilization_percent: share of the last moments in which a kernel ran on the card.
        memory_utilization_percent: share of the last moments in which its memory was read or written.
        throttle_reasons: why the clocks are not higher, of `THROTTLE_REASONS`; empty if nothing is
            in their way.
    """

    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, float | list[str]]:
        """Return the known values by name, without those that the driver does not report."""
        found: dict[str, float | list[str]] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                found[field.name] = list(value) if isinstance(value, tuple) else value
        return found


NO_TELEMETRY: Final = CardTelemetry()


def name_throttle_reasons(mask: int) -> tuple[str, ...]:
    """Name the bits of NVML's mask of clocks event reasons."""
    names = [name for bit, name in enumerate(THROTTLE_REASONS) if mask >> bit & 1]
    return (*names, *([UNKNOWN_REASON] if mask >> len(THROTTLE_REASONS) else []))
