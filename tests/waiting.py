"""Waiting for a condition, never for a time."""

import asyncio
import io
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

DEADLINE_S = 60.0
"""Far beyond any real wait: a machine under load may take ten times as long as an idle one."""


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Poll until a condition, or what it awaits, is true; return what it gave, and fail at the deadline."""
    end = time.monotonic() + DEADLINE_S
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        late = time.monotonic() > end
        assert not late, f"{what or condition}: not within {DEADLINE_S} s; meanwhile:\n{_tasks()}"
        await asyncio.sleep(0.01)


def _tasks() -> str:
    out = io.StringIO()
    for task in asyncio.all_tasks():
        # gRPC's own tasks have frames without line numbers, which Python 3.11 cannot print.
        with suppress(TypeError):
            task.print_stack(limit=4, file=out)
    return out.getvalue()
