"""Finds the pod of a process, and the pods that still have containers, in the kernel's cgroups.

Works with cgroup v1 and v2, and with both of the kubelet's ways to name cgroups: cgroupfs
(`kubepods/burstable/pod<uid>/<container>`) and systemd
(`kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with underscores>.slice/...scope`), below
any parent. Pids are those of the host, so the daemon needs the host's pid namespace.
"""

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.errors import is_absent

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD_SEGMENT = re.compile(rf"(?:^|[/-])pod({_UID})(?:\.slice)?(?=/|$)", re.IGNORECASE)
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_HOST_PID_NAMESPACE: Final = 4026531836  # the inode of the first one, the same on every Linux
# A service may be one: that of a kubelet whose systemd gives it its cgroup, or of a user (rootless k3s).
_NEVER_PARENTS = (".mount", ".socket", ".swap")


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """The pod of a process, by the kubelet's UID for it, and its container's ID or empty."""

    uid: str
    container_id: str


@dataclass(frozen=True, slots=True)
class CgroupProbe:
    """The result of one probe of some pods' cgroups; pods in neither set have no container left.

    Attributes:
        alive: UIDs of pods that have a container left.
        unknown: UIDs of pods whose cgroups could not be read, so that their state is unknown.
        problem: why the first of them could not be read, None if all could.
    """

    alive: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    problem: str | None = None


def in_host_pid_namespace() -> bool:
    """Return True if this process sees the host's processes by their own pids."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return False


def find_process_place(cgroup_text: str) -> ProcessPlace | None:
    """Find pod and container in the text of `/proc/PID/cgroup`; None for a process of no pod.

    The deepest pod counts, so that a cluster inside a pod sees its own pods. A static pod's UID is the
    kubelet's own for it.
    """
    for line in cgroup_text.splitlines():
        path = line.split(":", 2)[-1].removesuffix(" (deleted)")
        found = list(_POD_SEGMENT.finditer(path))
        if found:
            below = _CONTAINER_ID.search(path, found[-1].end())
            return ProcessPlace(found[-1][1].lower().replace("_", "-"), below[0] if below else "")
    return None


def parse_pod_uid(name: str) -> str | None:
    """Read the UID out of the name of a pod's cgroup; None if it is none."""
    place = find_process_place(name)
    return place.uid if place is not None else None


class ProcessOwners:
    """Looks up where processes run; one that ended and is still asked about keeps the place it had."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last: dict[int, ProcessPlace | None] = {}

    def find_places(self, pids: Iterable[int]) -> Mapping[int, ProcessPlace | None]:
        """Find pod and container of each process, None if it is of no pod; unknown pids are left out."""
        places: dict[int, ProcessPlace | None] = {}
        for pid in pids:
            try:
                text = (self._proc / str(pid) / "cgroup").read_text("utf-8", "replace")
            except OSError:
                if pid in self._last:
                    places[pid] = self._last[pid]
            else:
                places[pid] = find_process_place(text)
        self._last = places
        return places


class PodCgroups:
    """Tells which pods still have a container with a process in it.

    Invariant: only a cgroup that the kernel calls gone, or empty, counts as such. A daemon without a file
    descriptor left sees no folder at all, and would end the charges of pods that run.

    Args:
        root: where the host's cgroups are mounted.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._root = root

    def probe(self, uids: Collection[str]) -> CgroupProbe:
        """Find which of `uids` still have a container's cgroup; where in doubt, they have.

        A cgroup directory that the runtime forgot to remove does not count once nothing runs in it.
        """
        if not uids:
            return CgroupProbe()
        try:
            parents = find_host_pod_parents(self._root)
        except OSError as error:
            return CgroupProbe(unknown=frozenset(uids), problem=str(error))
        alive, unknown, problem = set(), set(), None
        for uid in uids:
            try:
                if any(_has_container(path) for path in list_pod_directories(parents, uid)):
                    alive.add(uid)
            except OSError as error:
                unknown.add(uid)
                problem = problem or str(error)
        return CgroupProbe(frozenset(alive), frozenset(unknown), problem)


def find_host_pod_parents(root: Path) -> list[Path]:
    """Find the directories that hold pods; empty if the host's cgroups are there and no pod has one.

    Raises:
        OSError: a directory cannot be read, or the host's cgroups are not there.
    """
    root.stat()  # without it no pod has a cgroup, whatever runs
    parents = list(find_pod_parents(root))
    if not parents and _is_not_the_hosts(root):
        raise OSError(f"{root} has no kubepods folder and is not the host's: mount that there")
    return parents


def _is_not_the_hosts(root: Path) -> bool:
    """Tell whether a folder cannot be where the host's cgroups are: nothing is mounted, or a container's own.

    With cgroup v2 only the first of all cgroups has no `cgroup.events`.

    Raises:
        OSError: it cannot be read, though it is there.
    """
    return not any(root.iterdir()) or _read(root / "cgroup.events") is not None


def find_pod_parents(root: Path) -> Iterator[Path]:
    """Find the directories that hold pods, however deep; with v1 in one hierarchy that has them.

    Raises:
        OSError: a directory cannot be read, though it is there.
    """
    if (root / "cgroup.controllers").exists():
        yield from _find_kubepods(root)
        return
    hierarchies = list_directories(root)
    found = [folder for folder in hierarchies if _is_kubepods(folder)]
    for hierarchy in hierarchies:
        if not found:
            found = list(_find_kubepods(hierarchy))
    yield from found


def list_directories(path: Path) -> list[Path]:
    """List the directories in a directory, without links; empty if it is gone.

    Raises:
        OSError: it cannot be read, though it is there.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        if is_absent(error):
            return []
        raise


def _find_kubepods(path: Path) -> Iterator[Path]:
    # No recursion: the owner of a cgroup may nest more of them than Python's stack can follow.
    left = [path]
    while left:
        path = left.pop()
        try:
            folders = list_directories(path)
        except OSError as error:
            if _is_no_place_for_pods(path, error):
                continue
            raise
        for folder in folders:
            if _is_kubepods(folder):
                yield folder
            elif not folder.name.endswith(_NEVER_PARENTS):
                left.append(folder)


def _is_no_place_for_pods(folder: Path, error: OSError) -> bool:
    """Return True if an unreadable folder belongs to a user, who must not keep all charges from ending.

    He may close a cgroup of his own to all others, or nest so many that no path reaches them.
    """
    if error.errno == errno.ENAMETOOLONG:
        return True
    return error.errno == errno.EACCES and folder.stat().st_uid != os.geteuid()


def _is_kubepods(folder: Path) -> bool:
    return folder.name in {"kubepods", "kubepods.slice"} or folder.name.endswith("-kubepods.slice")


def list_pod_directories(parents: Iterable[Path], uid: str) -> Iterator[Path]:
    """Name the directories that a pod may have, for each quality of service."""
    for parent in parents:
        if parent.name.endswith(".slice"):
            stem, tail = parent.name.removesuffix(".slice"), f"pod{uid.replace('-', '_')}.slice"
            yield parent / f"{stem}-{tail}"
            for quality in ("burstable", "besteffort"):
                yield parent / f"{stem}-{quality}.slice" / f"{stem}-{quality}-{tail}"
        else:
            yield parent / f"pod{uid}"
            for quality in ("burstable", "besteffort"):
                yield parent / quality / f"pod{uid}"


def _has_container(pod: Path) -> bool:
    return any(_populated(container) for container in list_directories(pod))


def _populated(cgroup: Path) -> bool:
    """Tell whether a process is in the cgroup or below it; True where the kernel's files do not say.

    Raises:
        OSError: it cannot be read, though it is there.
    """
    left = [cgroup]
    while left:
        cgroup = left.pop()
        events = _read(cgroup / "cgroup.events")
        if events is not None:
            populated = "populated 0" not in events.splitlines()
        elif (procs := _read(cgroup / "cgroup.procs")) is not None:
            populated = bool(procs.strip())
            left += list_directories(cgroup)
        else:
            # Gone between the two looks, or not the kernel's: a directory without the file is in doubt.
            populated = cgroup.exists()
        if populated:
            return True
    return False


def _read(file: Path) -> str | None:
    """Read a file of a cgroup; None if it is gone, or the kernel has no such file."""
    try:
        return file.read_text("ascii")
    except OSError as error:
        if is_absent(error):
            return None
        raise
