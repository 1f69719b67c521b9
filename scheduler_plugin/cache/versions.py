"""resourceVersions: which news about objects of one kind is old, and when a list is of another history."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

REMEMBERED_ENDS: Final = 16384
"""Objects whose end is remembered; events that come later than so many other ends are not to be expected."""


def contradicts(version: int, shown: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a complete list can not belong to the history that is known.

    A list is consistent: it shows every object as it was at the list's version. One that shows an object
    older than it is known from before that version was made after an older state of etcd had been restored.

    Args:
        version: Of the list.
        shown: Of each object that is known and listed: its version in the list, and the one known.
    """
    return any(0 < listed < known <= version for listed, known in shown)


class Versions:
    """The versions of complete lists, and of the ends of objects that are not known any more."""

    def __init__(self) -> None:
        self._listed = -1
        self._ends: OrderedDict[str, int] = OrderedDict()

    def is_old(self, key: str, version: int) -> bool:
        """Tell whether an object that is not known had ended by this version; 0 is no version."""
        return 0 < version <= max(self._listed, self._ends.get(key, -1))

    def ended(self, key: str, version: int) -> None:
        """Remember the end of an object."""
        self._ends[key] = version
        self._ends.move_to_end(key)
        if len(self._ends) > REMEMBERED_ENDS:
            self._ends.popitem(last=False)

    def listed(self, version: int) -> None:
        """Remember a complete list."""
        self._listed = max(self._listed, version)

    def forget(self) -> None:
        """Begin anew: another history counts."""
        self._listed = -1
        self._ends.clear()
