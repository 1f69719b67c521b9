"""Interface of MPS to the node daemon."""

from collections.abc import Collection, Iterator
from pathlib import Path

from deviceplugin.errors import GpuError, is_gone
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.grants import grant_client


class MpsService:
    """The control daemons that `gpupack mps` runs on this node.

    Args:
        root: folder of the host where they are met; containers are given its parts.
    """

    def __init__(self, root: Path, *, threads: bool = False, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._threads = threads
        self._proc = proc

    def read_state(self, uuid: str) -> ControlDaemonState | None:
        """Return the announcement of a card's control daemon; None if none answers.

        Raises:
            OSError: that cannot be found out now.
        """
        try:
            return CardFolder(self._root, uuid).state()
        except GpuError:
            return None

    def list_server_pids(self, uuid: str) -> Collection[int]:
        """List the servers of a card's control daemon, which are its children.

        The first client begins one, after a fault the next client another one. That is known here at once:
        the control daemon is asked every few seconds only, and meanwhile the server would be somebody's use.

        Raises:
            OSError: they cannot be read now.
        """
        state = self.read_state(uuid)
        return () if state is None else {*state.servers, *self._list_children(state.pid)}

    def _list_children(self, pid: int) -> Iterator[int]:
        """List the children of a process; none if it has ended, or the kernel does not tell."""
        for children in (self._proc / str(pid) / "task").glob("*/children"):
            try:
                yield from map(int, children.read_text("ascii").split())
            except OSError as error:
                if not is_gone(error):
                    raise

    def make_grant(self, uuid: str, mib: int, size_mib: int, compute: int) -> ContainerGrant:
        """Describe a share of a card that has one, see `grants.grant_client`."""
        folder = CardFolder(self._root, uuid)
        return grant_client(folder, self._root, mib, size_mib, threads=self._threads, compute=compute)
