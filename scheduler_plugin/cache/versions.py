"""resourceVersions: which events of objects are old, and when a list is of another history."""

from collections.abc import Iterable
from typing import Final

from kubeapi.bounded import BoundedDict

MAX_DELETIONS: Final = 16384
"""Deletions that are remembered: no event is expected to come later than so many other deletions."""


def is_other_history(version: int, shown: Iterable[tuple[int, int]]) -> bool:
    """Return True if a complete list cannot belong to the history that is known.

    A list is consistent: it shows every object as it was at the list's version. If it shows an object in an
    older version than one that was known to exist by then, an older state of etcd was restored.

    Args:
        shown: The version in the list and the known version, of each object that has both.
    """
    return any(0 < listed < known <= version for listed, known in shown)


class ObjectVersions:
    """The newest list's version, and the versions at which objects were deleted."""

    def __init__(self) -> None:
        self._listed = -1
        self._deletions: BoundedDict[str, int] = BoundedDict(MAX_DELETIONS)

    def is_old(self, key: str, version: int) -> bool:
        """Return True if an unknown object had been deleted by this version; 0 is no version."""
        return 0 < version <= max(self._listed, self._deletions.get(key, -1))

    def record_deletion(self, key: str, version: int) -> None:
        self._deletions[key] = version

    def find_deletion(self, key: str) -> int | None:
        return self._deletions.get(key)

    def record_list(self, version: int) -> None:
        self._listed = max(self._listed, version)

    def reset(self) -> None:
        """Forget everything, because another history counts from now on."""
        self._listed = -1
        self._deletions.clear()
