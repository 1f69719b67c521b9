"""Ends the daemon in the order that makes the fewest pods fail.

A pod that is bound to a node without a device plugin fails for good. So first the words say that every card
is full, then the kubelet is served a little longer, then the plugin goes:

- What the extender binds between its last look at the words and the patch must still be served. Such a pod
  comes into view some ms after the patch was acknowledged, later where everything is slow: `late_s`.
- Pods that are in view and have no devices yet are waited for, but not for long. A pod that the kubelet
  cannot take, for whatever reason, must not hold up a rollout.
- Without an acknowledged patch there is nothing to wait for: more pods may come at any time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ShutdownTimeouts:
    """Bounds of the daemon's end, in seconds; together they are far below the grace period.

    Attributes:
        publish_s: until the API server has the last words.
        late_s: from then on for pods that were bound before, and are not in view yet.
        admit_s: at most, from then on, for pods in view that have no devices yet.
    """

    publish_s: float = 2.0
    late_s: float = 1.0
    admit_s: float = 2.0


async def publish_full_and_wait(
    publish: Callable[[], Awaitable[None]], under_way: Callable[[], bool], timeouts: ShutdownTimeouts
) -> None:
    """Publish every card as full, then wait for pods that are on their way. All else must go on meanwhile."""
    try:
        async with asyncio.timeout(timeouts.publish_s):
            await publish()
    except TimeoutError:
        log.warning("the words go on offering cards", waited_s=timeouts.publish_s)
        return
    said_s = time.monotonic()
    while (waited_s := time.monotonic() - said_s) < timeouts.admit_s:
        if waited_s >= timeouts.late_s and not under_way():
            return
        await asyncio.sleep(_LOOK_S)
    if under_way():
        log.warning("pods are on their way without devices", waited_s=timeouts.admit_s)
