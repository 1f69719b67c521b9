"""Interface of a vendor's `--sharing mps`: a service beside the driver that limits its clients' memory."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from deviceplugin.gpus.api.container_grant import ContainerGrant


class MpsClientLimits(Protocol):
    """State of a card's service that answers."""

    @property
    def clients(self) -> int:
        """Processes that it takes at once."""

    @property
    def has_namespaces(self) -> bool:
        """Whether it limits single containers itself, beside what the driver limits."""


class LimitedContainer(NamedTuple):
    """A container that a service holds to its limits.

    Attributes:
        device_id: one of its device IDs.
        percent: percent of the card's compute; 100 also where that is not limited.
        mib: memory of each process; 0 where the service does not limit it.
    """

    device_id: str
    percent: int
    mib: int


class MpsControl(Protocol):
    """The services of all cards. Each method but `make_grant` takes well under a millisecond."""

    def read_state(self, uuid: str) -> MpsClientLimits | None:
        """Read the state of a card's service; None if it does not answer.

        Raises:
            OSError: The state cannot be read now.
        """

    def list_server_pids(self, uuid: str) -> Collection[int]:
        """List the processes of a card's service itself, which use a little of the card.

        Raises:
            OSError: Its processes cannot be read now.
        """

    async def make_grant(
        self, uuid: str, state: MpsClientLimits, mib: int, compute: int, ids: Collection[str]
    ) -> ContainerGrant:
        """Make a container a client.

        Args:
            state: the newest state of the card's service.
            mib: memory that it may use; 0 where the driver limits it, which needs a service with namespaces.
            compute: percent of the card's compute that it may use; 0 if that is not limited.
            ids: the container's device IDs.

        Raises:
            GpuError: The service does not limit it.
        """

    def list_limited(self, uuid: str, state: MpsClientLimits) -> Collection[LimitedContainer]:
        """List the containers that a card's service limits now, which answered with this state.

        Raises:
            OSError: They cannot be read now.
        """

    def forget(self, uuid: str, ids: Collection[str]) -> None:
        """Give back what a card's service keeps for containers that had any of these device IDs.

        Raises:
            OSError: It cannot be given back now.
        """

    def keep_only(self, uuid: str, used: Collection[str]) -> None:
        """Give back what a card's service keeps for containers that had other device IDs than these.

        Raises:
            OSError: It cannot be given back now.
        """


class CardGenerations(Protocol):
    """Reads the cards' generation from the driver. Its methods may block."""

    def architecture(self, uuid: str) -> int | None:
        """Return NVML's number of a card's architecture; None if the driver does not say."""

    def cuda(self) -> int | None:
        """Return the newest CUDA that the driver knows, 13010 for 13.1; None if it does not say."""
