"""Tunes the garbage collector for the node daemon."""

import gc
from typing import Final

COLLECT_AFTER: Final = (20_000, 20, 100)
"""Thresholds of the garbage collector. With Python's it would walk over a node's thousand pods every few
seconds. That takes some 100 ms, in which no Allocate is answered and no limit is set."""


def freeze_garbage_collector() -> None:
    """Spare the garbage collector from walking all that is loaded in the middle of an Allocate."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
