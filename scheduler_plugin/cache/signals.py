"""Signals: a function call that reaches all who have subscribed."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls every listener, in the order in which they subscribed.

    A listener is called even if an earlier one raised; the first error is raised afterwards.

    Args:
        unheard: Function to call while nobody has subscribed; None does nothing then.
    """

    def __init__(self, unheard: Callable[P, None] | None = None) -> None:
        self._listeners: list[Callable[P, None]] = []
        self._default = unheard

    def connect(self, listener: Callable[P, None]) -> None:
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        failure: Exception | None = None
        listeners = self._listeners
        if not listeners and self._default is not None:
            listeners = [self._default]
        for listener in listeners:
            try:
                listener(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (the others are told first)
                failure = failure or error
        if failure is not None:
            raise failure
