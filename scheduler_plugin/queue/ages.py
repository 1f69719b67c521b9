"""Since when pods wait: by the API server's clock, as long as that clock can be believed. Pure."""

from typing import Final

TOLERANCE_S: Final = 3600.0
"""A pod may be dated so much earlier than expected: news may be late, and clocks a little off."""


class Ages:
    """Puts pods in order by the time of their creation.

    That time is written by an API server, whose clock may jump, and several have several clocks. A pod that
    was dated to next year must not wait until all that come later are served, nor one of today while pods
    come that are dated to yesterday. So a pod that is dated more than an hour before what those that came
    earlier lead one to expect has its place by arrival. After a restart the order is that of creation.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None

    def clock(self, now: float) -> float:
        """Seconds since 1970 by the clock that dates pods; 0 before the first one."""
        return 0.0 if self._ahead is None else self._ahead + now

    def since(self, created: float, now: float, *, live: bool) -> float:
        """Since when a pod waits, by the clock of the API server.

        Args:
            created: When it was created, seconds since 1970.
            now: Seconds of a clock that does not jump.
            live: It comes as an event: it was created a moment ago, whatever it says.
        """
        if self._ahead is None or created - now > self._ahead:
            self._ahead = created - now
        expected = self._ahead + now
        return expected if live and created < expected - TOLERANCE_S else created
