"""Socket files in a folder where other programs delete and create them: which exist, what changed."""

import asyncio
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from deviceplugin.errors import RegistrationError
from deviceplugin.files import MAX_SOCKET_PATH
from deviceplugin.host.inotify import Inotify

_TICK_S: Final = 1.0


class SocketId(NamedTuple):
    """Identifies a socket file: the next one at its path may have its inode number, but not its time."""

    inode: int
    modified_ns: int


def identify(path: Path) -> SocketId | None:
    """Return the identity of the socket at `path`, None if there is none."""
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
        raise RegistrationError(f"socket path {path}; allowed: {MAX_SOCKET_PATH} bytes")


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

    A kubelet of 1.37 may still know a plugin at a socket, as one that was frozen. Asked to register that
    socket again it loses sight of both: it offers devices that nobody serves, and refuses the socket until
    it is restarted.
    """
    name = Path(endpoint)
    return f"{name.stem}-{secrets.token_hex(3)}{name.suffix}"


def clear_left_over(folder: Path, endpoint: str) -> None:
    """Remove the sockets that earlier processes left; the caller must be the only one that serves."""
    name = Path(endpoint)
    for path in (folder / endpoint, *folder.glob(f"{name.stem}-*{name.suffix}")):
        with suppress(RegistrationError):
            clear_socket_path(path)


class FolderWatch:
    """Calls back when anything in a folder, but for its sub-folders, changed, and once a second besides.

    The second look is for what no watch can promise: lost events, or a kernel that has no watch left. The
    folder may not exist yet, or be deleted and created again.

    Args:
        on_change: called in the event loop, without saying what changed.
    """

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        self._folder = folder
        self._on_change = on_change
        self._inotify = Inotify(lambda _folder, _name: on_change(), on_change)
        self._open = False
        self._tick: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Start; when this returns and the folder exists, the kernel is already watching."""
        self._watch()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self._inotify.close()

    def _watch(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._look_again)
        with suppress(OSError):
            if not self._open:
                self._inotify.open()
                self._open = True
            # A watch ends when its folder is removed: a folder that was made again must be watched anew.
            self._inotify.watch(self._folder, written=True)

    def _look_again(self) -> None:
        self._watch()
        self._on_change()
