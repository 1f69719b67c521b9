"""Starts and controls a process in a cgroup that uses memory of a card; see `cuda_child`."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from deviceplugin.errors import GpuError

COMMAND: Final = (sys.executable, "-P", "-m", "deviceplugin.gpus.nvidia.cuda_child")

ANSWER_S: Final = 60.0
"""The longest time for an answer: a context takes seconds where nothing keeps the driver loaded."""

END_S: Final = 10.0

_NO_MPS: Final = "/nonexistent"
"""A client that finds no control daemon is an ordinary process ("CUDA Multi-Process Service")."""


class CudaProcess:
    """A `MemoryUser` through the CUDA driver. Its process is in the cgroup before it loads the driver.

    Raises:
        GpuError: it cannot be begun there.
    """

    def __init__(
        self,
        uuid: str,
        cgroup: Path,
        command: Sequence[str] = COMMAND,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._answer_s = answer_s
        try:
            # In a session of its own: Ctrl-C at the terminal is for whoever began it, who ends it.
            self._process = subprocess.Popen(  # noqa: S603 - a fixed program, no user's text
                list(command),
                env=_environment(uuid),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise GpuError(f"a process that uses memory cannot be begun: {error}") from error
        try:
            with (cgroup / "cgroup.procs").open("r+", encoding="ascii") as file:
                file.write(str(self.pid))
        except OSError as error:
            self.end()
            raise GpuError(
                f"a process cannot be put into cgroup {cgroup}: {error.strerror}; run this on the node "
                "itself, for the kernel keeps a container's processes in its cgroup"
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> int:
        return int(self._send_line("start", "total_mib"))

    def allocate(self, mib: int) -> bool:
        return bool(self._send_line(f"allocate {mib}", "given"))

    def end(self) -> None:
        self._process.kill()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired as error:
            raise GpuError(
                f"process {self.pid} that uses memory does not end: the driver holds it"
            ) from error
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    _close(pipe)

    def _send_line(self, line: str, key: str) -> Any:
        """Give it a line, and return what it says under the key."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None  # noqa: S101 - for the type checker
        assert out is not None  # noqa: S101
        try:
            into.write(f"{line}\n".encode())
            into.flush()
        except OSError as error:
            raise GpuError(f"{line}: the process has ended") from error
        if not select.select([out], [], [], self._answer_s)[0]:
            raise GpuError(f"{line}: no answer within {self._answer_s:g} s")
        answer = out.readline()
        if not answer:
            raise GpuError(f"{line}: the process has ended")
        try:
            said = json.loads(answer)
        except ValueError:
            said = None
        if isinstance(said, dict) and key in said:
            return said[key]
        told = said.get("error") if isinstance(said, dict) else None
        raise GpuError(f"{line}: {told or answer.decode(errors='replace').strip()}"[:256])


def _environment(uuid: str) -> dict[str, str]:
    """Make the variables of a process that sees one card, and no MPS control daemon: that limits, too."""
    ours = {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": _NO_MPS}
    return {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")} | ours


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except OSError:  # what was not written yet has nobody to read it
        return
