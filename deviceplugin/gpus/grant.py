"""What a container gets with its cards, in nobody's wire format."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """What a container gets with its devices.

    Attributes:
        envs: environment variables.
        annotations: for the container runtime.
        cdi_devices: fully qualified CDI names, `example.com/gpu=UUID`.
    """

    envs: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
