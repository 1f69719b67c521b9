"""Waiting for a condition: poll it, with a deadline, and say what was seen last when it does not come."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 180.0
"""Far beyond any real wait: a machine under load may take twenty times as long as an idle one."""


def until(probe: Callable[[], T], what: str, timeout_s: float = PATIENCE_S, every_s: float = 0.05) -> T:
    """Call `probe` until it answers something true, and return that.

    Exceptions of the probe count as "not yet", except assertions about to be final in the caller's eyes.

    Raises:
        AssertionError: When the deadline passes; names the last answer or error.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            answer = probe()
        except Exception as error:  # noqa: BLE001 - whatever it was, it is named when the time is up
            # In words: kept, it would keep this frame, that keeps it, and the answer's socket stays open.
            seen = repr(error)
        else:
            if answer:
                return answer
            seen = repr(answer)
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s; last seen: {seen}"[:4000])
        time.sleep(every_s)


def holds_for(probe: Callable[[], bool], what: str, for_s: float) -> None:
    """Assert that `probe` stays true for `for_s` seconds.

    Raises:
        AssertionError: At the first look at which it is not.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert probe(), f"{what}: did not stay so"
        time.sleep(0.1)
