"""The life of a process: its parts run at once, until it is told to stop or one of them fails."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)


class Runnable(Protocol):
    """A part of a process that works until it is cancelled, or until it has nothing left to do."""

    async def run(self) -> None: ...


Work = Runnable | Coroutine[Any, Any, None] | None
"""What runs in a process; None is a part that the process does not have."""


async def run_until(
    stop: asyncio.Event, *works: Work, drain: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Do all works at once until `stop` is set, all have ended, or one has failed; then cancel the others.

    Args:
        drain: awaited once `stop` is set, while the works still run: what is under way may come to its end.

    Raises:
        Exception: that of the work that failed first; others that fail while they are cancelled are logged.
    """
    tasks = [_start(work) for work in works if work is not None]
    stopped = asyncio.create_task(stop.wait())
    running = set(tasks)
    first: BaseException | None = None
    try:
        while running and not stop.is_set():
            done, _ = await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            first = next(filter(None, map(_get_error, done)), None)
            if first is not None:
                break
        if stop.is_set() and drain is not None:
            await drain()
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        first = first or next(iter(errors), None)
        for error in errors:
            if error is not first:
                log.error("a part of the process failed as it ended", exc_info=error)
    if first is not None:
        raise first


def _start(work: Runnable | Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
    return asyncio.create_task(work if isinstance(work, Coroutine) else work.run())


def _get_error(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
