"""What a process that keeps a cluster in memory asks of the garbage collector."""

import gc

from scheduler_plugin.memory import COLLECT_AFTER, collect_rarely, settle


def test_it_is_undone_at_the_end() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    undo = collect_rarely()
    try:
        assert gc.get_threshold() == COLLECT_AFTER
        settle()
        assert gc.get_freeze_count() > frozen
    finally:
        undo()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
