"""The sources of cards by their name in `--gpus`. A new vendor is a folder here and its name in `_FOLDERS`.

The folder has a module `provider` with a `PROVIDER`, see `api.provider.GpuProvider`. The module imports the
driver's library only when a source is made.
"""

from importlib import import_module
from typing import Final

from deviceplugin.gpus.api.provider import GpuProvider
from deviceplugin.gpus.api.vendor import Vendor

_FOLDERS: Final = ("nvidia", "simulated")

_PROVIDERS: Final = tuple(
    import_module(f"deviceplugin.gpus.{folder}.provider").PROVIDER for folder in _FOLDERS
)

SOURCES: Final[dict[str, GpuProvider]] = {provider.name: provider for provider in _PROVIDERS}


def list_vendors() -> list[Vendor]:
    return [provider.vendor for provider in SOURCES.values() if provider.vendor is not None]


def find_profile_faults(name: str, profile: str | None) -> list[str]:
    """Say what is wrong with this `--profile` beside a value of `--gpus`, which may be unknown."""
    provider = SOURCES.get(name)
    if provider is None or provider.needs_profile == (profile is not None):
        return []
    if provider.needs_profile:
        return [f"--profile: required with --gpus {name}"]
    others = " or ".join(other.name for other in SOURCES.values() if other.needs_profile)
    return [f"--profile {profile!r}: allowed with --gpus {others} only"]


def list_names_with_mps() -> list[str]:
    return [name for name, provider in SOURCES.items() if provider.mps_program]
