"""A node whose cards are proven: simulated ones, and memory users of our own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.provable import Provable
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.gpus.simulated.profile import parse_profile
from deviceplugin.gpus.simulated.proving import SimulatedProvable
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.proof.prover import CardProof, ProofOptions, Prover
from deviceplugin.proof.scratch import ScratchCgroup

PROFILE = """
version: "1.0"
device_defaults:
  name: NVIDIA H100 80GB HBM3
  memory: {total_bytes: 85520809984, reserved_bytes: 503316480}
devices:
  - {index: 0, uuid: GPU-a}
"""


def root_of(folder: Path) -> Path:
    """Make a folder that looks like cgroup v2 with pods."""
    root = folder / "cgroup"
    (root / "kubepods").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory\n")
    return root


def simulated(more: str = "") -> SimulatedGpus:
    """Make one H100, with more lines of a profile."""
    return SimulatedGpus(parse_profile("t", PROFILE + more))


def prover(
    source: GpuSource,
    root: Path,
    provable: Provable | None = None,
    scratch: ScratchCgroup | None = None,
    **options: Any,
) -> Prover:
    """Put a prover together whose cgroups are beside the pods'."""
    if provable is None:
        assert isinstance(source, SimulatedGpus)
        provable = SimulatedProvable(source)
    chosen = ProofOptions(**{"cgroup_root": root, "devices": None, **options})
    scratch = scratch or ScratchCgroup(root / "kubepods", lambda _: None)
    return Prover(source, provable, chosen, scratch, lambda uuid: f"not asked of {uuid}")


def prove(source: GpuSource, root: Path, *args: Any, **options: Any) -> list[CardProof]:
    """Run such a prover; returns what it has found."""
    trying = prover(source, root, *args, **options)
    trying.run()
    return trying.proofs


def results(proofs: list[CardProof]) -> dict[str, str]:
    """Results by what was tried; of several cards the last."""
    return {proof.what: proof.result for proof in proofs}


def found(proofs: list[CardProof], what: str) -> str:
    return next(f"{proof.found} | {proof.means}" for proof in proofs if proof.what == what)


class User:
    """A `MemoryUser` that asks a function for each piece.

    Args:
        gives: takes all MiB that it would have then; tells whether it may.
        told_mib: what it is told to be the card's size.
    """

    def __init__(self, gives: Callable[[int], bool], told_mib: int = 2047, pid: int = 77) -> None:
        self._gives = gives
        self._told_mib = told_mib
        self.pid = pid
        self.had_mib = 0
        self.ended = 0

    def start(self) -> int:
        return self._told_mib

    def allocate(self, mib: int) -> bool:
        given = self._gives(self.had_mib + mib)
        self.had_mib += mib if given else 0
        return given

    def end(self) -> None:
        self.ended += 1


class Used(SimulatedProvable):
    """Simulated cards whose memory users are these."""

    def __init__(self, source: SimulatedGpus, user: User | str) -> None:
        super().__init__(source)
        self.user = user

    def memory_user(self, uuid: str, cgroup: Path) -> Any:
        del uuid, cgroup
        if isinstance(self.user, str):
            raise GpuError(self.user)
        return self.user
