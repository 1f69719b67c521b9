"""Hands health events from the threads that see them to the one that waits for them."""

import threading
from dataclasses import replace

from deviceplugin.gpus.api.source import HealthEvent


class HealthEventQueue:
    """A queue whose reader is woken by an event or by its closing.

    Invariant: equal events are one, with their count, in the place of the newest. So a storm of
    them takes no more memory, and no more of the reader's time, than one of each.
    """

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._events: dict[HealthEvent, int] = {}
        self._poked = False
        self._closed = False

    def put(self, event: HealthEvent) -> None:
        """Add one event; it is dropped once the queue is closed."""
        with self._ready:
            if not self._closed:
                one = event if event.count == 1 else replace(event, count=1)
                self._events[one] = self._events.pop(one, 0) + event.count
                self._ready.notify_all()

    def wake(self) -> None:
        """Wake the reader without an event: something else has changed."""
        with self._ready:
            self._poked = True
            self._ready.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for an event, a poke or the closing; return True if one came."""
        with self._ready:
            return bool(self._ready.wait_for(lambda: self._events or self._poked or self._closed, timeout_s))

    def take_events(self, timeout_s: float) -> list[HealthEvent]:
        """Return all events, after waiting up to `timeout_s` seconds for the first, or for a poke."""
        with self._ready:
            self.wait(timeout_s)
            events = [replace(event, count=count) for event, count in self._events.items()]
            self._events.clear()
            self._poked = False
            return events

    def open(self) -> None:
        """Start over, empty."""
        with self._ready:
            self._events.clear()
            self._poked = self._closed = False

    def close(self) -> None:
        """Wake the reader for the last time."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
