"""`--gpus nvml`: NVIDIA's cards by the driver's management library."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from deviceplugin.gpus.api.provider import GpuProvider, RunProgram, SourceOptions
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.nvidia.mps.options import PROGRAM
from deviceplugin.gpus.nvidia.vendor import NVIDIA

if TYPE_CHECKING:
    from deviceplugin.gpus.api.check_finding import CheckFinding
    from deviceplugin.gpus.api.mps import CardGenerations, MpsControl
    from deviceplugin.gpus.api.provable import Provable
    from deviceplugin.gpus.api.source import GpuSource

HOOK: Final = "apply-cuda-memory-limits"

CONTEXT_MIB: Final = 768
"""MiB that a process takes beside what its framework shares out: the CUDA context, and libraries.

An H100 showed 518 for the context alone (tests/hardware).
"""


class NvmlProvider(GpuProvider):
    """Makes sources that need NVIDIA's driver; its library is loaded by those alone."""

    name = "nvml"
    vendor: ClassVar[Vendor | None] = NVIDIA
    without_cgroup_v2 = "no limits by NVIDIA's driver, which takes cgroup v2"
    without_administrator = "NVIDIA's driver takes no limits, and shows no MIG instances made later"
    mps_program = PROGRAM

    def make_source(self, options: SourceOptions) -> "GpuSource":
        from deviceplugin.gpus.nvidia.source import NvmlGpus  # noqa: PLC0415

        return NvmlGpus(
            options.ignored_faults,
            cgroup_root=options.cgroup_root,
            probe_parent=options.find_probe_parent,
            sees_processes=options.sees_processes,
        )

    def make_provable(self, source: "GpuSource") -> "Provable":
        from deviceplugin.gpus.nvidia.proving import NvmlProvable  # noqa: PLC0415
        from deviceplugin.gpus.nvidia.source import NvmlGpus  # noqa: PLC0415

        assert isinstance(source, NvmlGpus)  # noqa: S101 - made above
        return NvmlProvable(source)

    def list_calls(self, source: "GpuSource") -> Mapping[str, bool]:
        calls: Mapping[str, bool] = getattr(source, "calls", dict)()
        return calls

    def check_tools(self, run: RunProgram) -> "Iterator[CheckFinding]":
        """Check NVIDIA's container toolkit, and its hook that sets memory limits."""
        from deviceplugin.gpus.api.check_finding import CheckFinding  # noqa: PLC0415

        version = run(["nvidia-ctk", "--version"])
        if version is None:
            yield CheckFinding(
                "container toolkit", "less", "no nvidia-ctk here", "in a container the host's is not seen"
            )
            return
        yield CheckFinding(
            "container toolkit", "ok", version.splitlines()[0] if version else "of unknown version"
        )
        hook = run(["nvidia-cdi-hook", HOOK, "--help"]) is not None
        uses = "limits before the first process" if hook else "limits some ms later; toolkit 1.20.1 has it"
        yield CheckFinding(f"hook {HOOK}", "ok" if hook else "less", "there" if hook else "none", uses)

    def make_framework_envs(self, share_mib: int, total_mib: int) -> Mapping[str, str]:
        """Name variables of JAX and TensorFlow that keep them within a share of one card.

        Advice, no limit: a program may set others, and not every framework has one. PyTorch and vLLM read
        none from the environment; docs/mps.md says what to write in their place.

        Args:
            share_mib: what the container may use.
            total_mib: what the driver says that the card has, its own part included.
        """
        if not 0 < share_mib <= total_mib:
            return {}
        own_mib = max(share_mib - CONTEXT_MIB, share_mib // 2)
        # Rounded down: JAX takes it of the card's total at once.
        fraction = max(1, 10_000 * own_mib // total_mib) / 10_000
        return {
            "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.4f}",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }

    def make_mps_control(self, root: Path) -> "MpsControl | None":
        from deviceplugin.gpus.nvidia.mps.service import MpsService  # noqa: PLC0415

        return MpsService(root)

    def make_generations(self) -> "CardGenerations | None":
        from deviceplugin.gpus.nvidia.generations import NvmlGenerations  # noqa: PLC0415

        return NvmlGenerations()


PROVIDER: Final = NvmlProvider()
