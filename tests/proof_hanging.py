"""`gpupack node --check --prove` on a simulated card that hangs once a process wants memory of it."""

import time
from pathlib import Path

from deviceplugin.gpus.simulated.proving import SimulatedMemoryUser
from gpupack.cli.node import node


def main(arguments: list[str]) -> None:
    """Run the command; a file `hangs` in the folder of cgroups says that it has come to that point."""
    (root,) = [Path(each.partition("=")[2]) for each in arguments if each.startswith("--cgroup-root=")]

    def hang(_user: SimulatedMemoryUser, _mib: int) -> bool:
        (root / "hangs").touch()
        time.sleep(600)
        return False

    SimulatedMemoryUser.allocate = hang  # type: ignore[method-assign]
    node(arguments)
