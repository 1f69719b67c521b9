"""SIGTERM and SIGINT, from the first line of a daemon to its last: the exit status is 0 at any moment.

Nothing that takes time to load is imported here: this comes before all else.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def end_at_once() -> None:
    """From now on either signal ends the process at once: nothing has begun, or the first one was heeded.

    A terminal that goes away must not take a daemon with it.
    """
    for number in STOPPING:
        signal.signal(number, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end(_number: int, _frame: Any) -> None:
    os._exit(0)


@contextmanager
def told_to_stop() -> Iterator["asyncio.Event"]:
    """Give an event of the running loop that the first signal sets; the second ends the process at once."""
    import asyncio  # noqa: PLC0415 - see above

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    before = {number: signal.getsignal(number) for number in STOPPING}

    def told() -> None:
        stop.set()
        for number in STOPPING:
            loop.remove_signal_handler(number)
            signal.signal(number, _end)

    for number in STOPPING:
        loop.add_signal_handler(number, told)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
