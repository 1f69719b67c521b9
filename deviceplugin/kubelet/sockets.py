"""Socket files in a folder that other programs delete and create again: who is there, and what changed."""

import asyncio
import secrets
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from watchfiles import Change, awatch

from deviceplugin.errors import RegistrationError

# The longest path that fits into sockaddr_un with its closing zero byte.
MAX_SOCKET_PATH: Final = 107
# The watching thread looks every 100 ms (0.1 % of a core; 50 ms cost 0.18 %) and reports after two looks.
_STEP_MS: Final = 100
_DEBOUNCE_MS: Final = 200
_TICK_MS: Final = 1000


class SocketId(NamedTuple):
    """Tells one socket file from the next at the same path; inode numbers are used again, times are not."""

    inode: int
    modified_ns: int


def identify(path: Path) -> SocketId | None:
    """Return who is at `path`, None when there is no socket."""
    try:
        found = path.stat()
    except OSError:
        return None
    return SocketId(found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def check_socket_path(path: Path) -> None:
    """Refuse a path that no socket can have.

    Raises:
        RegistrationError: the path is longer than 107 bytes.
    """
    if len(bytes(path)) > MAX_SOCKET_PATH:
        raise RegistrationError(f"socket path {path}: allowed are {MAX_SOCKET_PATH} bytes")


def clear_socket_path(path: Path) -> None:
    """Make room for a socket at `path`: remove the one that a killed process left there.

    Raises:
        RegistrationError: something else is there, or it cannot be removed.
    """
    try:
        if path.exists() and not path.is_socket():
            raise RegistrationError(f"{path} is in the way: only a socket may be there")
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RegistrationError(f"{path} cannot be replaced: {error.strerror}") from error


def name_of_our_own(endpoint: str) -> str:
    """Name a socket as no process before us did.

    A kubelet of 1.37 that is asked to register a socket while it still knows a plugin there, as one that was
    frozen may be, loses sight of both: in the end it offers devices that nobody serves, and refuses that
    socket until it is restarted.

    Args:
        endpoint: the name that ours is made of.
    """
    name = Path(endpoint)
    return f"{name.stem}-{secrets.token_hex(3)}{name.suffix}"


def clear_left_over(folder: Path, endpoint: str) -> None:
    """Remove the sockets that processes before us left; whoever calls this is the only one that serves.

    Args:
        folder: where the sockets are; need not exist.
        endpoint: the name that theirs are made of.
    """
    name = Path(endpoint)
    for path in (folder / endpoint, *folder.glob(f"{name.stem}-*{name.suffix}")):
        with suppress(RegistrationError):
            clear_socket_path(path)


class FolderWatch:
    """Calls back soon after anything in a folder changed, and once a second besides.

    The second look is for what no watch can promise: events that were lost, a folder that was itself
    deleted and created again, a folder that does not exist yet.

    Args:
        folder: what to watch, without its sub-folders.
        on_change: called in the event loop, without saying what changed.
    """

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        self._folder = folder
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start; when this returns and the folder exists, the kernel is already watching."""
        self._task = asyncio.create_task(self._run())
        # The watch is made in the task's first step, before its first wait.
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop, and wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._watch_once()
            except (OSError, RuntimeError):
                # No folder yet, or no watch to be had (the kernel's limit): look once a second.
                await asyncio.sleep(_TICK_MS / 1000)
            self._on_change()

    async def _watch_once(self) -> None:
        """Watch until the folder is no longer the one that the watch was made for."""
        inode = self._folder.stat().st_ino
        events: AsyncGenerator[set[tuple[Change, str]], None] = awatch(
            self._folder,
            watch_filter=None,
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            recursive=False,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
        )
        try:
            async for _ in events:
                self._on_change()
                if self._folder.stat().st_ino != inode:
                    return
        finally:
            await events.aclose()
