"""MPS control daemon of one card: started, asked whether it answers, started again when it does not."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import structlog

from deviceplugin.errors import GpuError, UnaskedError
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.options import PROGRAM
from kubeapi.backoff import Backoff

log = structlog.get_logger(__name__)

ASK_S: Final = 10.0
"""Time between two checks, and the longest time for an answer."""

BEGIN_S: Final = 0.1
"""Time between two checks while the control daemon has not answered yet."""

PATIENCE: Final = 3
"""Checks in a row without an answer after which a control daemon that runs is ended."""

QUIT_S: Final = 10.0
_STEADY_S: Final = 60.0


class ControlDaemon:
    """Keeps one control daemon running, by the interface of MPS v2; a subclass speaks that of v3."""

    interface: ClassVar[int] = 2
    stdin: ClassVar[int] = asyncio.subprocess.DEVNULL

    def __init__(
        self,
        folder: CardFolder,
        clients: int,
        *,
        program: str = PROGRAM,
        arguments: Sequence[str] = ("-f",),
        backoff: Backoff | None = None,
        ask_s: float = ASK_S,
    ) -> None:
        self._folder = folder
        self._clients = clients
        self._program = program
        self._arguments = tuple(arguments)
        self._backoff = backoff or Backoff(0.5, 30.0)
        self._ask_s = ask_s
        self._reported = ""
        self.starts = 0

    @property
    def answers(self) -> bool:
        return self._folder.is_served

    async def run(self) -> None:
        """Keep the daemon running until cancelled, then make it and its servers quit."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self._once()
            except FileNotFoundError:
                self._log_problem(
                    f"there is no program {self._program}: it comes with the driver, in a container with "
                    "NVIDIA's runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                )
            except (OSError, GpuError) as error:
                self._log_problem(str(error))
            if clock() - began_s > _STEADY_S:
                self._backoff.reset()
                self._reported = ""
            await asyncio.sleep(self._backoff.failed())

    async def _once(self) -> None:
        """Start it, and come back once it has ended."""
        self._folder.make()
        await self._end_left_over()
        self._begin()
        self.starts += 1
        running = await asyncio.create_subprocess_exec(
            self._program,
            *self._arguments,
            env=self._environment(),
            stdin=self.stdin,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            # A signal for all of a terminal's processes is the supervisor's to heed.
            start_new_session=True,
        )
        log.info("MPS control daemon started", card=self._folder.uuid, pid=running.pid)
        watching = asyncio.create_task(self._watch(running.pid))
        ended = asyncio.create_task(running.wait())
        try:
            await asyncio.wait([watching, ended], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            log.error("MPS control daemon ended", card=self._folder.uuid, status=running.returncode)
        finally:
            # Before it has ended: nobody is to be sent to it any more.
            self._folder.end()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            if running.returncode is None:
                await asyncio.shield(self._quit(running))
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _end_left_over(self) -> None:
        """End the control daemon of a supervisor that was killed: there can be one only in the folder."""
        try:
            await self._ask_to_quit()
        except GpuError:
            return
        log.warning("MPS control daemon of before was there, and was told to quit", card=self._folder.uuid)
        await asyncio.sleep(BEGIN_S)

    async def _watch(self, pid: int) -> None:
        """Ask whether it answers, and tell, until it does not.

        Without a file descriptor or memory left it cannot be asked. That says nothing of it, and to end it
        would end the programs of its clients.

        Raises:
            GpuError: it does not answer.
            OSError: it was never said that it answers, because that cannot be written.
        """
        silent, answered, unasked = 0, False, ""
        deadline_s = asyncio.get_running_loop().time() + PATIENCE * self._ask_s
        while True:
            try:
                servers = await self._list_servers()
                told = self._folder.serve(
                    ControlDaemonState(self._clients, tuple(servers), pid, self.interface)
                )
            except (UnaskedError, OSError) as error:
                if not answered and asyncio.get_running_loop().time() > deadline_s:
                    raise
                if answered and not unasked:
                    log.warning(
                        "MPS control daemon cannot be asked", card=self._folder.uuid, error=str(error)
                    )
                unasked = str(error)
            except GpuError as error:
                silent += 1
                late = asyncio.get_running_loop().time() > deadline_s
                if (silent >= PATIENCE) if answered else late:
                    raise
                log.debug("MPS control daemon", card=self._folder.uuid, error=str(error))
            else:
                if told and not answered:
                    answered = True
                    log.info("MPS control daemon answers", card=self._folder.uuid, clients=self._clients)
                silent, unasked = 0, ""
            await (self._rest() if answered else asyncio.sleep(BEGIN_S))

    # What differs between interfaces.

    def _begin(self) -> None:
        """Forget what was true of the control daemon before."""

    async def _list_servers(self) -> Sequence[int]:
        """Ask for the pids of its servers; an answer shows that it can take clients.

        Raises:
            GpuError: it does not answer, or takes no clients.
        """
        servers = await self.ask("get_server_list")
        return [int(line) for line in servers.split() if line.isascii() and line.isdigit()]

    async def _rest(self) -> None:
        """Wait until it is to be asked again."""
        await asyncio.sleep(self._ask_s)

    async def _ask_to_quit(self) -> None:
        await self.ask("quit")

    async def ask(self, command: str) -> str:
        """Give it a command, and return what it prints; see `run_program`."""
        return await self.run_program((), f"{command}\n")

    async def run_program(self, arguments: Sequence[str], text: str = "") -> str:
        """Run the program that speaks to it, let it read a text, and return what it prints.

        Raises:
            GpuError: nothing answers in time.
            UnaskedError: it cannot be asked.
        """
        command = text.strip() or " ".join(arguments)
        try:
            asking = await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UnaskedError(f"{self._program} cannot be started: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(self._ask_s):
                said, _ = await asking.communicate(text.encode())
        except TimeoutError as error:
            raise GpuError(f"{command}: no answer within {self._ask_s:g} s") from error
        finally:
            if asking.returncode is None:
                _kill(asking.kill)
                await asking.wait()
        text = said.decode(errors="replace").strip()
        if asking.returncode != 0:
            raise GpuError(
                f"{command}: status {asking.returncode}: {' '.join(text.split())[:128] or 'no word'}"
            )
        return text

    async def _quit(self, running: asyncio.subprocess.Process) -> None:
        """End it and its servers: by its own command, then by force."""
        try:
            await self._ask_to_quit()
        except GpuError as error:
            log.debug("MPS control daemon", card=self._folder.uuid, error=str(error))
            _kill(running.terminate)
        try:
            async with asyncio.timeout(QUIT_S):
                await running.wait()
        except TimeoutError:
            _kill(running.kill)
            await running.wait()

    def _log_problem(self, problem: str) -> None:
        """Say what is wrong, once as long as it stays the same."""
        note = log.debug if problem == self._reported else log.error
        note("no MPS control daemon", card=self._folder.uuid, problem=problem)
        self._reported = problem

    def _environment(self) -> Mapping[str, str]:
        return os.environ | {
            "CUDA_VISIBLE_DEVICES": self._folder.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder.log),
            # It outranks the option.
            "CUDA_MPS_PROTOCOL_VERSION": str(self.interface),
        }


def _kill(signal: Callable[[], None]) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    try:
        signal()
    except ProcessLookupError:
        return
