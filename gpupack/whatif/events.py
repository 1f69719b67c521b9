"""List the Events of one very pod, oldest first and in one form. Pure."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from kubeapi.metadata import parse_time
from kubeapi.objects import KubeStruct

MOST_EVENTS: Final = 8
"""Events that are shown, the newest."""


class PodEvent(KubeStruct):
    """An Event of a pod. Its times are those of the API; which of them is there depends on who wrote it."""

    class Involved(KubeStruct):
        """The pod that it is about."""

        uid: str = ""

    class Series(KubeStruct):
        """How often an Event was seen, and when last."""

        count: int | None = None
        last_observed_time: str | None = None

    reason: str = ""
    message: str = ""
    involved_object: Involved = msgspec.field(default_factory=Involved)
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: Series | None = None
    count: int | None = None

    @property
    def last_seen_s(self) -> float:
        """Time of the last occurrence, seconds since the epoch; 0 if nothing readable says so."""
        observed = self.series.last_observed_time if self.series is not None else None
        for text in (observed, self.last_timestamp, self.event_time, self.first_timestamp):
            at_s = parse_time(text)
            if at_s is not None:
                return at_s
        return 0.0

    @property
    def seen_count(self) -> int:
        counts = (self.count, self.series.count if self.series is not None else None)
        return max(1, *(count or 0 for count in counts))


class PodEvents(KubeStruct):
    """A list of them."""

    items: tuple[PodEvent, ...]


def format_events(events: Iterable[PodEvent], uids: Collection[str]) -> tuple[str, ...]:
    """Write the newest Events, the oldest of them first.

    Args:
        events: Events of all pods of one name, also of those before it: a StatefulSet uses names again.
    """
    own = [event for event in events if event.involved_object.uid in uids]
    own.sort(key=lambda event: event.last_seen_s)
    return tuple(_line(event) for event in own[-MOST_EVENTS:])


def _line(event: PodEvent) -> str:
    at = event.last_seen_s
    when = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ} " if at else ""
    often = f" (x{event.seen_count})" if event.seen_count > 1 else ""
    return f"{when}{event.reason}: {event.message}{often}"
