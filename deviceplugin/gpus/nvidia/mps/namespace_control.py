"""MPS control daemon of one card by the interface of MPS v3: a server, and a namespace for each container."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import structlog

from deviceplugin.errors import GpuError, UnaskedError
from deviceplugin.files import MAX_SOCKET_PATH
from deviceplugin.gpus.nvidia.mps.control import ControlDaemon
from deviceplugin.gpus.nvidia.mps.folder import CardFolder
from deviceplugin.gpus.nvidia.mps.namespaces import SERVER, Namespace, find_fault

log = structlog.get_logger(__name__)

FOLLOW_S: Final = 0.1
"""Seconds between two looks for namespaces that are asked for: a container waits for its own."""

_PROTOCOL: Final = ("-p", "3")


class NamespaceControlDaemon(ControlDaemon):
    """NamespaceControlDaemon keeps a control daemon of MPS v3 running, and its namespaces as they are wanted.

    It takes clients of all users (`-m`), so its server belongs to root: a client of the server's own user
    could change the limits of namespaces.
    """

    interface: ClassVar[int] = 3
    # In the foreground it reads commands, and may end with them.
    stdin: ClassVar[int] = asyncio.subprocess.PIPE

    def __init__(self, folder: CardFolder, clients: int, **options: Any) -> None:
        super().__init__(folder, clients, arguments=("-f", "-m", *_PROTOCOL), **options)
        self._namespaces = folder.namespaces
        self._has_server = self._is_restored = False
        self._kept: set[Namespace] = set()

    def _begin(self) -> None:
        self._has_server = self._is_restored = False
        self._namespaces.begin()

    async def ask(self, command: str) -> str:
        return await self.run_program((*_PROTOCOL, *command.split(" ")))

    async def _ask_to_quit(self) -> None:
        refused = await self._try("-q")
        # One of MPS v2, from before, knows another word, and may answer to the first with no error.
        try:
            await super().ask("quit")
        except GpuError:
            if refused:
                raise

    async def _list_servers(self) -> Sequence[int]:
        """Ask for the server, and make it first.

        A server that is not listed has ended, or could not begin. Programs that were sent there run without
        MPS and its limits, and nobody says so to them: nobody is to be sent there.
        """
        rows = await self._list("server")
        row = next((row for row in rows if row[0] == SERVER), None)
        if row is not None:
            if not self._is_restored:
                await self._follow()
                self._is_restored = True
            self._kept.clear()
            return [int(pid) for pid in row[2:3] if pid.isascii() and pid.isdigit()]
        self._folder.end()
        if not self._has_server:
            self._has_server = True
            await self.ask(f"server create {SERVER} --allowed-devices={self._folder.uuid}")
        raise GpuError(f"server {SERVER} is not among the control daemon's servers")

    async def _rest(self) -> None:
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._ask_s
        while clock() < until_s:
            await asyncio.sleep(min(FOLLOW_S, self._ask_s))
            try:
                await self._follow()
            except (GpuError, OSError) as error:
                log.debug("MPS namespaces cannot be followed", card=self._folder.uuid, error=str(error))

    async def _follow(self) -> None:
        """Make the namespaces that are wanted, and delete those that are not any more.

        Raises:
            GpuError: the control daemon does not answer.
            OSError: what is wanted cannot be read, or nothing answered.
        """
        wanted, told = self._namespaces.list_wanted(), self._namespaces.list_told()
        for namespace in sorted(wanted - told):
            problem = await self._make(namespace)
            self._namespaces.answer(namespace, problem)
            note = log.warning if problem else log.info
            note("MPS namespace", card=self._folder.uuid, namespace=namespace.name, problem=problem or None)
        for namespace in sorted(told - wanted - self._kept):
            await self._delete(namespace)

    async def _make(self, namespace: Namespace) -> str:
        """Create a namespace and set its limits; return why it is not there as it should be, or nothing."""
        pipe, name = self._namespaces.pipe_of(namespace), f"{namespace.name} --server={SERVER}"
        length = len(os.fsencode(pipe / "control"))
        if length > MAX_SOCKET_PATH:
            return f"its socket's path has {length} bytes; allowed: {MAX_SOCKET_PATH}, by a shorter --root"
        limits = f"--active-thread-percentage={namespace.percent}"
        if namespace.mib:
            limits += f" --pinned-memory-limit={namespace.mib}M"
        # It may be there already: what is listed decides.
        said = await self._try(f"namespace create {name}")
        said = await self._try(f"namespace set {name} {limits}") or said
        fault = find_fault(namespace, pipe, await self._list("namespace", f" --server={SERVER}"))
        return f"{fault} ({said})" if fault and said else fault

    async def _delete(self, namespace: Namespace) -> None:
        """Delete a namespace; one that still has clients is tried again later."""
        said = await self._try(f"namespace delete {namespace.name} --server={SERVER}")
        if any(row[0] == namespace.name for row in await self._list("namespace", f" --server={SERVER}")):
            log.debug("MPS namespace stays", card=self._folder.uuid, namespace=namespace.name, reason=said)
            self._kept.add(namespace)
            return
        self._namespaces.forget(namespace)
        log.info("MPS namespace deleted", card=self._folder.uuid, namespace=namespace.name)

    async def _try(self, command: str) -> str:
        """Give a command; return what is said where it is refused.

        Raises:
            UnaskedError: it could not be given.
        """
        try:
            await self.ask(command)
        except UnaskedError:
            raise
        except GpuError as error:
            return str(error)
        return ""

    async def _list(self, module: str, more: str = "") -> list[list[str]]:
        text = await self.ask(f"{module} list{more} --format=csv,noheader")
        return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
