"""The cluster's own cgroup, in every v1 hierarchy or in v2, so that two clusters never meet."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.harness.polling import until

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "gpupack-test-"


def hierarchies() -> list[Path]:
    """The mount points that carry process groups: one for v2, one a controller for v1."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    return sorted({entry.resolve() for entry in MOUNT.iterdir() if (entry / "cgroup.procs").exists()})


def create(name: str) -> None:
    """Make the group `name` everywhere, with what the kubelet expects to find in it."""
    for top in hierarchies():
        group = top / name
        group.mkdir(exist_ok=True)
        if top == MOUNT:
            wanted = set((top / "cgroup.controllers").read_text().split())
            (top / "cgroup.subtree_control").write_text(
                " ".join(f"+{controller}" for controller in sorted(wanted))
            )
        elif (group / "cpuset.cpus").exists():
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((top / file).read_text())


def remove(name: str) -> None:
    """Kill what still runs in the group `name` (our own containers, nobody else's) and remove it.

    Raises:
        AssertionError: If it is still there after a minute.
    """
    until(lambda: not _try_to_remove(name), f"cgroup {name} removed")


def remove_orphans() -> None:
    """Remove the groups and folders of clusters whose test process was killed and could not clean up."""
    folders = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    groups = (group for top in hierarchies() for group in top.glob(f"{PREFIX}*"))
    for name in {path.name for path in (*folders, *groups)}:
        owner = name.removeprefix(PREFIX).split("-")[0]
        if not Path(f"/proc/{owner}").exists():
            remove(name)
            shutil.rmtree(Path(tempfile.gettempdir(), name), ignore_errors=True)


def existing(name: str) -> list[Path]:
    """Where the group `name` exists."""
    return [top / name for top in hierarchies() if (top / name).exists()]


def processes(name: str) -> set[int]:
    """Host pids of all processes in the group `name` and below."""
    return {pid for group in existing(name) for folder in _deepest_first(group) for pid in _pids(folder)}


def find(name: str, ending: str) -> list[Path]:
    """Folders below the group `name` whose own name ends with `ending` (a pod UID, a container ID)."""
    return [
        folder for group in existing(name) for folder in _deepest_first(group) if folder.name.endswith(ending)
    ]


def container_pids(name: str, container_id: str) -> set[int]:
    return {pid for folder in find(name, container_id) for pid in _pids(folder)}


def _try_to_remove(name: str) -> list[Path]:
    for group in existing(name):
        for folder in _deepest_first(group):
            for pid in _pids(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                folder.rmdir()
    return existing(name)


def _deepest_first(group: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(group, topdown=False):
        yield Path(folder)


def _pids(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []
