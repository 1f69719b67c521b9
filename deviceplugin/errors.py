"""Errors of the deviceplugin package.

DevicePluginError
├── GpuError                     the GPU source as a whole cannot work (one card's trouble is data, no error)
│   ├── DriverGoneError          the driver does not come back to this process, which must end
│   ├── ProfileError             a profile of simulated GPUs that cannot be used; names every fault in it
│   └── UnaskedError             a question to MPS could not be put, so nothing is known of it
├── LimitError                   a memory limit that does not hold; `kind` says what to do
├── AllocationRefusedError       a call of the kubelet that is refused; `kind` becomes the gRPC status
├── DeviceListError              a list of devices that no kubelet can take: too large, bad or repeated IDs
├── UnitInUseError               containers still hold IDs of another unit
├── KindInUseError               containers were served in the other way, device plugin or claims
├── NodeSettingsError            settings that cannot be used; names every fault
├── RegistrationError            the device plugin folder or one of its sockets cannot be used
└── CheckpointError              what containers have cannot be read: the kubelet's checkpoint, or claims
    └── TornCheckpointError      the kubelet mends it once we are registered
"""

import errno
from typing import Final, Literal

LimitFault = Literal["gone", "unset", "unsupported", "forbidden", "refused", "failed"]
RefusalKind = Literal["invalid", "unknown", "unhealthy", "spans-cards", "no-room", "not-ready"]

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENODEV})
"""Error numbers that the kernel gives for a removed file or cgroup: by its path, and by its open files."""


def is_absent(error: OSError) -> bool:
    """Tell whether a file or cgroup that cannot be read is absent; any other error says nothing about it."""
    return error.errno in _ABSENT


class DevicePluginError(Exception):
    """Root of the package's errors."""


class GpuError(DevicePluginError):
    """The GPU source as a whole cannot work: no driver, no right to use it, no such card."""


class DriverGoneError(GpuError):
    """The driver that this process began with does not come back to it: the process must end.

    A process keeps the driver's library that it has loaded, whatever driver the node has by now. A container
    that is started again gets that of the node.
    """


class UnaskedError(GpuError):
    """A question to a control daemon of MPS could not be put, so nothing is known of it."""


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


class LimitError(DevicePluginError):
    """A memory limit that does not hold, or cannot be read.

    Args:
        kind: one of these:

            - `gone`: the cgroup is gone too, nothing to do.
            - `unset`: a read found none; set it.
            - `unsupported`: never on this card.
            - `forbidden`: not by this process.
            - `refused`: not with this value.
            - `failed`: try again.
        message: which limit, and what is wrong.
    """

    def __init__(self, kind: LimitFault, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class AllocationRefusedError(DevicePluginError):
    """A call of the kubelet that is refused, in one line; for the pod it concerns this is final.

    Args:
        kind: What is wrong, in the terms of the gRPC status that it becomes.

            - `invalid`: the request makes no sense.
            - `unknown`: an ID that we do not have.
            - `unhealthy`: an ID whose card is unhealthy.
            - `spans-cards`: more cards than we offered.
            - `no-room`: no card fits.
            - `not-ready`: the state is not known yet.
        message: what was asked, and what is allowed.
    """

    def __init__(self, kind: RefusalKind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class DeviceListError(DevicePluginError):
    """A list of devices that no kubelet can take: too large, or with bad or repeated IDs."""


class UnitInUseError(DevicePluginError):
    """Containers on this node still hold IDs of another unit: drain the node first."""


class KindInUseError(DevicePluginError):
    """Containers on this node were served in the other way, device plugin or claims: drain the node first."""


class NodeSettingsError(DevicePluginError):
    """Settings that cannot be used."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class RegistrationError(DevicePluginError):
    """The device plugin folder, our socket in it or the kubelet's registration service cannot be used."""


class CheckpointError(DevicePluginError):
    """What containers have cannot be read: the kubelet's checkpoint, or the files of prepared claims."""


class TornCheckpointError(CheckpointError):
    """What cannot be read may be whole again once we are registered.

    No kubelet believes a checkpoint that is no whole JSON; it writes one when we register. A claim whose file
    cannot be read it may have prepared anew, or let go.
    """
