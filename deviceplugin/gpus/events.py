"""Hands health events from the threads that see them to the one that waits for them."""

import threading
from collections import deque

from deviceplugin.gpus.source import HealthEvent


class EventQueue:
    """An unbounded queue whose reader is woken by news or by its closing."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._events: deque[HealthEvent] = deque()
        self._closed = False

    def put(self, event: HealthEvent) -> None:
        """Add one event; it is dropped once the queue is closed."""
        with self._ready:
            if not self._closed:
                self._events.append(event)
                self._ready.notify_all()

    def take(self, timeout_s: float) -> list[HealthEvent]:
        """Return all events there are, after waiting up to `timeout_s` seconds for the first."""
        with self._ready:
            self._ready.wait_for(lambda: self._events or self._closed, timeout_s)
            events = list(self._events)
            self._events.clear()
            return events

    def open(self) -> None:
        """Start over, empty."""
        with self._ready:
            self._events.clear()
            self._closed = False

    def close(self) -> None:
        """Wake the reader for the last time."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
