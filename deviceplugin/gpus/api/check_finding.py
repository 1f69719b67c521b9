"""A line of `gpupack node --check`."""

from typing import Literal

import msgspec

Verdict = Literal["ok", "less", "bad"]
"""Usable; usable, and something is missing for more; the daemon cannot serve pods like this."""


class CheckFinding(msgspec.Struct, frozen=True):
    """CheckFinding is one line of the table.

    Attributes:
        uses: What gpupack would do with it; or why not more, and what that takes.
    """

    what: str
    verdict: Verdict
    found: str
    uses: str = ""
