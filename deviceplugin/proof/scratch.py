"""Undoes what a proof made: on success, on failure, and when interrupted."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from deviceplugin.errors import DevicePluginError, is_absent

NAME: Final = "gpupack-proof"

REMOVE_S: Final = 5.0
"""How long removing a cgroup may take: it is busy for a moment after its last process was killed."""

_PAUSE_S: Final = 0.05
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Let signals that would end this wait until what is begun is done, in this thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that what was done is undone."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class UndoStack:
    """Undoes what was done, the last first, at the end of a `with`; one that fails leaves the others alone.

    Attributes:
        left: what could not be undone, and why.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []
        self.left: list[str] = []

    def add(self, what: str, step: Callable[[], None]) -> None:
        """Register a step to undo, even if it was not done in the end."""
        self._steps.append((what, step))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with defer_signals():
            for what, step in reversed(self._steps):
                try:
                    step()
                except (OSError, DevicePluginError) as failure:
                    self.left.append(f"{what}: {failure}")
            self._steps.clear()


class ScratchCgroup:
    """A cgroup and one below it, beside the pods' cgroups, so that what is above limits it like them."""

    def __init__(self, parent: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self.path = parent / NAME
        self.below = self.path / "below"
        self._sleep = sleep

    def make(self) -> None:
        """Make both; what a run that was killed left is removed first.

        Raises:
            OSError: they cannot be made, or another run has them.
        """
        for folder in (self.below, self.path):
            _remove(folder)
        self.path.mkdir()
        self.below.mkdir()

    def remove(self) -> None:
        for folder in (self.below, self.path):
            self._remove_when_free(folder)

    def _remove_when_free(self, folder: Path) -> None:
        for _ in range(int(REMOVE_S / _PAUSE_S)):
            try:
                _remove(folder)
            except OSError:
                self._sleep(_PAUSE_S)
            else:
                return
        _remove(folder)


def _remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if not is_absent(error):
            raise
