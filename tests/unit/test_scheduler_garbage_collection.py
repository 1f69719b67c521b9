"""What a process that keeps a cluster in memory asks of the garbage collector."""

import gc

from pytest_mock import MockerFixture

from scheduler_plugin.garbage_collection import COLLECT_AFTER, collect_rarely, freeze_caches, trim_memory


def test_it_is_undone_at_the_end() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    undo = collect_rarely()
    try:
        assert gc.get_threshold() == COLLECT_AFTER
        freeze_caches()
        assert gc.get_freeze_count() > frozen
    finally:
        undo()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_what_a_list_took_goes_back_where_the_c_library_can_do_that(mocker: MockerFixture) -> None:
    library = mocker.patch("scheduler_plugin.garbage_collection.ctypes.CDLL").return_value
    trim_memory()
    library.malloc_trim.assert_called_once_with(0)


def test_a_c_library_that_cannot_is_left_alone(mocker: MockerFixture) -> None:
    mocker.patch("scheduler_plugin.garbage_collection.ctypes.CDLL", return_value=object())
    trim_memory()
