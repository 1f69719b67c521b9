"""Interface of MPS to the node daemon."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from deviceplugin.errors import GpuError, is_absent
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.api.mps import LimitedContainer, MpsClientLimits
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.grants import grant_client, grant_namespace
from deviceplugin.gpus.nvidia.mps.namespaces import Namespace, NamespaceFiles

WAIT_S: Final = 5.0
LOOK_S: Final = 0.05

YOUNG_S: Final = 60.0
"""A namespace is kept so long after it was asked for: a daemon that restarts may know its container late."""


class MpsService:
    """The control daemons that `gpupack mps` runs on this node.

    Args:
        root: folder of the host where they are met; containers are given its parts.
        wait_s: how long a container waits for its namespace.
    """

    def __init__(self, root: Path, *, wait_s: float = WAIT_S) -> None:
        self._root = root
        self._wait_s = wait_s

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
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                yield from map(int, children.read_text("ascii").split())
            except OSError as error:
                if not is_absent(error):
                    raise

    async def make_grant(
        self, uuid: str, state: MpsClientLimits, mib: int, compute: int, ids: Collection[str]
    ) -> ContainerGrant:
        """Make a container a client, see `MpsControl`; with MPS v3 it waits for its namespace.

        Raises:
            GpuError: the namespace did not come.
        """
        folder = CardFolder(self._root, uuid)
        namespace = Namespace.for_container(ids, uuid, compute or 100, mib)
        if not state.has_namespaces:
            with suppress(OSError):  # it is limited then, and counts as one that is not
                folder.clients.want(namespace)
            return grant_client(folder, self._root, mib, compute)
        await self._wait_for(folder.namespaces, namespace)
        return grant_namespace(folder.namespaces.pipe_of(namespace))

    async def _wait_for(self, files: NamespaceFiles, namespace: Namespace) -> None:
        """Ask for a namespace and wait for it; one that does not come is asked for no longer.

        But one that was asked for before may have clients, or get them once a control daemon makes it again.
        """
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._wait_s
        is_known = False
        try:
            is_known = namespace in files.list_wanted()
            files.want(namespace)
            # Another process answers, by a file.
            while (problem := files.read_answer(namespace)) is None and clock() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        except OSError as error:
            problem = str(error)
        if problem is None:
            problem = f"gpupack mps has not made it within {self._wait_s:g} s"
        if problem:
            if not is_known:
                with suppress(OSError):
                    files.withdraw(namespace)
            raise GpuError(f"MPS namespace {namespace.name}: {problem}")

    def list_limited(self, uuid: str, state: MpsClientLimits) -> Collection[LimitedContainer]:
        """List the clients of MPS v2, or those of v3 whose namespaces are there, see `MpsControl`."""
        folder = CardFolder(self._root, uuid)
        files = folder.namespaces if state.has_namespaces else folder.clients
        return {
            LimitedContainer(namespace.device_id(uuid), namespace.percent, namespace.mib)
            for namespace in files.list_wanted()
            if not state.has_namespaces or files.read_answer(namespace) == ""
        }

    def forget(self, uuid: str, ids: Collection[str]) -> None:
        """Drop clients and namespaces of those who had these IDs, see `MpsControl`."""
        with suppress(GpuError):  # the card has no folder
            for files, namespace in self._list_kept(uuid):
                if namespace.device_id(uuid) in ids:
                    files.withdraw(namespace)

    def keep_only(self, uuid: str, used: Collection[str]) -> None:
        """Drop clients and namespaces of containers that are gone, see `MpsControl`."""
        for files, namespace in self._list_kept(uuid):
            if namespace.device_id(uuid) not in used and files.age_s(namespace) > YOUNG_S:
                files.withdraw(namespace)

    def _list_kept(self, uuid: str) -> Iterator[tuple[NamespaceFiles, Namespace]]:
        folder = CardFolder(self._root, uuid)
        for files in (folder.namespaces, folder.clients):
            for namespace in files.list_wanted():
                yield files, namespace
