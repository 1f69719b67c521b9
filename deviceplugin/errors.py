"""Errors of the deviceplugin package.

DevicePluginError
└── GpuError            the GPU source as a whole cannot work (one card's trouble is data, not an error)
    └── ProfileError    a profile of simulated GPUs that cannot be used; names every fault in it
"""


class DevicePluginError(Exception):
    """Root of the package's errors."""


class GpuError(DevicePluginError):
    """The GPU source as a whole cannot work: no driver, no right to use it, no such card."""


class ProfileError(GpuError):
    """A profile of simulated GPUs that cannot be used.

    Args:
        name: the profile's name or file, as the user gave it.
        faults: every fault found, each starting with its path inside the file where it has one.
    """

    def __init__(self, name: str, faults: tuple[str, ...]) -> None:
        self.name = name
        self.faults = faults
        super().__init__(f"profile {name}: " + "; ".join(faults))
