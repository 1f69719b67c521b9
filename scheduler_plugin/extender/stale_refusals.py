"""A short wait before a second refusal, for events that kube-scheduler has seen and we have not.

Both processes watch the API server, and an event may reach either first. When something changes,
kube-scheduler asks again for a refused pod. If that change has not reached us yet, we would refuse the pod
again, and that would stand until the next change anywhere, or for five minutes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from kubeapi.bounded import BoundedDict

WAIT_S: Final = 0.1
PAUSE_S: Final = 1.0
MAX_REFUSED_PODS: Final = 10_000


class WatchActivity:
    """Counts events of the watches, and wakes coroutines that wait for more."""

    def __init__(self) -> None:
        self.count = 0
        self._more = asyncio.Event()

    def record_event(self) -> None:
        self.count += 1
        self._more.set()
        self._more = asyncio.Event()

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Check a condition now and after each event; return True if it came true in time."""
        if condition():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._more.wait()
                    if condition():
                        return True
        except TimeoutError:
            return False


class StaleRefusalWait:
    """Decides for which refused pods a wait is worthwhile.

    If a pod comes back although the watches have brought nothing since its refusal, the event is still on its
    way: waiting is worthwhile. If other events have arrived meanwhile, that is uncertain. So after a wait in
    vain such waits pause for a while, and they never take more than a tenth of the scheduling cycles' time.
    """

    def __init__(self, activity: WatchActivity, clock: Callable[[], float]) -> None:
        self.activity = activity
        self._clock = clock
        self._refused: BoundedDict[str, int] = BoundedDict(MAX_REFUSED_PODS)
        self._paused_until = float("-inf")

    def record_refused(self, uid: str) -> None:
        """Remember that this pod was refused in the current state of the watches."""
        self._refused[uid] = self.activity.count

    def record_passed(self, uid: str) -> None:
        self._refused.pop(uid, None)

    def record_vain_wait(self) -> None:
        self._paused_until = self._clock() + PAUSE_S

    def should_wait(self, uid: str) -> bool:
        """Return True if this pod, for which there is no node, should wait before it is refused."""
        known = self._refused.get(uid)
        if known is None:
            return False
        return known == self.activity.count or self._clock() >= self._paused_until
