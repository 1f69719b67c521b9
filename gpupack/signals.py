"""SIGTERM and SIGINT, from the first line of a daemon to its last: the exit status is 0 at any moment.

Nothing that takes time to load is imported here: this comes before all else.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
# Every command that calls `serve`, and the arguments with which it does not.
DAEMONS: Final = {
    "node": ("--check",),
    "scheduler": (),
    "queue": ("check", "status"),
    "autoscale": ("shapes",),
    "mps": (),
}
# Every one that calls it for a person at a terminal, and the arguments without which it does not.
PAGES: Final = {"dashboard": (), "demo": ("--dashboard",)}


def exit_on_signals(arguments: Sequence[str]) -> None:
    """From now on either signal ends a command that runs until it is told to, with exit status 0.

    The others keep what is usual: who interrupts them must not take them for done. A terminal that goes
    away must not take a daemon with it, but a page that a person looks at.

    Args:
        arguments: The command line without the program's name.
    """
    command = next(iter(arguments), "")
    is_daemon = command in DAEMONS and not any(argument in arguments for argument in DAEMONS[command])
    if is_daemon or (command in PAGES and all(argument in arguments for argument in PAGES[command])):
        for number in STOPPING:
            signal.signal(number, _exit)
    if is_daemon:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def cancel_on_signals(task: "asyncio.Task[Any]") -> Iterator[None]:
    """Cancel a task of the running loop once: at the first signal, also if the terminal goes away.

    Further signals change nothing, so that what the task undoes is undone. With `nohup` it goes on without
    the terminal.
    """
    told = False

    def cancel() -> None:
        nonlocal told
        if not told:
            told = True
            task.cancel()

    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with _handle_signals(STOPPING if stays else (*STOPPING, signal.SIGHUP), cancel):
        yield


@contextmanager
def _handle_signals(numbers: Sequence[int], handle: Callable[[], None]) -> Iterator[None]:
    """Handle signals in the running loop, and as before once the context ends."""
    import asyncio  # noqa: PLC0415 - see above

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _exit(_number: int, _frame: Any) -> None:
    os._exit(0)


@contextmanager
def connect_stop_event() -> Iterator["asyncio.Event"]:
    """Give an event of the running loop that the first signal sets; the second ends the process at once."""
    import asyncio  # noqa: PLC0415 - see above

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        stop.set()
        for number in STOPPING:
            loop.remove_signal_handler(number)
            signal.signal(number, _exit)

    with _handle_signals(STOPPING, told):
        yield stop
