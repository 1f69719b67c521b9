"""Devices, mounts and environment that a container gets with its cards, in no particular wire format."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host in the container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host in the container, under the same path."""

    path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """ContainerGrant is what a container gets with its devices.

    Attributes:
        cdi_devices: fully qualified CDI names, `example.com/gpu=UUID`.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()

    def __add__(self, other: "ContainerGrant") -> "ContainerGrant":
        """Give both; of equal names what `other` says counts."""
        return ContainerGrant(
            {**self.envs, **other.envs},
            {**self.annotations, **other.annotations},
            (*self.cdi_devices, *other.cdi_devices),
            (*self.mounts, *other.mounts),
            (*self.devices, *other.devices),
        )
