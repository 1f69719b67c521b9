"""What the pods of `gpupack verify` run: they say what they were given, and one of them uses memory.

Each line of the log is JSON; `Given` is the first, `Used` the second of a container that is to use memory.
"""

import ctypes
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from deviceplugin.gpus.nvidia.cuda_child import LIBRARY, Cuda, CudaError
from deviceplugin.proof.prover import fill


class Given(msgspec.Struct, frozen=True):
    """What the environment of a container says.

    Attributes:
        cards: `GPUPACK_CARDS`, pairs UUID:UNITS.
        memory_mib: `GPUPACK_MEMORY_MIB`.
    """

    cards: str
    memory_mib: str


class Used(msgspec.Struct, frozen=True):
    """What became of the container's attempt to use memory.

    Attributes:
        uuid: of the card that CUDA sees, as `Cuda.name_card`; empty where CUDA does not start.
        size_mib: the card's size as CUDA tells it here; 0 where CUDA does not start.
        given_mib: memory that it got, beside its context.
        error: why CUDA does not work here; empty where it does.
    """

    uuid: str = ""
    size_mib: int = 0
    given_mib: int = 0
    error: str = ""


def run(
    use_mib: int,
    environment: Mapping[str, str],
    write: Callable[[str], None],
    load: Callable[[str], Any] = ctypes.CDLL,
) -> None:
    """Say what this container was given, and use memory, `use_mib` in pieces."""
    given = Given(environment.get("GPUPACK_CARDS", ""), environment.get("GPUPACK_MEMORY_MIB", ""))
    write(msgspec.json.encode(given).decode())
    if use_mib:
        write(msgspec.json.encode(_use_memory(use_mib, load)).decode())


def _use_memory(most_mib: int, load: Callable[[str], Any]) -> Used:
    try:
        cuda = Cuda(load(LIBRARY))
        size_mib = cuda.start()
        return Used(cuda.name_card(), size_mib, fill(cuda.allocate, most_mib))
    except (CudaError, OSError, AttributeError) as error:
        return Used(error=str(error)[:256])


def serve(use_mib: int, environment: Mapping[str, str], write: Callable[[str], None]) -> NoReturn:
    """Do the work of the container, and keep what it has until it is told to end."""

    def end(_number: int, _frame: object) -> NoReturn:
        sys.exit(0)

    # The first process of a container gets no signal that it does not handle.
    signal.signal(signal.SIGTERM, end)
    run(use_mib, environment, write)
    while True:
        signal.pause()
