"""A node whose cards are proven: simulated ones, and NVML on plain data with memory users of our own."""
# ruff: noqa: N802 (the fake driver's methods are named like NVML's functions)

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
from pytest_mock import MockerFixture

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.provable import Provable
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.gpus.simulated.profile import parse_profile
from deviceplugin.gpus.simulated.proving import SimulatedProvable
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.proof.prover import CardProof, ProofOptions, Prover
from deviceplugin.proof.scratch import ScratchCgroup
from tests.nvml_limits_world import LimitsDriver
from tests.nvml_world import Card, Driver, process

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


class ProofDriver(Driver):
    """The driver of `nvml_world` with what is asked of it beyond; the limits are those of `LimitsDriver`."""

    def __init__(self, mocker: MockerFixture) -> None:
        super().__init__(mocker)
        self.missing.clear()
        self.limits = LimitsDriver()
        self.refused_kinds: dict[int, int] = {}

    def DeviceSetMemoryLimits_v1(self, card: Card, wanted: Any) -> None:
        self.limits.set(card.uuid, wanted)

    def DeviceGetMemoryLimits_v1(self, card: Card, found: Any) -> None:
        self.limits.get(card.uuid, found)

    def SystemGetDriverVersion(self) -> str:
        return "615.71.09"

    def DeviceRegisterEvents(self, card: Card, kinds: int, events: object) -> None:
        if kinds in self.refused_kinds:
            raise pynvml.NVMLError(self.refused_kinds[kinds])
        self.registered.append(card.uuid)

    def DeviceGetGpuInstanceProfileInfo(self, card: Card, profile: int) -> int:
        assert profile == pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE
        return 19

    def DeviceCreateGpuInstance(self, card: Card, profile: int) -> tuple[Card, int]:
        assert profile == 19
        assert card.mig is not None
        if len(card.mig) == 7:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        return card, 8 + len(card.mig)

    def GpuInstanceGetComputeInstanceProfileInfo(
        self, instance: tuple[Card, int], profile: int, engine: int
    ) -> int:
        assert (profile, engine) == (0, 0)
        return 0

    def GpuInstanceCreateComputeInstance(self, instance: tuple[Card, int], profile: int) -> tuple[Card, int]:
        card, number = instance
        assert card.mig is not None
        if "GpuInstanceCreateComputeInstance" in card.errors:
            raise pynvml.NVMLError(card.errors["GpuInstanceCreateComputeInstance"])
        card.mig.append(Card(f"MIG-{number}", total_mib=9728, reserved_mib=10, instance=number))
        self.mig_places[f"MIG-{number}"] = len(card.mig) - 1
        return instance

    def ComputeInstanceDestroy(self, instance: tuple[Card, int]) -> None:
        card, number = instance
        if "ComputeInstanceDestroy" in card.errors:
            raise pynvml.NVMLError(card.errors["ComputeInstanceDestroy"])
        card.mig = [each for each in card.mig or () if each.instance != number]

    def GpuInstanceDestroy(self, instance: tuple[Card, int]) -> None:
        card, number = instance
        self.calls.append(f"destroyed {number}")
        assert all(each.instance != number for each in card.mig or ())

    def process_of(self, pid: int, used_mib: int) -> SimpleNamespace:
        """Make a line of the list of processes."""
        return process(pid, used_mib)
