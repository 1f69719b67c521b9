"""Interface of MPS to the node daemon."""

from pathlib import Path

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.grants import grant_client


class MpsService:
    """The control daemons that `gpupack mps` runs on this node.

    Args:
        root: folder of the host where they are met; containers are given its parts.
        threads: limit a container's share of a card's multiprocessors like that of its memory.
    """

    def __init__(self, root: Path, *, threads: bool = False) -> None:
        self._root = root
        self._threads = threads

    def read_state(self, uuid: str) -> ControlDaemonState | None:
        """Tell what a card's control daemon says; None where none answers.

        Raises:
            OSError: that cannot be found out now.
        """
        try:
            return CardFolder(self._root, uuid).state()
        except GpuError:
            return None

    def make_grant(self, uuid: str, mib: int, size_mib: int) -> ContainerGrant:
        """Describe a share of a card that has one, see `grants.grant_client`."""
        return grant_client(CardFolder(self._root, uuid), self._root, mib, size_mib, threads=self._threads)
