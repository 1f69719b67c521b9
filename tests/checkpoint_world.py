"""A kubelet's checkpoint for unit tests: says what it is told to."""

from allocator.ledger import CheckpointEntry
from deviceplugin.errors import CheckpointError, TornCheckpointError
from tests.ledger_world import RESOURCE


class Contents:
    """The entries of one version of the checkpoint."""

    def __init__(self, entries: list[CheckpointEntry]) -> None:
        self.entries = tuple(entries)


class FakeCheckpoint:
    """What the kubelet wrote last; a new object at each write, like the reader's."""

    def __init__(self) -> None:
        self.written: dict[tuple[str, str, str], frozenset[str]] = {}
        self.contents: Contents | None = None
        self.problem: str | None = None
        self.torn = False
        self.reads = 0

    def read(self) -> Contents | None:
        self.reads += 1
        if self.problem is not None:
            raise (TornCheckpointError if self.torn else CheckpointError)(self.problem)
        return self.contents

    def write(
        self,
        uid: str | None = None,
        ids: frozenset[str] = frozenset(),
        *,
        container: str = "main",
        resource: str = RESOURCE,
    ) -> None:
        """Write the checkpoint, first putting what one container got into it."""
        if uid is not None:
            self.written[uid, container, resource] = ids
        self.contents = Contents([CheckpointEntry(*key, ids) for key, ids in self.written.items()])

    def drop(self, uid: str) -> None:
        self.written = {key: ids for key, ids in self.written.items() if key[0] != uid}
        self.write()
