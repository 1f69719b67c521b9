"""Child processes that cannot outlive us, with their logs.

No `preexec_fn`: a kubelet forked by a process with live gRPC threads comes up dead. `setpriv` sets the
parent-death signal after the exec instead. It fires when the *thread* that started the child ends, so
children are started from the main thread.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.harness.polling import PATIENCE_S, until

RARE_GARBAGE: Final = {"GOGC": "400"}
"""For programs in Go, which else collect garbage four times as often and start a fifth more slowly."""


class Process:
    """One running program; killed by the kernel if this interpreter dies."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        enter_pid: int | None = None,
        forks: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start `command`; with `enter_pid` inside the mount and pid namespaces of that process.

        With `forks` the program is the only child of what `command` starts, which ends after it.
        """
        assert threading.current_thread() is threading.main_thread(), "start children from the main thread"
        self.name = name
        self.log = log
        self._forks = forks or enter_pid is not None
        inside = ["nsenter", "-t", str(enter_pid), "-m", "-p", "--"] if enter_pid is not None else []
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *inside, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
                env={**os.environ, **RARE_GARBAGE, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """The program's own pid on the host (behind `nsenter` and `unshare`, which fork, their only child).

        Raises:
            ProcessLookupError: When it has ended.
        """
        if not self._forks:
            return self._popen.pid
        ended = [0]
        found = until(
            lambda: children(self._popen.pid) or ([] if self.alive else ended),
            f"{self.name} forked",
            every_s=0.01,
        )
        if found is ended:
            raise ProcessLookupError(f"{self.name} has ended")
        return found[0]

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program; a program already gone is no error."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def freeze(self) -> None:
        """SIGSTOP, until `thaw`."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT; `nsenter` stops itself along with the program it waits for."""
        if self._forks:
            self._popen.send_signal(signal.SIGCONT)
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.stop(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int | None:
        """Send `number` and wait; returns the exit status, None if it had to be killed."""
        self.send(number)
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._popen.kill()
            self._popen.wait()
            return None

    def tail(self) -> str:
        return tail(self.log)


class Program:
    """A program with flags that can be started, killed and started again; all runs have one log."""

    def __init__(
        self,
        name: str,
        folder: Path,
        flags: Mapping[str, object],
        log_dir: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._command = [str(folder / name), *(f"--{key}={value}" for key, value in flags.items())]
        self._environment = environment
        self.log = log_dir / f"{name}.log"
        self._process: Process | None = None

    def start(self) -> None:
        self._process = Process(self._name, self._command, self.log, environment=self._environment)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def said(self, words: str) -> list[str]:
        """The lines of its log with these words."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if words in line]


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log; empty where there is none yet."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def children(pid: int) -> list[int]:
    """Host pids of the direct children of `pid`; empty when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
