"""Calls what may hang for minutes, a driver, without ever waiting for it anywhere else.

The event loop's own pool has few threads, and all of them must end before the process can. A call of a driver
that does not come back would take one for each try.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class DriverThread:
    """Makes calls one after the other; a call that hangs blocks this thread and nothing else.

    The thread does not keep the process from ending.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None

    @property
    def busy_s(self) -> float:
        """Seconds that the call under way has taken; 0 while there is none."""
        since_s = self._since_s
        return 0.0 if since_s is None else max(0.0, self._clock() - since_s)

    async def call(self, function: Callable[[], Answer]) -> Answer:
        """Call a function in the thread; cancelling the caller ends its wait but not the call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Answer] = Future()
        self._jobs.put((future, function))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """Let the thread end once it has made the calls so far."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                continue
            self._since_s = self._clock()
            try:
                answer = function()
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                self._since_s = None
                future.set_exception(error)
            else:
                self._since_s = None
                future.set_result(answer)
