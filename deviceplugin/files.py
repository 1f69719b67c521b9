"""Files that nobody sees half-written, and that are as they were written after a loss of power. Blocking."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MAX_SOCKET_PATH: Final = 107
"""Bytes of the longest path that fits into sockaddr_un with its closing zero byte."""


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: at any moment a reader finds its old content or the new one.

    The content is first written beside it as `.NAME.new`, because container runtimes read every file of a
    folder that ends in .json.

    Raises:
        OSError: it cannot be written.
    """
    with _synced(path.parent):
        new = _beside(path)
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


def update_file(path: Path, content: bytes) -> bool:
    """Write a file as `replace_file` does unless it has this content; return True if it was written."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return False
    replace_file(path, content)
    return True


def remove_file(path: Path) -> None:
    """Remove a file that `replace_file` wrote, wholly or in part; nothing happens where there is none."""
    if path.parent.is_dir():
        with _synced(path.parent):
            path.unlink(missing_ok=True)
            _beside(path).unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where there is none."""
    if not path.is_dir():
        make_folder(path.parent)
        with _synced(path.parent):
            path.mkdir(exist_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


@contextmanager
def _synced(folder: Path) -> Iterator[None]:
    """Write to the disk which names a folder has; without that a file that was renamed may be lost."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        try:
            os.fsync(handle)
        except OSError as error:
            # Some file systems have nothing to write for a folder.
            if error.errno != errno.EINVAL:
                raise
    finally:
        os.close(handle)
