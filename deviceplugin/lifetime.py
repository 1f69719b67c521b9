"""Runs what lasts as long as the daemon, and ends it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

COLLECT_AFTER: Final = (20_000, 20, 100)
"""Thresholds of the garbage collector. With Python's it would walk over a node's thousand pods every few
seconds. That takes some 100 ms, in which no Allocate is answered and no limit is set."""


def freeze_garbage_collector() -> None:
    """Spare the garbage collector from walking all that is loaded in the middle of an Allocate."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def do_nothing() -> None:
    """Stand in for a drain if there is nothing to drain."""


async def run_until(
    stop: asyncio.Event, drain: Callable[[], Awaitable[None]], *work: Coroutine[Any, Any, None]
) -> None:
    """Do everything at once until `stop` is set, and `drain` has ended, or one fails, which is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await drain()
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [each for each in results if isinstance(each, Exception)]
    if failures:
        raise failures[0]
