"""Moments as people write them."""

import re
from typing import Final

from allocator.errors import shown
from gpupack.errors import InputError
from kubeapi.metadata import parse_time

_AGO: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_ALLOWED: Final = "allowed: 30m, 24h, 7d (before now), now, 2026-11-01 and 2026-11-01T08:00:00Z"


def parse_moment(text: str, now_s: float) -> float:
    """Read a moment; seconds since the epoch. Days and times without a zone are those of UTC.

    Raises:
        InputError: it is something else.
    """
    if text == "now":
        return now_s
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_s - float(ago[1]) * _SECONDS[ago[2]]
    at_s = parse_time(text)
    if at_s is None:
        raise InputError(f"time {shown(text)}; {_ALLOWED}")
    return at_s


def parse_span(since: str, until: str, now_s: float) -> tuple[float, float]:
    """Read two moments.

    Raises:
        InputError: one of them is something else, or the second does not come after the first.
    """
    first, last = parse_moment(since, now_s), min(parse_moment(until, now_s), now_s)
    if first >= last:
        raise InputError(
            f"since {shown(since)} until {shown(until)}; allowed: a time that begins before it ends"
        )
    return first, last
