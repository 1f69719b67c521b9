"""Tunes garbage collection for processes that keep a whole cluster in memory."""

import ctypes
import gc
from collections.abc import Callable
from typing import Final

COLLECT_AFTER: Final = (50_000, 20, 100)
"""Thresholds of the garbage collector. With Python's it would walk over the first lists again and again: a
third of the time in which they are read."""


def collect_rarely() -> Callable[[], None]:
    """Collect rarely from now on; return a function that undoes this and `freeze_caches`."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)

    def undo() -> None:
        gc.set_threshold(*before)
        gc.unfreeze()

    return undo


def freeze_caches() -> None:
    """Keep the garbage collector from scanning the caches each time, once they are filled."""
    # Without a collection first: it would walk over all of the caches to find next to nothing.
    gc.freeze()


def trim_memory() -> None:
    """Return the memory of a list's JSON to the system, if the C library can do that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
