"""Start of each pod's wait, by the API server's clock as long as that can be believed. Pure."""

import math
from typing import Final

TOLERANCE_S: Final = 3600.0
"""A pod may be dated so much earlier than expected: events arrive late, and clocks are a little off."""


class QueueClock:
    """Puts pods in order by the time of their creation.

    The API server writes that time. Its clock may jump, and several API servers have several clocks. A pod
    dated next year must not wait behind everything created later, and a pod of today must not be overtaken by
    new pods dated yesterday. So a pod whose time lies more than an hour before the time expected from earlier
    pods is ordered by arrival instead. After a restart the order is that of creation.

    How long a pod has waited is measured with this process's monotonic clock. A pod that was created before
    this process started has waited since its creation by the wall clock, so a restart resets nothing. How
    long a pod has run is measured in the same way; for pods that ran before this process started, the node's
    clock counts, but never a time before the pod's creation. For pods that were deleted before it started the
    API server's clock counts.

    Args:
        wall: Seconds since 1970 when the clock that does not jump was at 0. None if that is not known:
            then every pod begins to wait when it is seen first.
    """

    def __init__(self, wall: float | None = None) -> None:
        self._wall = wall
        self._ahead: float | None = None
        self._last = -math.inf

    def get_wait_start_wall(self, created: float, now: float, *, live: bool) -> float:
        """Return when a pod began to wait, by the clock of the API server.

        Args:
            created: When it was created, seconds since 1970.
            live: The pod was created after those seen before, whatever its timestamp says: it came as an
                event, or in a list other than the first.
        """
        if self._ahead is None or created - now > self._ahead:
            self._ahead = created - now
        expected = self._ahead + now
        if not live or created >= expected - TOLERANCE_S:
            return created
        # Several may come at once, in a list: they stay in its order.
        self._last = max(expected, math.nextafter(self._last, math.inf))
        return self._last

    def to_monotonic(self, began: float, now: float) -> float:
        """Return when something began that this process did not see begin, by the monotonic clock.

        Args:
            began: Seconds since 1970 by another clock; not above 0: unknown, it counts as begun now.
            now: Seconds of a clock that does not jump.
        """
        return now if self._wall is None or began <= 0 else min(now, began - self._wall)
