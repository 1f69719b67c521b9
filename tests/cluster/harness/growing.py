"""`gpupack` as it is, with a door through which a test lets simulated processes grow.

Run as `python -m tests.cluster.harness.growing node ...`; `grow` is the other side of the door.
"""

import os
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path

from deviceplugin.errors import GpuError
from deviceplugin.gpus.simulated.source import SimulatedGpus
from gpupack.cli.app import main

MODULE = "tests.cluster.harness.growing"
DOOR = "GPUPACK_TEST_DOOR"

_opened = SimulatedGpus.open


def grow(door: Path, uuid: str, pid: int, used_mib: int, cgroup: Path) -> str:
    """Let a process use so much of a card; returns what the card said, empty where it had it."""
    with Client(str(door), "AF_UNIX") as connection:
        connection.send((uuid, pid, used_mib, cgroup))
        return str(connection.recv())


def _open(gpus: SimulatedGpus) -> None:
    _opened(gpus)
    threading.Thread(target=_serve, args=(gpus, os.environ[DOOR]), daemon=True).start()


def _serve(gpus: SimulatedGpus, door: str) -> None:
    Path(door).unlink(missing_ok=True)
    with Listener(door, "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                try:
                    gpus.limits.use(*connection.recv())
                except GpuError as error:
                    connection.send(str(error))
                else:
                    connection.send("")


if __name__ == "__main__":
    SimulatedGpus.open = _open  # type: ignore[method-assign]
    main()
