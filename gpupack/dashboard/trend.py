"""Allocation and fragmentation over time: sums at regular moments, in two rings of bounded size."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from gpupack.dashboard.records import Sums

EVERY_S: Final = 10.0
"""Between two points of the last hours."""
FINE: Final = 720
COARSE_S: Final = 300.0
COARSE: Final = 2016
"""A point in five minutes for a week."""


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cluster at one moment; amounts in MiB.

    Attributes:
        at: seconds since the epoch.
        size: of all cards.
        promised: to pods.
        beyond: used beyond promises, by pods or others.
        free: what pods could get.
        whole_free: of that, on cards with nothing on them.
        whole: how many such cards there are.
        largest: the most that one card could give.
        pending: pods that wait for cards.
    """

    at: int
    size: int
    promised: int
    beyond: int
    free: int
    whole_free: int
    whole: int
    largest: int
    pending: int


def point(at_s: float, sums: Sums, pending: int) -> Point:
    """Note the sums of a moment."""
    return Point(
        at=int(at_s),
        size=sums.size,
        promised=sums.promised,
        beyond=sums.beyond,
        free=sums.free,
        whole_free=sums.whole_free,
        whole=sums.whole,
        largest=sums.largest,
        pending=pending,
    )


class Trend:
    """The points of the last two hours, and a point in five minutes of the week before.

    Args:
        points: of an earlier process, oldest first.
    """

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._coarse: deque[Point] = deque(points, COARSE)
        self._fine: deque[Point] = deque(maxlen=FINE)

    def add(self, new: Point) -> None:
        """Take the newest point; clocks may go back."""
        if len(self._fine) == FINE:
            oldest = self._fine[0]
            if not self._coarse or not 0 <= oldest.at - self._coarse[-1].at < COARSE_S:
                self._coarse.append(oldest)
        self._fine.append(new)

    def points(self) -> list[Point]:
        """All points in the order of their times, for a line cannot go back."""
        found: list[Point] = []
        for each in (*self._coarse, *self._fine):
            while found and found[-1].at >= each.at:
                found.pop()
            found.append(each)
        return found
