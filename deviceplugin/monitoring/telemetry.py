"""Keeps in memory what the cards of a node did during the last minutes, for metrics and JSON."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.gpus.api.card_listing import physical_model, physical_uuid
from deviceplugin.gpus.api.source import GpuCard, GpuSample
from deviceplugin.gpus.api.telemetry import NO_TELEMETRY, THROTTLE_REASONS, UNKNOWN_REASON, CardTelemetry

HISTORY_S: Final = 600.0
"""How much of each card's past is kept."""

FRESH_S: Final = 15.0
"""An older measurement says nothing of now: cards and limits are measured every 5 s."""

_LABELS: Final = ["uuid", "model"]

HISTORY_FIELDS: Final = tuple(
    field.name for field in fields(CardTelemetry) if field.name not in {"throttle_reasons", "power_limit_w"}
)
"""Values whose history is kept. The power limit seldom changes, and reasons are words."""


def is_fresh(measured_s: float, now_s: float) -> bool:
    return now_s - measured_s <= FRESH_S


@dataclass(frozen=True, slots=True)
class CardActivity:
    """What one physical card does now.

    Attributes:
        cards: UUIDs of what is listed for it: itself, or its instances.
        telemetry: newest measurement; `NO_TELEMETRY` where it failed or is older than `FRESH_S`.
    """

    uuid: str
    model: str
    cards: tuple[str, ...]
    telemetry: CardTelemetry


class TelemetryHistory:
    """Keeps the measurements of each physical card.

    Invariant: a card has at most `HISTORY_S / every_s` measurements, at least half of `every_s` apart. Only
    cards of the newest list have any.
    """

    def __init__(self, every_s: float, now_s: Callable[[], float]) -> None:
        self._gap_s = every_s / 2
        self._length = max(1, round(HISTORY_S / every_s)) if every_s > 0 else 1
        self._now_s = now_s
        self._points: dict[str, deque[tuple[float, CardTelemetry]]] = {}
        self._listed: dict[str, list[GpuCard]] = {}

    def add(self, cards: Iterable[GpuCard], samples: Iterable[GpuSample]) -> None:
        """Add one measurement of all cards; a card that failed has `NO_TELEMETRY` at this moment."""
        now_s = self._now_s()
        self._listed = {}
        for card in cards:
            self._listed.setdefault(physical_uuid(card), []).append(card)
        by_uuid = {sample.uuid: sample.telemetry for sample in samples}
        before, self._points = self._points, {}
        for uuid, listed in self._listed.items():
            told = (by_uuid.get(card.uuid, NO_TELEMETRY) for card in listed)
            points = self._points[uuid] = before.get(uuid) or deque(maxlen=self._length)
            # News of a card make measurements come faster: then the newest one replaces the one before.
            if len(points) > 1 and now_s - points[-2][0] < self._gap_s:
                points.pop()
            points.append((now_s, next((each for each in told if each != NO_TELEMETRY), NO_TELEMETRY)))

    def list_activities(self) -> Iterator[CardActivity]:
        now_s = self._now_s()
        for uuid, listed in self._listed.items():
            measured_s, telemetry = self._points[uuid][-1]
            yield CardActivity(
                uuid,
                physical_model(listed[0]),
                tuple(card.uuid for card in listed),
                telemetry if is_fresh(measured_s, now_s) else NO_TELEMETRY,
            )

    def explain(self, *, history: bool) -> dict[str, Any]:
        """Write what /telemetry answers as JSON values.

        Args:
            history: with the course of the last minutes: columns of equal length, oldest first, where a
                value that was not told is null. Columns without any value are left out.
        """
        return {"cards": [self._explain_card(each, history=history) for each in self.list_activities()]}

    def _explain_card(self, activity: CardActivity, *, history: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "uuid": activity.uuid,
            "model": activity.model,
            "cards": activity.cards,
            "now": activity.telemetry.to_json(),
        }
        if history:
            told["history"] = self._explain_history(self._points[activity.uuid])
        return told

    def _explain_history(
        self, points: Sequence[tuple[float, CardTelemetry]]
    ) -> Mapping[str, list[float | None]]:
        now_s = self._now_s()
        columns: dict[str, list[float | None]] = {"age_s": [round(now_s - at_s, 1) for at_s, _ in points]}
        for name in HISTORY_FIELDS:
            values = [getattr(telemetry, name) for _, telemetry in points]
            if any(value is not None for value in values):
                columns[name] = values
        return columns


class TelemetryCollector(Collector):
    """Makes metrics of each physical card's telemetry; missing values have no sample.

    A partitioned card has one sample under its own UUID, so that sums over cards are right.
    """

    def __init__(self, activities: Callable[[], Iterable[CardActivity]]) -> None:
        self._activities = activities

    def collect(self) -> Iterator[Metric]:
        activities = list(self._activities())
        for name, help_text, field, convert in _GAUGES:
            family = GaugeMetricFamily(f"gpupack_card_{name}", help_text, labels=_LABELS)
            for activity in activities:
                value = getattr(activity.telemetry, field)
                if value is not None:
                    family.add_metric([activity.uuid, activity.model], convert(value))
            yield family
        reasons = GaugeMetricFamily(
            "gpupack_card_clocks_event_reason",
            "1 while this is why the card's clocks are not higher, by the driver's names.",
            labels=[*_LABELS, "reason"],
        )
        for activity in activities:
            active = activity.telemetry.throttle_reasons
            if active is not None:
                for reason in (*THROTTLE_REASONS, UNKNOWN_REASON):
                    reasons.add_metric([activity.uuid, activity.model, reason], int(reason in active))
        yield reasons


def _to_ratio(percent: float) -> float:
    return percent / 100


def _to_hertz(mhz: float) -> float:
    return mhz * 1e6


_GAUGES: Final[tuple[tuple[str, str, str, Callable[[float], float]], ...]] = (
    (
        "utilization_ratio",
        "Part of the last moments in which a kernel ran, 0 to 1.",
        "utilization_percent",
        _to_ratio,
    ),
    (
        "memory_utilization_ratio",
        "Part of the last moments in which the card's memory was read or written, 0 to 1.",
        "memory_utilization_percent",
        _to_ratio,
    ),
    ("temperature_celsius", "Temperature of the GPU.", "temperature_c", float),
    ("power_watts", "Power that the card draws.", "power_w", float),
    ("power_limit_watts", "Power that the card may draw.", "power_limit_w", float),
    ("sm_clock_hertz", "Clock of the multiprocessors.", "sm_clock_mhz", _to_hertz),
    ("memory_clock_hertz", "Clock of the memory.", "memory_clock_mhz", _to_hertz),
)
