"""Reads and writes the folder in which `gpupack mps` and `gpupack node` meet: a folder a card, shared memory.

    ROOT/shm                 shared memory of control daemons, servers and clients: /dev/shm of all of them
    ROOT/lock                held by the one `gpupack mps` that runs
    ROOT/<UUID>/pipe         the control daemon's sockets, which clients find by CUDA_MPS_PIPE_DIRECTORY
    ROOT/<UUID>/log          its logs
    ROOT/<UUID>/state.json   how many clients it takes, its pid, the pids of its servers, its interface
    ROOT/<UUID>/namespaces   what is asked of MPS v3 for single containers, and answered (`namespaces`)
    ROOT/<UUID>/clients      containers that were given what makes them clients of MPS v2, by names alike
    ROOT/<UUID>/lock         held by `gpupack mps` as long as the control daemon answers

The lock is the kernel's, so it is free as soon as its holder has ended, however it ended.
"""

import errno
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from allocator.ids import is_card_uuid
from deviceplugin.errors import GpuError, is_absent
from deviceplugin.files import update_file
from deviceplugin.gpus.nvidia.mps.namespaces import NamespaceFiles
from kubeapi.errors import UNREADABLE

SHM: Final = "shm"


@dataclass(frozen=True, slots=True)
class ControlDaemonState:
    """The answer of a control daemon.

    Attributes:
        servers: pids of its servers when it was last asked; they use a little of the card themselves.
        pid: pid of the control daemon; 0 if a `gpupack mps` of before does not say.
        interface: 2, or 3 if it makes namespaces for single containers.
    """

    clients: int
    servers: tuple[int, ...] = ()
    pid: int = 0
    interface: int = 2

    @property
    def has_namespaces(self) -> bool:
        return self.interface > 2  # noqa: PLR2004 - MPS v2


def lock_root(root: Path) -> int | None:
    """Become the only `gpupack mps` of a folder: return an open file to keep, None if another one runs.

    Raises:
        OSError: the folder cannot be written to.
    """
    return _locked(root / "lock", fcntl.LOCK_EX)


class CardFolder:
    """The folder of one card.

    Raises:
        GpuError: the UUID cannot name a folder.
    """

    def __init__(self, root: Path, uuid: str) -> None:
        if not is_card_uuid(uuid) or "/" in uuid or uuid.startswith("."):
            raise GpuError(f"card {uuid[:64]!r}: allowed for MPS is a UUID without /")
        self.uuid = uuid
        self.path = root / uuid
        self.pipe = self.path / "pipe"
        self.log = self.path / "log"
        self.namespaces = NamespaceFiles(self.path / "namespaces", self.pipe)
        self.clients = NamespaceFiles(self.path / "clients", self.pipe)
        self._state = self.path / "state.json"
        self._lock = self.path / "lock"
        self._held: int | None = None

    def make(self) -> None:
        for folder in (self.pipe, self.log):
            folder.mkdir(parents=True, exist_ok=True)

    # What the supervisor writes.

    def serve(self, state: ControlDaemonState) -> bool:
        """Announce that the control daemon answers; False while another process holds the lock.

        Raises:
            OSError: the folder cannot be written to.
        """
        update_file(self._state, json.dumps(asdict(state)).encode())
        if self._held is None:
            self._held = _locked(self._lock, fcntl.LOCK_EX)
        return self._held is not None

    @property
    def is_served(self) -> bool:
        """Whether the control daemon answers, as this process last announced."""
        return self._held is not None

    def end(self) -> None:
        """Say that it does not answer any more."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    # What the node daemon reads.

    def state(self) -> ControlDaemonState | None:
        """Read the announcement of the control daemon; None if none answers.

        Raises:
            OSError: it cannot be read, which says nothing: this process may have no file descriptor left.
        """
        try:
            free = _locked(self._lock, fcntl.LOCK_SH, make=False)
            if free is not None:
                os.close(free)
                return None
            return msgspec.json.decode(self._state.read_bytes(), type=ControlDaemonState)
        except UNREADABLE as error:
            raise OSError(errno.EIO, f"no state of a control daemon: {error}", str(self._state)) from error
        except OSError as error:
            if is_absent(error):
                return None
            raise


def _locked(path: Path, kind: int, *, make: bool = True) -> int | None:
    """Take a lock without waiting: an open file, or None if another process holds it."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o644)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file
