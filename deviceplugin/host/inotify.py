"""Tells at once what appears and disappears in folders: the kernel's inotify on the event loop.

A limit must be in force some ms after a cgroup was made, in folders that come and go, and idling must cost
nothing: libraries that watch folders look from threads, ten times a second and more.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

_WRITTEN: Final = 0x8
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_MOVED: Final = 0xC0
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLYDIR: Final = 0x01000000
_HEAD: Final = struct.Struct("iIII")
_BYTES: Final = 1 << 16


class Inotify:
    """Watches folders, without their sub-folders. Belongs to one event loop.

    Args:
        on_change: called with a folder and the name of what appeared or disappeared in it.
        on_lost: called when events were lost: whatever is watched may have changed.
    """

    def __init__(self, on_change: Callable[[Path, str], None], on_lost: Callable[[], None]) -> None:
        self._on_change = on_change
        self._on_lost = on_lost
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._folders: dict[int, Path] = {}
        self._numbers: dict[Path, int] = {}

    @property
    def folders(self) -> frozenset[Path]:
        return frozenset(self._numbers)

    def open(self) -> None:
        """Begin.

        Raises:
            OSError: the kernel has no instance left (fs.inotify.max_user_instances).
        """
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("inotify")
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        """End; closing twice is allowed."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._folders.clear()
            self._numbers.clear()

    def watch(self, folder: Path, *, written: bool = False) -> None:
        """Watch a folder, and with `written` also files once they are closed; twice is allowed.

        Raises:
            OSError: it is gone, or the kernel watches no more folders (fs.inotify.max_user_watches).
        """
        mask = _CREATE | _DELETE | _MOVED | _ONLYDIR | (_WRITTEN if written else 0)
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if number < 0:
            raise _error(str(folder))
        before = self._numbers.get(folder)
        if before not in {None, number}:
            # A folder of the same name was made again.
            self.unwatch(folder)
        self._folders[number] = folder
        self._numbers[folder] = number

    def unwatch(self, folder: Path) -> None:
        """Stop watching a folder; for a removed cgroup the kernel does not do that itself."""
        number = self._numbers.pop(folder, None)
        if number is not None:
            self._folders.pop(number, None)
            self._libc.inotify_rm_watch(self._fd, number)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                self._on_lost()
                continue
            folder = self._folders.get(number)
            if mask & _IGNORED:
                if folder is not None and self._numbers.get(folder) == number:
                    del self._numbers[folder], self._folders[number]
            elif folder is not None:
                name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                self._on_change(folder, name)


def probe_watch(folder: Path) -> None:
    """Test whether one more folder can be watched; it is not watched afterwards.

    Raises:
        OSError: it cannot, see `Inotify.open` and `Inotify.watch`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.inotify_init1(os.O_CLOEXEC)
    if file < 0:
        raise _error("inotify")
    try:
        if libc.inotify_add_watch(file, os.fsencode(folder), _CREATE | _ONLYDIR) < 0:
            raise _error(str(folder))
    finally:
        os.close(file)


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)
