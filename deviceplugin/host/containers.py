"""Finds the cgroups of pods and of their containers, and which container each one is.

containerd, CRI-O and cri-dockerd name a container's cgroup after its ID, below the pod's: `<id>`,
`cri-containerd-<id>.scope`, `crio-<id>`, `docker-<id>.scope`. The pod's sandbox has such a cgroup too, and
CRI-O's monitor (`crio-conmon-<id>`), which is no container, one with its container's ID.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.host.cgroups import find_pod_parents, list_directories, list_pod_directories

_CONTAINER: Final = re.compile(r"^(?:([a-z][a-z0-9-]*)-)?([0-9a-f]{64})(?:\.scope)?$")
_LOG: Final = re.compile(r"^[^_]+_[^_]+_([^_]+)-([0-9a-f]{64})\.log$")
_MONITOR: Final = "conmon"


def parse_container_id(name: str) -> str | None:
    """Read the container's ID out of the name of its cgroup; None if it is none, or a monitor's."""
    found = _CONTAINER.match(name)
    return found[2] if found and not (found[1] or "").endswith(_MONITOR) else None


def parse_log_name(name: str) -> tuple[str, str] | None:
    """Read ID and name of a container out of the name of the link that the kubelet makes to its log.

    The kubelet makes `<pod>_<namespace>_<container>-<id>.log` right after it started the container, a second
    or more before it tells the API server the ID.
    """
    found = _LOG.match(name)
    return (found[2], found[1]) if found else None


class PodFolders:
    """Finds the cgroups of pods."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parents: list[Path] = []

    def list_parents(self) -> list[Path]:
        """Look where pods are, and list the folders that theirs appear in, one for each quality of service.

        `find` goes by the last look: the kubelet may be told another place, or begin to use one.

        Raises:
            OSError: a folder cannot be read, though it is there.
        """
        self._parents = list(find_pod_parents(self._root))
        return [
            folder
            for parent in self._parents
            for folder in (parent, *(below for below in list_directories(parent) if _is_quality(below.name)))
        ]

    def find_pod(self, uid: str) -> Path | None:
        """Find a pod's cgroup; None if it has none (yet)."""
        return next((path for path in list_pod_directories(self._parents, uid) if path.is_dir()), None)


def list_container_cgroups(pod: Path) -> dict[Path, str]:
    """Find the cgroups of containers in a pod's, the sandbox's too, with their IDs; none if that is gone.

    Raises:
        OSError: it cannot be read, though it is there.
    """
    found = ((path, parse_container_id(path.name)) for path in list_directories(pod))
    return {path: identifier for path, identifier in found if identifier is not None}


def read_container_cgroups(pods: Mapping[str, Path]) -> tuple[dict[str, dict[Path, str]], OSError | None]:
    """Read the cgroups of containers of several pods.

    Returns:
        As of `list_container_cgroups` for each pod that can be read, and why one cannot.
    """
    found: dict[str, dict[Path, str]] = {}
    unread: OSError | None = None
    for uid, folder in pods.items():
        try:
            found[uid] = list_container_cgroups(folder)
        except OSError as error:
            unread = error
    return found, unread


def _is_quality(name: str) -> bool:
    return name.removesuffix(".slice").rpartition("-")[2] in {"burstable", "besteffort"}
