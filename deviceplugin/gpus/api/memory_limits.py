"""Interface to what limits the memory of a card's containers: a driver, MPS or a simulated one.

A limit belongs to one cgroup on one card. The limit ends with the cgroup; nobody has to take it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol


class Enforcement(Enum):
    """Enforcement is how memory is limited; `value` is what machines read, `text` what people do."""

    DRIVER = "driver"
    MPS = "mps"
    ACCOUNTED = "accounted"

    @property
    def text(self) -> str:
        """Phrase for people."""
        return _TEXTS[self]


_TEXTS = {
    Enforcement.DRIVER: "enforced by the driver",
    Enforcement.MPS: "enforced by MPS",
    Enforcement.ACCOUNTED: "accounted",
}


@dataclass(frozen=True, slots=True)
class LimitSupport:
    """Whether limits can be held on a card.

    Attributes:
        reason: why not, for people; empty when they can.
        since: what would support it, `driver 615 (CUDA 13.4)`; empty if nothing known does.
        is_forbidden: the driver could, and this process lacks the right to set them.
    """

    can_limit: bool
    reason: str = ""
    since: str = ""
    is_forbidden: bool = False

    def __str__(self) -> str:
        """Write one line: `this driver (580.65) has no such call; driver 615 (CUDA 13.4) has`."""
        if self.can_limit:
            return Enforcement.DRIVER.text
        return f"{self.reason}; it takes {self.since}" if self.since else self.reason


HELD = LimitSupport(can_limit=True)
NOT_ON_INSTANCES = LimitSupport(False, "the driver holds no limits on MIG instances")


@dataclass(frozen=True, slots=True)
class LimitReading:
    """LimitReading is the limit and the use of one cgroup on one card, as the driver or MPS states them.

    Attributes:
        hard_mib: the limit in MiB, rounded down; None: there is none.
        used_mib: MiB counted against it, rounded up; None if that is not told.
        soft_mib: MiB of a soft limit, rounded up, which gpupack never asks for; 0: there is none.
    """

    hard_mib: int | None
    used_mib: int | None
    soft_mib: int = 0


UNSET = LimitReading(hard_mib=None, used_mib=None)

DMEM_FILE = "dmem.max"
NO_FILES = f"has no {DMEM_FILE}: +dmem is missing in cgroup.subtree_control of a cgroup above"
"""Why the kernel's dmem controller takes no limit for a cgroup."""


class MemoryLimits(Protocol):
    """Holds containers to their shares of cards. All methods may block, and may be called from any thread."""

    def support(self, uuid: str) -> LimitSupport:
        """Tell whether limits can be held on a card; cheap after the first time.

        A limit that was set shows that they can. A `set` that failed for want of the right shows that they
        cannot.
        """

    def set(self, uuid: str, cgroup: Path, hard_mib: int) -> None:
        """Limit what a cgroup's processes, and those below, use together on a card; ends a soft limit.

        Args:
            cgroup: its full path in the host's tree.
            hard_mib: MiB, more than 0; an allocation beyond fails as if the card were full.

        Raises:
            LimitError: the limit does not work; `kind` says what to do.
        """

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        """Read the limit of a cgroup on a card, and what is used of it.

        Raises:
            LimitError: it cannot be read; `unset` where the holder finds none, so that one can be set.
        """

    def clear(self, uuid: str, cgroup: Path) -> None:
        """Remove the limit of a cgroup that stays.

        Raises:
            LimitError: it stands.
        """

    def container_envs(self, hard_mib: int) -> Mapping[str, str]:
        """Name the variables by which the vendor's container toolkit sets the limit before the first process.

        Args:
            hard_mib: limit in MiB of every card of the container.
        """
