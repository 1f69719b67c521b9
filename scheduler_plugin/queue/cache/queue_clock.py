"""Start of each pod's wait, by the API server's clock as long as that can be believed. Pure."""

import math
from typing import Final

TOLERANCE_S: Final = 3600.0
"""A pod may be dated so much earlier than expected: news may be late, and clocks a little off."""


class QueueClock:
    """Puts pods in order by the time of their creation.

    An API server writes that time. Its clock may jump, and several servers have several clocks. A pod dated
    to next year must not wait until all that come later are served. Nor must a pod of today wait while pods
    come that are dated to yesterday. So a pod is placed by arrival where it is dated more than an hour
    before what earlier ones lead one to expect. After a restart the order is that of creation.

    How long a pod has waited is measured by this process's clock. A pod that was created before this process
    has waited since its creation by the clock on the wall, so a restart resets nothing. How long a pod has
    run is measured alike. For what was on a node before, the node's clock counts, and the creation bounds it.

    Args:
        wall: Seconds since 1970 when the clock that does not jump was at 0. None where that is not known:
            then every pod begins to wait when it is seen first.
    """

    def __init__(self, wall: float | None = None) -> None:
        self._wall = wall
        self._ahead: float | None = None
        self._last = -math.inf

    def get_wait_start_wall(self, created: float, now: float, *, live: bool) -> float:
        """Since when a pod waits, by the clock of the API server.

        Args:
            created: When it was created, seconds since 1970.
            now: Seconds of a clock that does not jump.
            live: The pod was created after those that came before it, whatever its time says. Such a pod
                comes as an event, or in a list that is not the first one.
        """
        if self._ahead is None or created - now > self._ahead:
            self._ahead = created - now
        expected = self._ahead + now
        if not live or created >= expected - TOLERANCE_S:
            return created
        # Several may come at once, in a list: they stay in its order.
        self._last = max(expected, math.nextafter(self._last, math.inf))
        return self._last

    def get_wait_start_monotonic(self, created: float, now: float, *, live: bool) -> float:
        """Get when a pod began to wait, by the clock that does not jump; see `get_wait_start_wall`."""
        if live or self._wall is None or created <= 0:
            return now
        return min(now, created - self._wall)

    def get_run_start_monotonic(self, started: float, created: float, now: float) -> float:
        """Get when a pod began to run that was seen first on a node, by the clock that does not jump.

        Args:
            started: When it began by its node's clock, seconds since 1970; 0: not known.
            created: When it was created, seconds since 1970; 0: not known.
            now: Seconds of a clock that does not jump.
        """
        began = max(started, created)
        if self._wall is None or began <= 0:
            return now
        return min(now, began - self._wall)
