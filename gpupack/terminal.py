"""Finds what a terminal can show, and writes ages."""

import os
import sys


def wants_colour() -> bool:
    """Return True where standard output takes colours: a terminal, not a dumb one, and without NO_COLOR.

    Source: https://no-color.org; an empty NO_COLOR counts as none.
    """
    return takes_control_sequences() and not os.environ.get("NO_COLOR")


def takes_control_sequences() -> bool:
    """Return True where standard output is a terminal that moves its cursor when told (TERM is not dumb)."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def short_age(seconds: float) -> str:
    """Write an age as kubectl does: 90s, 5m, 3h, 2d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"
