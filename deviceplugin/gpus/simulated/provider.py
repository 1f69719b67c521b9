"""`--gpus simulated`: cards of a profile, which behave as NVIDIA's."""

from typing import TYPE_CHECKING, Final

from deviceplugin.gpus.api.provider import SourceOptions
from deviceplugin.gpus.nvidia.provider import NvmlProvider

if TYPE_CHECKING:
    from deviceplugin.gpus.api.mps import CardGenerations
    from deviceplugin.gpus.api.provable import Provable
    from deviceplugin.gpus.api.source import GpuSource


class SimulatedGenerations:
    """The generation of simulated cards: Hopper with CUDA 13.0."""

    def architecture(self, _uuid: str) -> int | None:
        return 9

    def cuda(self) -> int | None:
        return 13_000


class SimulatedProvider(NvmlProvider):
    """Makes sources of simulated cards; YAML is loaded by those alone.

    A machine may have cards beside the simulated ones: their device nodes are not given away.
    """

    name = "simulated"
    vendor = None
    needs_profile = True
    has_device_nodes = False
    needs_root_to_prove = False

    def make_source(self, options: SourceOptions) -> "GpuSource":
        """Make the source of cards from the profile."""
        from deviceplugin.gpus.simulated.profile import ProfileFile, load_profile  # noqa: PLC0415
        from deviceplugin.gpus.simulated.source import SimulatedGpus  # noqa: PLC0415

        name = options.profile or ""
        profile = load_profile(name)
        changed = ProfileFile(name, profile.vendor).changed if options.watches_profile else None
        return SimulatedGpus(profile, options.ignored_faults, changed)

    def make_provable(self, source: "GpuSource") -> "Provable":
        from deviceplugin.gpus.simulated.proving import SimulatedProvable  # noqa: PLC0415
        from deviceplugin.gpus.simulated.source import SimulatedGpus  # noqa: PLC0415

        assert isinstance(source, SimulatedGpus)  # noqa: S101 - made above
        return SimulatedProvable(source)

    def make_generations(self) -> "CardGenerations | None":
        return SimulatedGenerations()


PROVIDER: Final = SimulatedProvider()
