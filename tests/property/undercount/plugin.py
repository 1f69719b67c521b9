"""What the model kubelet and the model daemon share: the checkpoint, and the plugin's decisions."""

from dataclasses import dataclass, field

from allocator.ledger import CheckpointEntry

from .world import ModelPod


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The file's content; a new object for each write."""

    entries: tuple[CheckpointEntry, ...]


@dataclass
class Admission:
    """A pod that is being admitted, and the next of its containers."""

    pod: ModelPod
    next: int = 0
    reusable: set[str] = field(default_factory=set)


class Plugin:
    """What the kubelet calls: the device plugin's two decisions."""

    def has_seen(self, uid: str) -> bool:
        """Whether it knew the pod before, and sees what becomes of it."""
        raise NotImplementedError

    def preferred(
        self, available: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        raise NotImplementedError

    def allocate(self, ids: frozenset[str]) -> None:
        raise NotImplementedError
