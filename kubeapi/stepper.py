"""Runs one step again and again: after events, and after the delay that the last step asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from kubeapi.backoff import Backoff


class Stepper:
    """Calls a step when something has happened; events during a step cause one more call.

    Args:
        step: Returns the seconds after which it is called again even if nothing happens, None for no need.
        burst_s: Events within this many seconds after the first cause one call.
        bursts: How often at most it waits so long, as long as further events come.
        backoff: How long steps that fail pause; by default 15 s at most.
    """

    def __init__(
        self,
        step: Callable[[], Awaitable[float | None]],
        burst_s: float = 0.0,
        bursts: int = 1,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._step = step
        self._burst_s = burst_s
        self._bursts = bursts
        self._news = asyncio.Event()
        self._hurried = asyncio.Event()
        self._failures = backoff or Backoff(0.2, 15.0)
        self._watch_lag = Backoff(0.2, 15.0)

    def wake(self) -> None:
        self._news.set()

    def hurry(self) -> None:
        """Wake the step even if it pauses; from now on no pause is kept."""
        self._hurried.set()
        self.wake()

    async def pause(self, pause_s: float) -> float:
        """Wait, whatever happens meanwhile; return 0.0, for the step that waited is due at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurried.wait()
        return 0.0

    async def back_off(self, log: Any, event: str, error: object, **values: Any) -> float:
        """Pause after a failure, and log it as `Backoff.log_failure` does, which gets the arguments.

        The pause is longer each time, until a step goes without.
        """
        return await self.pause(self._failures.log_failure(log, event, error, **values))

    async def pause_for_watch(self) -> float:
        """Pause until the watch may show what was written, or what a write was refused for (Conflict).

        The pause grows as that of `back_off`.
        """
        return await self.pause(self._watch_lag.failed())

    async def wait_for_news(self) -> None:
        """Wait for what happens from now on; for a step, which is not called again for it."""
        self._news.clear()
        await self._news.wait()

    async def run(self) -> None:
        """Call the step at once, then whenever it is due, until cancelled."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        self._news.clear()
        pauses = [(backoff, backoff.failures) for backoff in (self._failures, self._watch_lag)]
        wait_s = await self._step()
        _end_if_cancelled()
        for backoff, before in pauses:
            if backoff.failures == before:
                backoff.reset()
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            return
        for _ in range(self._bursts if self._burst_s else 0):
            if not self._news.is_set():
                break
            self._news.clear()
            await asyncio.sleep(self._burst_s)


def _end_if_cancelled() -> None:
    """Raise the cancellation of this task that a step may have kept, as grpc.aio's stop() does."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
