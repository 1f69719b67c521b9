"""Since when pods wait: by the API server's clock, as long as that clock can be believed. Pure."""

from typing import Final

TOLERANCE_S: Final = 3600.0
"""So much earlier may a pod be dated than one that came before it: news is late, clocks are a little off."""


class Ages:
    """Puts pods in order by the time of their creation.

    That time is written by an API server, whose clock may jump, and several have several clocks. A pod that
    was dated to next year must not wait until all that come later are served, nor one of today while pods
    come that are dated to yesterday. So nobody who comes later is put before those who wait by more than an
    hour, whatever the clocks say. Found again after a restart is the order of creation.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None

    def since(self, created: float, now: float, *, live: bool) -> float:
        """Since when a pod waits, by the clock of the API server.

        Args:
            created: When it was created, seconds since 1970.
            now: Seconds of a clock that does not jump.
            live: It comes as an event: it was created a moment ago, whatever it says.
        """
        if self._ahead is None or created - now > self._ahead:
            self._ahead = created - now
        return max(created, self._ahead + now - TOLERANCE_S) if live else created
