"""Waiting a moment for news that kube-scheduler has had already.

Both of us watch the API server, and whoever reads an event first acts first. kube-scheduler asks again for a
pod that was refused because something changed; if that change has not reached us yet, a second refusal would
be the last word until the next change anywhere, or for five minutes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 0.1
REST_S: Final = 1.0
REMEMBERED: Final = 10_000


class News:
    """Counts what the watches bring, and wakes those who wait for more of it."""

    def __init__(self) -> None:
        self.count = 0
        self._more = asyncio.Event()

    def note(self) -> None:
        """Something was brought."""
        self.count += 1
        self._more.set()
        self._more = asyncio.Event()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Look now and after everything that is brought, for `timeout_s` seconds at most.

        Returns:
            Whether the condition came true.
        """
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


class Patience:
    """Knows for which refused pods a wait is worth it.

    For one that comes back although nothing was brought since its refusal: its news is on the way. For one
    that comes back among other news: perhaps, so this kind of wait rests for a while when it was in vain, and
    never costs more than a tenth of the scheduling cycles' time.

    Args:
        news: What the watches bring.
        clock: Monotonic seconds.
    """

    def __init__(self, news: News, clock: Callable[[], float]) -> None:
        self.news = news
        self._clock = clock
        self._refused: OrderedDict[str, int] = OrderedDict()
        self._rest_until = float("-inf")

    def note_refused(self, uid: str) -> None:
        """Remember that this pod was refused on what is known now."""
        self._refused[uid] = self.news.count
        self._refused.move_to_end(uid)
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    def note_passed(self, uid: str) -> None:
        """Forget a pod that found a node."""
        self._refused.pop(uid, None)

    def note_in_vain(self) -> None:
        """A wait brought nothing."""
        self._rest_until = self._clock() + REST_S

    def is_worth_it(self, uid: str) -> bool:
        """Whether to wait before this pod, which finds no node, is refused."""
        known = self._refused.get(uid)
        if known is None:
            return False
        return known == self.news.count or self._clock() >= self._rest_until
