"""Allocation and fragmentation over time: sums at regular moments, in two rings of bounded size."""

from collections import deque
from typing import Final

import msgspec

from gpupack.dashboard.records import CardSums

EVERY_S: Final = 10.0
"""Time between two points of the last hours."""
FINE: Final = 720
COARSE_S: Final = 300.0
COARSE: Final = 2016
"""A point in five minutes for a week."""


class TrendPoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cluster at one moment; amounts in MiB.

    Attributes:
        overuse: used beyond promises, by pods or others.
        whole_free: part of that on cards with nothing on them.
        whole: how many such cards there are.
        largest: the most that one card could give.
    """

    at: int
    size: int
    allocated: int
    overuse: int
    free: int
    whole_free: int
    whole: int
    largest: int
    pending: int


def make_trend_point(at_s: float, sums: CardSums, pending: int) -> TrendPoint:
    return TrendPoint(
        at=int(at_s),
        size=sums.size,
        allocated=sums.allocated,
        overuse=sums.overuse,
        free=sums.free,
        whole_free=sums.whole_free,
        whole=sums.whole,
        largest=sums.largest,
        pending=pending,
    )


class Trend:
    """The points of the last two hours, and a point in five minutes of the week before."""

    def __init__(self) -> None:
        self._coarse: deque[TrendPoint] = deque(maxlen=COARSE)
        self._fine: deque[TrendPoint] = deque(maxlen=FINE)

    def add(self, new: TrendPoint) -> None:
        """Take the newest point; clocks may go back."""
        if len(self._fine) == FINE:
            oldest = self._fine[0]
            if not self._coarse or not 0 <= oldest.at - self._coarse[-1].at < COARSE_S:
                self._coarse.append(oldest)
        self._fine.append(new)

    def list_points(self) -> list[TrendPoint]:
        """List points in the order of their times, for a line cannot go back."""
        found: list[TrendPoint] = []
        for each in (*self._coarse, *self._fine):
            while found and found[-1].at >= each.at:
                found.pop()
            found.append(each)
        return found
