"""Reads the kubelet's checkpoint of devices, in which it writes down what each container was given.

`kubelet_internal_checkpoint` lies in the device plugin folder, is owned by root and is replaced by rename.
The kubelet writes it at the end of each container's allocation and after every ListAndWatch message. The
format is the same from Kubernetes 1.22 to 1.37. docs/kubelet-checkpoint.md says what it holds and when it
changes.
"""

import asyncio
import os
import stat
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from allocator.ledger import CheckpointEntry
from deviceplugin.errors import CheckpointError, TornCheckpointError
from deviceplugin.kubelet.sockets import FolderWatch

CHECKPOINT_NAME: Final = "kubelet_internal_checkpoint"
# The clock of file times ticks every 1 to 10 ms: a file that is replaced within that time looks unchanged.
_SETTLED_NS: Final = 50_000_000
_FORMAT: Final = "allowed: the checkpoint of Kubernetes 1.22 to 1.37"
_MESSAGE_CHARS: Final = 256
MOST_BYTES: Final = 64 * 2**20
"""A kubelet's checkpoint of 50 000 IDs, and a thousand pods that hold all of them, takes a tenth of it."""


class FileVersion(NamedTuple):
    """Identifies a version of the file."""

    inode: int
    modified_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A version of the kubelet's file.

    Attributes:
        entries: ordered by pod, container and resource, each at most once. Entries of pods that ended stay
            until the kubelet's next allocation.
    """

    entries: tuple[CheckpointEntry, ...]
    file_version: FileVersion


class _DeviceEntry(msgspec.Struct, frozen=True):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[int, list[str]]


class _CheckpointData(msgspec.Struct, frozen=True):
    # A Go slice that nothing was ever put in is written as null.
    PodDeviceEntries: list[msgspec.Raw] | None
    # Its lists are most of the file, an Allocate waits, and nothing depends on them.
    RegisteredDevices: dict[str, msgspec.Raw]


class _CheckpointFile(msgspec.Struct, frozen=True):
    Data: _CheckpointData
    Checksum: int


_DECODER: Final = msgspec.json.Decoder(_CheckpointFile)
_ENTRY_DECODER: Final = msgspec.json.Decoder(_DeviceEntry)
_KEY: Final = attrgetter("uid", "container", "resource")


class CheckpointReader:
    """Reads the checkpoint, and signals changes.

    The checksum is not verified. The checksum is a hash of how Go prints the kubelet's own types, names
    included. To compute it one must follow each version of them. What it would show, a torn file, is no JSON.
    A kubelet that does not believe its file begins a new one, which the next read shows.

    Args:
        clock: nanoseconds since 1970, the clock of the file's times.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._folder = folder
        self._path = folder / CHECKPOINT_NAME
        self._clock = clock
        self._last_read: Checkpoint | None = None
        self._settled = False
        self._data = b""
        self._entries: dict[bytes, CheckpointEntry] = {}

    def read(self) -> Checkpoint | None:
        """Return the checkpoint as it stands now: the same object as long as the file is the same.

        Returns:
            None when there is no such file: the kubelet has no entries, or lost them at its last start.

        Raises:
            TornCheckpointError: the file is no whole JSON.
            CheckpointError: the file cannot be read, or has an unknown format.
        """
        try:
            found = self._path.stat()
            if (
                self._last_read is not None
                and self._settled
                and _stamp(found) == self._last_read.file_version
            ):
                return self._last_read
            if not stat.S_ISREG(found.st_mode):
                # To open a pipe would wait for a writer, to read a device may never end.
                raise CheckpointError(f"{self._path} cannot be read: it is no regular file"[:_MESSAGE_CHARS])
            with self._path.open("rb") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                if stamp.size > MOST_BYTES:
                    what = f"it has {stamp.size} bytes; allowed: {MOST_BYTES}"
                    raise CheckpointError(f"{self._path} cannot be read: {what}"[:_MESSAGE_CHARS])
                data = file.read()
        except FileNotFoundError:
            self._last_read = None
            return None
        except OSError as error:
            raise CheckpointError(
                f"{self._path} cannot be read: {error.strerror}"[:_MESSAGE_CHARS]
            ) from error
        if self._last_read is None or stamp != self._last_read.file_version or data != self._data:
            try:
                self._last_read, self._entries = decode_checkpoint(data, stamp, self._entries)
            except CheckpointError as error:
                raise type(error)(f"{self._path}: {error}"[:_MESSAGE_CHARS]) from error
        self._settled = self._clock() - stamp.modified_ns > _SETTLED_NS
        self._data = b"" if self._settled else data
        return self._last_read

    async def watch_changes(self) -> AsyncGenerator[None]:
        """Yield once the folder is watched, and then soon after the file was replaced, made or removed.

        Several changes may be one; `read` has the last. Close the generator to end the watch.
        """
        woken = asyncio.Event()
        async with FolderWatch(self._folder, woken.set):
            while True:
                seen = self._read_version()
                yield
                while self._read_version() == seen:
                    woken.clear()
                    await woken.wait()

    def _read_version(self) -> FileVersion | None:
        try:
            return _stamp(self._path.stat())
        except OSError:
            return None


def decode_checkpoint(
    data: bytes, stamp: FileVersion, known: Mapping[bytes, CheckpointEntry]
) -> tuple[Checkpoint, dict[bytes, CheckpointEntry]]:
    """Read one version of the file; the plugin's own answer (AllocResp) is not looked at.

    Args:
        known: The entries of the version before by their texts: nearly all are as they were. A thousand pods
            take 1 ms in place of 4, and the kubelet writes its checkpoint with each Allocate.

    Returns:
        Its contents, and the entries for the next version.

    Raises:
        CheckpointError: no JSON, or another format.
    """
    try:
        decoded = _DECODER.decode(data).Data
        texts = [bytes(raw) for raw in decoded.PodDeviceEntries or ()]
        found = {text: known.get(text) or _read(text, at) for at, text in enumerate(texts)}
    except (ValueError, RecursionError) as error:
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            raise TornCheckpointError(f"torn: {error}"[:_MESSAGE_CHARS]) from error
        raise CheckpointError(f"unknown format: {error}; {_FORMAT}"[:_MESSAGE_CHARS]) from error
    entries = sorted((found[text] for text in texts), key=_KEY)
    if len(set(map(_KEY, entries))) < len(entries):
        twice = " ".join(next(_KEY(one) for one, other in pairwise(entries) if _KEY(one) == _KEY(other)))
        raise CheckpointError(f"unknown format: two entries for {twice}; {_FORMAT}"[:_MESSAGE_CHARS])
    return Checkpoint(entries=tuple(entries), file_version=stamp), found


def _read(text: bytes, at: int) -> CheckpointEntry:
    try:
        entry = _ENTRY_DECODER.decode(text)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        place = f"$.Data.PodDeviceEntries[{at}]{where.rstrip('`')}"
        raise msgspec.ValidationError(f"{what} - at `{place}`") from error
    ids: frozenset[str] = frozenset().union(*entry.DeviceIDs.values())
    return CheckpointEntry(entry.PodUID, entry.ContainerName, entry.ResourceName, ids)


def _stamp(status: os.stat_result) -> FileVersion:
    return FileVersion(status.st_ino, status.st_mtime_ns, status.st_size)
