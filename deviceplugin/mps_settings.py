"""Settings of `gpupack mps`, checked as a whole: every fault is told at once."""

from dataclasses import dataclass

from deviceplugin.errors import NodeSettingsError
from deviceplugin.gpus.api.provider import GpuProvider
from deviceplugin.gpus.nvidia.mps.options import MpsOptions
from deviceplugin.gpus.sources import SOURCES, find_profile_faults, list_names_with_mps
from kubeapi.addresses import find_address_faults
from kubeapi.options import find_faults, option
from kubeapi.process_options import log_format_option, log_level_option


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSettings(MpsOptions):
    """Settings of `gpupack mps`. Each field is an option of the command, whose help explains it."""

    gpus: str = option("nvml", allowed=tuple(list_names_with_mps()), help="Where cards come from.")
    profile: str | None = option(
        None, metavar="NAME|FILE", help="Simulated cards: a shipped profile or a YAML file."
    )
    log_level: str = log_level_option()
    log_format: str = log_format_option()

    @property
    def provider(self) -> GpuProvider:
        return SOURCES[self.gpus]

    def check(self) -> None:
        faults = find_faults(self)
        if not self.root.is_absolute():
            faults.append(f"--root {str(self.root)!r}; allowed: a path from / on")
        if self.http is not None:
            faults += find_address_faults("--http", self.http)
        faults += find_profile_faults(self.gpus, self.profile)
        if faults:
            raise NodeSettingsError(tuple(faults))
