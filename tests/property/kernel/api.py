"""What the API servers of the models have in common: logs of events, and watches that are behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from standins.apiserver.patch import apply_patch
from standins.apiserver.status import RefusedError

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One change.

    Attributes:
        version: Its resourceVersion.
        kind: ADDED, MODIFIED or DELETED.
        item: The object after it; before it, for DELETED.
    """

    version: int
    kind: str
    item: T


class Watch(Generic[E]):
    """Reads a log of events at its own pace; it begins where the log ends.

    Attributes:
        cursor: How many events it has read, or skipped.
    """

    def __init__(self, log: list[E]) -> None:
        self.log = log
        self.skip()

    def skip(self) -> None:
        """Know all that has happened, as after a list."""
        self.cursor = len(self.log)

    def read(self) -> E | None:
        """Read the next event, None where there is none yet."""
        if self.cursor == len(self.log):
            return None
        self.cursor += 1
        return self.log[self.cursor - 1]

    @property
    def unread(self) -> list[E]:
        return self.log[self.cursor :]


def patch_json(raw: dict[str, Any], patch: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Carry a JSON patch out on a copy of an object: all of it, or None where a test fails."""
    try:
        return apply_patch(raw, patch, "application/json-patch+json")
    except RefusedError:
        return None


def named_node(pod: dict[str, Any]) -> str:
    """The node that the queue has named in batch mode, empty for none."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms", ()):
        for each in term.get("matchFields", ()):
            return str(each["values"][0])
    return ""
