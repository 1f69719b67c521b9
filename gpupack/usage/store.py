"""Keeps periods: in memory, or in a file of JSON lines. Both are bounded; the oldest go first."""

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from allocator.errors import shown
from gpupack.errors import InputError
from gpupack.usage.records import Period

MAX_POD_USES: Final = 300_000
"""In memory: 1 000 pods for a day; some 60 MiB."""
MAX_BYTES: Final = 128 * 2**20
"""In the file; when it has grown beyond, the newer half stays."""

_ALLOWED: Final = "allowed: a file that `gpupack dashboard --history FILE` wrote"

_decode = msgspec.json.Decoder(Period).decode


class MemoryStore:
    """Keeps periods in this process."""

    def __init__(self, max_pod_uses: int = MAX_POD_USES) -> None:
        self._max = max_pod_uses
        self._periods: deque[Period] = deque()
        self._uses = 0

    def add(self, period: Period) -> None:
        self._periods.append(period)
        self._uses += 1 + len(period.pods)
        while self._uses > self._max and len(self._periods) > 1:
            self._uses -= 1 + len(self._periods.popleft().pods)

    def list_periods(self) -> list[Period]:
        """List the periods, oldest first."""
        return list(self._periods)

    def close(self) -> None:
        """Do nothing: no file is open."""


class HistoryFile:
    """Keeps periods in a file, for one process at a time.

    Args:
        path: path of the file; made where there is none.

    Raises:
        InputError: another process keeps it, or it is something else.
        OSError: it cannot be read and written.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path)
        self._max = max_bytes
        self._file = self._opened()

    def _opened(self) -> IO[bytes]:
        file = self._path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise InputError(f"{self._path}: another process keeps its history there") from error
        try:
            check_history(self._path)
        except InputError:
            file.close()
            raise
        return file

    def add(self, period: Period) -> None:
        """Keep one. Blocking."""
        self._file.seek(0, os.SEEK_END)
        torn = self._file.tell() and not self._ends_in_a_line()
        self._file.write((b"\n" if torn else b"") + msgspec.json.encode(period) + b"\n")
        self._file.flush()
        if self._file.tell() > self._max:
            self._shorten()

    def _ends_in_a_line(self) -> bool:
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1) == b"\n"

    def _shorten(self) -> None:
        """Keep the newer half: written beside, then put in its place."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept, size = len(lines), 0
        while kept > 1 and size + len(lines[kept - 1]) <= self._max // 2:
            kept -= 1
            size += len(lines[kept])
        beside = self._path.with_name(f".{self._path.name}.new")
        beside.write_bytes(b"".join(lines[kept:]))
        file = beside.open("a+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        beside.replace(self._path)
        self._file.close()
        self._file = file

    def list_periods(self) -> list[Period]:
        """List the periods, oldest first. Blocking."""
        return list(read_history(self._path))

    def close(self) -> None:
        self._file.close()


def check_history(path: Path) -> None:
    """Refuse a file of something else by its first line.

    Raises:
        InputError: names it.
    """
    with path.open("rb") as file:
        first = file.readline(MAX_BYTES)
    if first.strip():
        try:
            _decode(first)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InputError(
                f"{path} begins with {shown(first[:60].decode(errors='replace'))}; {_ALLOWED}"
            ) from error


def read_history(path: Path) -> Iterator[Period]:
    """Read a history, oldest first; a line that was cut off by a kill is left out.

    Raises:
        InputError: it is something else.
        OSError: it cannot be read.
    """
    check_history(path)
    with path.open("rb") as file:
        for line in file:
            try:
                yield _decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                continue
