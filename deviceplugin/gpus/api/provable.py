"""Interface to what `gpupack node --check --prove` asks of cards beyond what the daemon does."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from deviceplugin.gpus.api.memory_info import MemoryInfo

FAULTS: Final = "faults"
MIG_CHANGES: Final = "MIG changes"
"""Kinds of news of a card."""


class MemoryUser(Protocol):
    """A process of ours that uses memory of one card, in one cgroup. All methods may block."""

    @property
    def pid(self) -> int:
        """PID in the host's namespace."""

    def start(self) -> int:
        """Prepare the process to have memory of the card; return the MiB that it sees as the card's size.

        Raises:
            GpuError: it cannot.
        """

    def allocate(self, mib: int) -> bool:
        """Use more of the card; False if that is refused because there is no memory.

        Raises:
            GpuError: it fails otherwise.
        """

    def end(self) -> None:
        """End the process, and with it what it uses; twice is allowed."""


class Provable(Protocol):
    """Cards about which more can be found out, while their source is open. All methods may block."""

    def memory_info(self, uuid: str) -> MemoryInfo:
        """Read what the driver says of a card's memory, as it says it.

        Raises:
            GpuError: it does not say.
        """

    def event_kinds(self, uuid: str) -> Mapping[str, str]:
        """Register for both kinds of events of a card, and unregister; say why that failed, empty if not."""

    def mig_mode(self, uuid: str) -> tuple[bool, bool] | None:
        """Tell whether a whole card is in MIG mode, and will be after a reset; None if it has none.

        Raises:
            GpuError: it does not say.
        """

    def create_instance(self, uuid: str) -> Callable[[], None]:
        """Create the smallest MIG instance on a card in MIG mode; return what destroys it again.

        Raises:
            GpuError: it cannot be created.
        """

    def memory_user(self, uuid: str, cgroup: Path) -> MemoryUser:
        """Begin a process in a cgroup that may use memory of a card.

        Raises:
            GpuError: it cannot be begun there.
        """
