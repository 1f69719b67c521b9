"""Finds what a terminal can show, how wide it shows texts and in which colours, and writes ages."""

import os
import sys
import unicodedata
from enum import StrEnum
from functools import lru_cache


class Style(StrEnum):
    """How a text looks on a terminal: parameters of the control sequence SGR (ECMA-48), separated by `;`."""

    PLAIN = ""
    BOLD = "1"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    DIM_RED = "2;31"

    def render(self, text: str) -> str:
        return f"\x1b[{self}m{text}\x1b[0m" if self and text else text


@lru_cache(4096)
def cell_width(text: str) -> int:
    """Count the columns that a terminal needs for a text that can be printed.

    Wide characters of East Asia and emoji take two, marks that are put on the character before them none.
    """
    if text.isascii():
        return len(text)
    columns = 0
    for character in text:
        if not unicodedata.category(character).startswith("M"):
            columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return columns


def wants_colour() -> bool:
    """Return True where standard output takes colours: a terminal, not a dumb one, and without NO_COLOR.

    Source: https://no-color.org; an empty NO_COLOR counts as none.
    """
    return takes_control_sequences() and not os.environ.get("NO_COLOR")


def takes_control_sequences() -> bool:
    """Return True if standard output is a terminal that supports cursor movement (TERM is not dumb)."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def short_age(seconds: float) -> str:
    """Write an age as kubectl does: 90s, 5m, 3h, 2d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"
