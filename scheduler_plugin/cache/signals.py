"""Telling everybody who wants to know that something happened."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls every listener, in the order in which they subscribed.

    Each is called whether or not one before it raised; the first error is raised afterwards.

    Args:
        unheard: Called instead while nobody has subscribed; None does nothing then.
    """

    def __init__(self, unheard: Callable[P, None] | None = None) -> None:
        self._listeners: list[Callable[P, None]] = []
        self._unheard = unheard

    def connect(self, listener: Callable[P, None]) -> None:
        """Subscribe."""
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell everybody."""
        failure: Exception | None = None
        listeners = self._listeners
        if not listeners and self._unheard is not None:
            listeners = [self._unheard]
        for listener in listeners:
            try:
                listener(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (the others are told first)
                failure = failure or error
        if failure is not None:
            raise failure
