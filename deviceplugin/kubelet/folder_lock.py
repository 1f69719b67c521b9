"""Lock on a device plugin folder: each kubelet is served by one daemon.

The lock is the kernel's flock on the folder itself. The kernel gives it back when the process ends, however
it ends, so no crash leaves one. There is no lock file that the kubelet could take away when it clears the
folder at its start. Pods that mount the folder see the same one, in whatever container.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_LOCKS: Final = Path("/proc/locks")


class FolderLock:
    """The lock on a device plugin folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free, without waiting; return True if this process has it.

        Where the file system knows no such lock, or the folder cannot be opened, nothing stops this process.
        """
        if self._file is not None:
            return True
        try:
            file = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            log.warning("folder cannot be locked", folder=str(self._folder), error=error.strerror)
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            log.warning("folder cannot be locked", folder=str(self._folder), error=error.strerror)
        self._file = file
        return True

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def find_holder_pid(self) -> int | None:
        """Return the pid of the process that has the lock; None if it is free or that is not visible.

        A process of another pid namespace is seen from the host's only (`hostPID`).
        """
        try:
            found = self._folder.stat()
            return find_holder(_LOCKS.read_text(encoding="ascii"), found.st_dev, found.st_ino)
        except OSError:
            return None


def find_holder(locks: str, device: int, inode: int) -> int | None:
    """Find who holds an flock on a file by its device and inode, in the text of /proc/locks."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks.splitlines():
        match line.split():
            case [_, "FLOCK", "ADVISORY", "WRITE", pid, file, *_] if file == wanted and int(pid) > 0:
                return int(pid)
    return None
