"""Folders that the kernel is asked to watch, and whether it does: its watches are few and shared by all.

`fs.inotify.max_user_watches` and `max_user_instances` bound what all processes of a user have together, here
root's. On a busy node other programs use them up.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.errors import is_absent
from deviceplugin.host.inotify import Inotify

log = structlog.get_logger(__name__)

_USED_UP: Final = {
    errno.ENOSPC: "fs.inotify.max_user_watches is used up, raise it",
    errno.EMFILE: "fs.inotify.max_user_instances or this process's open files are used up, raise them",
}


def describe_watch_problem(error: OSError) -> str:
    """Say what keeps the kernel from watching a folder, and what to do about it."""
    return _USED_UP.get(error.errno or 0, str(error))


class CgroupWatch:
    """Watches folders as far as the kernel lets it, and knows whether one is not watched.

    While `problem` is set, the caller must poll for changes. After `retry` has cleared it, everything must be
    checked once more, because earlier changes were not reported.

    Args:
        on_change: Called with a folder and the name of what appeared or disappeared in it.
        on_lost: Called when events were lost, or begin to be.
    """

    def __init__(self, on_change: Callable[[Path, str], None], on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._inotify = Inotify(on_change, on_lost)
        self._open = False
        self._unwatched: set[Path] = set()
        self._unseen: str | None = None
        self._unread: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the caller must poll for changes: a folder is not watched, or could not be read."""
        return self._unseen or self._unread

    @property
    def folders(self) -> frozenset[Path]:
        """Folders that the kernel watches, and those that it should."""
        return self._inotify.folders | self._unwatched

    def close(self) -> None:
        self._inotify.close()

    def watch(self, folder: Path) -> bool:
        """Watch a folder from now on, by `retry` if that fails now; return False if it is gone."""
        try:
            self._ensure_open()
            self._inotify.watch(folder)
        except OSError as error:
            if is_absent(error):
                self._unwatched.discard(folder)
                self._record_watch_error(None)
                return False
            self._unwatched.add(folder)
            self._record_watch_error(error)
        else:
            self._unwatched.discard(folder)
            self._record_watch_error(None)
        return True

    def unwatch(self, folder: Path) -> None:
        self._unwatched.discard(folder)
        self._inotify.unwatch(folder)

    def retry(self) -> None:
        """Begin, or try again to watch what could not be watched."""
        for folder in list(self._unwatched):
            if self.watch(folder) and folder in self._unwatched:
                return  # one attempt says it for all
        try:
            self._ensure_open()
        except OSError as error:
            self._record_watch_error(error)
        else:
            self._record_watch_error(None)

    def _ensure_open(self) -> None:
        if not self._open:
            self._inotify.open()
            self._open = True

    def record_read(self, error: OSError | None) -> None:
        """Record whether all folders could be read last time."""
        before, self._unread = self._unread, None if error is None else str(error)
        if before is None and self._unread is not None:
            log.warning("cgroups cannot be read, their limits stay as they are", error=self._unread)
        elif before is not None and self._unread is None:
            log.info("cgroups can be read again")

    def _record_watch_error(self, error: OSError | None) -> None:
        before = self._unseen
        if error is not None:
            self._unseen = describe_watch_problem(error)
        elif self._open and not self._unwatched:
            self._unseen = None
        if before is None and self._unseen is not None:
            log.warning("new cgroups are looked for, the kernel does not tell of them", error=self._unseen)
            self._on_lost()
        elif before is not None and self._unseen is None:
            log.info("the kernel tells of new cgroups again")
