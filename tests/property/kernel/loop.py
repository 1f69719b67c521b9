"""Event loops in which shipped parts run unchanged and every history is the same each time.

In a `VirtualLoop` time passes only while everybody waits. In an inline loop nothing runs in another thread.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class TaskSet(set[asyncio.Task[Any]]):
    """A set of tasks whose order is that in which they began: else it is that of their addresses.

    Attributes:
        killed: Their process is gone. Tasks that the cancelling of its others begins end at once.
    """

    killed = False

    def add(self, task: asyncio.Task[Any]) -> None:
        super().add(task)
        if self.killed:
            task.cancel()

    def kill(self) -> None:
        """End all of them, as the death of their process does."""
        self.killed = True
        for task in self:
            task.cancel()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(sorted(super().__iter__(), key=lambda task: int(task.get_name().rpartition("-")[2])))


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without sockets. Waiting for a second takes no time, and its clock says a second more."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = self

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass until the next timer, in place of waiting for a socket."""
        if timeout is None:
            raise RuntimeError("everybody waits for somebody else")
        self.now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from sockets."""

    def _write_to_self(self) -> None:
        """Nobody else wakes the loop up."""


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        task = loop.create_task(work)
        try:
            loop.run_until_complete(task)
        finally:
            rest = asyncio.all_tasks(loop)
            for each in rest:
                each.cancel()
            if rest:
                loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    finally:
        loop.close()


class _InlineExecutor(ThreadPoolExecutor):
    """Runs at once what others would run in a thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


def new_inline_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_InlineExecutor(1))
    return loop


def run_ready(loop: asyncio.AbstractEventLoop) -> None:
    """Let everything in a loop go on that waits for nothing."""

    async def idle() -> None:
        await asyncio.sleep(0)
        while loop._ready:  # type: ignore[attr-defined]  # noqa: ASYNC110 - no event tells that all wait
            await asyncio.sleep(0)

    loop.run_until_complete(idle())
