"""What runs beside a test and ends with it: a task, or a server of ours."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any


@asynccontextmanager
async def background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a task, and cancel it at the end; if it failed before, its error is raised then."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def served(
    serve: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, **options: Any
) -> AsyncIterator[tuple[Any, ...]]:
    """Run what takes `stop` and `started`; yield what it says once it has started, its address first."""
    stop = asyncio.Event()
    started: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    serving = serve(*arguments, stop=stop, started=lambda *said: started.set_result(said), **options)
    task = asyncio.create_task(serving)
    try:
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield started.result()
    finally:
        stop.set()
        await task
