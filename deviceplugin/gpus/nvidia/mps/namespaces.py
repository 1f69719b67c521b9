"""Namespaces of MPS v3: what the node daemon asks for, and what `gpupack mps` answers, as files.

    ROOT/<UUID>/namespaces/wanted/<name>   an empty file: the node daemon asks for this namespace
    ROOT/<UUID>/namespaces/told/<name>     the answer: empty if the namespace is there, else why it is not

The name says all that there is to ask: whose it is, and its limits. So a namespace is never changed, which
MPS refuses while it has clients. Both sides find everything again after a restart.

https://docs.nvidia.com/deploy/mps/latest/mpsv3-interface.html
"""

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from allocator.ids import SEPARATOR
from deviceplugin.errors import GpuError
from deviceplugin.files import remove_file, replace_file

SERVER: Final = "gpu"
"""The one MPS server of a card's control daemon."""

CUDA_WITH_NAMESPACES: Final = 13_040
"""CUDA 13.4, driver r615, brought MPS v3."""

_NAME: Final = re.compile(r"([up][0-9]{1,6})_c([0-9]{1,3})_m([0-9]{1,8})")


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """A ceiling for all processes of one container, which the MPS server holds.

    The kubelet does not say which pod an Allocate is for. The device IDs do: at any time one container has
    them, or the init containers and the containers of one pod.

    Attributes:
        holder: lowest of the container's device IDs on the card without the UUID: `u3` is unit 3, `p3` is
            percent 3.
        percent: percent of the card's multiprocessors, 1 to 100.
        mib: most memory of each process; 0 where the driver limits the container.
    """

    holder: str
    percent: int
    mib: int

    @property
    def name(self) -> str:
        return f"{self.holder}_c{self.percent}_m{self.mib}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a name; None for one that is not of this kind."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    @classmethod
    def for_container(cls, ids: Iterable[str], uuid: str, percent: int, mib: int) -> Self:
        """Name the namespace of the container with these device IDs.

        Raises:
            GpuError: none of them is on the card.
        """
        numbers = [number for card, _, number in (text.partition(SEPARATOR) for text in ids) if card == uuid]
        if not numbers:
            raise GpuError(f"no device ID of the container is on card {uuid}")
        lowest = min(numbers, key=lambda number: (len(number), number))
        return cls(lowest if lowest.startswith("p") else f"u{lowest}", percent, mib)

    def device_id(self, uuid: str) -> str:
        return f"{uuid}{SEPARATOR}{self.holder.removeprefix('u')}"


class NamespaceFiles:
    """NamespaceFiles is the folder of one card's namespaces, or of its clients of MPS v2, without answers.

    Files that cannot be used are an OSError.

    Args:
        folder: folder of the card's namespaces, or of its clients.
        pipe: folder of the control daemon's sockets.
    """

    def __init__(self, folder: Path, pipe: Path) -> None:
        self._wanted = folder / "wanted"
        self._told = folder / "told"
        self._pipe = pipe

    def pipe_of(self, namespace: Namespace) -> Path:
        """Return the folder that a client of the namespace has as its CUDA_MPS_PIPE_DIRECTORY."""
        return self._pipe / SERVER / namespace.name

    def list_wanted(self) -> frozenset[Namespace]:
        return _list_names(self._wanted)

    def list_told(self) -> frozenset[Namespace]:
        return _list_names(self._told)

    def read_answer(self, namespace: Namespace) -> str | None:
        """Return an empty text if the namespace is there, else why not; None if nothing is said yet."""
        try:
            return (self._told / namespace.name).read_text("utf-8")
        except FileNotFoundError:
            return None

    # What the node daemon writes.

    def want(self, namespace: Namespace) -> None:
        self._wanted.mkdir(parents=True, exist_ok=True)
        (self._wanted / namespace.name).touch()

    def age_s(self, namespace: Namespace) -> float:
        """Return the seconds since it was asked for last."""
        return time.time() - (self._wanted / namespace.name).stat().st_mtime

    def withdraw(self, namespace: Namespace) -> None:
        remove_file(self._wanted / namespace.name)

    # What the supervisor writes.

    def begin(self) -> None:
        """Make the folders. A control daemon that starts has no namespaces, whatever was said before."""
        self._wanted.mkdir(parents=True, exist_ok=True)
        self._told.mkdir(exist_ok=True)
        for file in self._told.iterdir():
            file.unlink(missing_ok=True)

    def answer(self, namespace: Namespace, problem: str) -> None:
        replace_file(self._told / namespace.name, problem.encode())

    def forget(self, namespace: Namespace) -> None:
        remove_file(self._told / namespace.name)


def find_fault(namespace: Namespace, pipe: Path, rows: Collection[list[str]]) -> str:
    """Say what a namespace lacks by the control daemon's list; empty if it is as it was asked for.

    Args:
        rows: `namespace list`, by the documented columns: name, server, its status, pinned memory limit,
            active thread percentage, client priority, pipe directory.
    """
    row = next((row for row in rows if row[:2] == [namespace.name, SERVER]), None)
    if row is None:
        return "it is not among the control daemon's namespaces"
    memory, percent = [*row, "", "", "", "", ""][3:5]
    try:
        is_set = float(percent) == namespace.percent
    except ValueError:
        is_set = False
    if not is_set:
        return f"its active thread percentage is {percent or 'not told'}, not {namespace.percent}"
    if namespace.mib and not memory[:1].isdigit():
        return f"its pinned memory limit is {memory or 'not told'}, not {namespace.mib}M"
    if not (pipe / "control").exists():
        return f"there is no socket {pipe}/control"
    return ""


def _list_names(folder: Path) -> frozenset[Namespace]:
    try:
        names = [file.name for file in folder.iterdir()]
    except FileNotFoundError:
        return frozenset()
    return frozenset(found for found in map(Namespace.parse, names) if found is not None)
