"""A value of `--gpus`: what makes the cards' source, and everything else that depends on their vendor."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.vendor import Vendor

if TYPE_CHECKING:
    # The command line makes options of what is here, and top reads vendors' names: they load nothing else.
    from deviceplugin.gpus.api.check_finding import CheckFinding
    from deviceplugin.gpus.api.mps import CardGenerations, MpsControl
    from deviceplugin.gpus.api.provable import Provable
    from deviceplugin.gpus.api.source import GpuSource

RunProgram = Callable[[list[str]], str | None]
"""Runs a program and returns what it prints; None where it cannot, or fails."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The settings from which a source of cards is made.

    Attributes:
        profile: A shipped profile or a YAML file, for simulated cards.
        watches_profile: Read the profile again when its file changes.
        ignored_faults: Numbered errors that leave a card healthy.
        cgroup_root: Where the host's cgroups are mounted.
        find_probe_parent: Finds the cgroup in which a memory limit may be tried.
        sees_processes: This process has the host's pid namespace, so the driver shows all processes.
    """

    profile: str | None = None
    watches_profile: bool = False
    ignored_faults: frozenset[int] = frozenset()
    cgroup_root: Path = Path("/sys/fs/cgroup")
    find_probe_parent: Callable[[], Path] | None = None
    sees_processes: bool = True


class GpuProvider:
    """One value of `--gpus`; a vendor's folder has a subclass of it.

    Only `name` and `make_source` are needed. Everything else says by default that the vendor has none.

    Attributes:
        name: Value of `--gpus`.
        vendor: Maker of the cards; None if the profile says it.
        needs_profile: `--profile` is required, else it is refused.
        has_device_nodes: The cards are the machine's own, with device nodes that containers are given.
        needs_root_to_prove: `--check --prove` works for root only.
        without_cgroup_v2: What a node with cgroup v1 lacks, in words.
        without_administrator: What a daemon without CAP_SYS_ADMIN lacks, in words.
        mps_program: The program behind `gpupack mps`; empty for no MPS.
    """

    name: ClassVar[str]
    vendor: ClassVar[Vendor | None] = None
    needs_profile: ClassVar[bool] = False
    has_device_nodes: ClassVar[bool] = True
    needs_root_to_prove: ClassVar[bool] = True
    without_cgroup_v2: ClassVar[str] = ""
    without_administrator: ClassVar[str] = ""
    mps_program: ClassVar[str] = ""

    def make_source(self, options: SourceOptions) -> "GpuSource":
        """Make the source of cards.

        Raises:
            ProfileError: The profile cannot be used.
        """
        raise NotImplementedError

    def make_provable(self, source: "GpuSource") -> "Provable":
        """Make what `--check --prove` asks about the source's cards.

        Raises:
            GpuError: Nothing can be proven about these cards.
        """
        del source
        raise GpuError(f"--prove: nothing is known to try on cards of --gpus {self.name}")

    def list_calls(self, source: "GpuSource") -> Mapping[str, bool]:
        """Tell which optional calls of its driver an open source has."""
        del source
        return {}

    def check_tools(self, run: RunProgram) -> "Iterator[CheckFinding]":
        """Look at the vendor's tools on this machine."""
        del run
        yield from ()

    def make_framework_envs(self, share_mib: int, total_mib: int) -> Mapping[str, str]:
        """Name variables by which frameworks keep to a share of one card by themselves."""
        del share_mib, total_mib
        return {}

    def make_mps_control(self, root: Path) -> "MpsControl | None":
        """Make what the daemon asks with `--sharing mps`; None if the vendor has no such service.

        Args:
            root: Folder in which the daemon and the service meet.
        """
        del root
        return None

    def make_generations(self) -> "CardGenerations | None":
        """Make what `gpupack mps` asks about the cards' generation; None if the vendor has no MPS."""
        return None
