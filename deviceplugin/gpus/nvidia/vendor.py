"""NVIDIA's names: resources, variables, device nodes and the numbered errors of its driver (XIDs)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from deviceplugin.gpus.api.vendor import Vendor

IGNORED_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that say something about the application, not about the card."""

_LAST_XID: Final = 999

_XID_MEANINGS: Final[Mapping[int, str]] = MappingProxyType(
    {
        48: "double-bit ECC error",
        62: "internal micro-controller halted",
        63: "memory row remapping recorded",
        64: "memory row remapping failed",
        74: "NVLink error",
        79: "the card has fallen off the bus",
        92: "high rate of single-bit ECC errors",
        94: "contained memory error",
        95: "uncontained memory error",
        119: "GSP firmware does not answer",
        120: "GSP firmware error",
    }
)

NVIDIA: Final = Vendor(
    "nvidia.com",
    "NVIDIA_VISIBLE_DEVICES",
    "XID",
    hide_all_value="void",
    mounts_folder="/var/run/nvidia-container-devices",
    # Its images have /usr/local/nvidia/lib64 in LD_LIBRARY_PATH.
    driver_folder="/usr/local/nvidia",
    node_pattern="/dev/nvidia{}",
    control_nodes=("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    capability_pattern="/dev/nvidia-caps/nvidia-cap{}",
    fault_meanings=_XID_MEANINGS,
    # What NVIDIA's device plugin names: whole cards, MIG instances (mixed strategy), and shares of both.
    foreign_resources=r"nvidia\.com/(?:gpu|mig-[a-z0-9.+-]+)(?:\.shared)?",
    foreign_advice="GPU Operator: label nvidia.com/gpu.deploy.device-plugin=false",
)


def parse_xids(text: str) -> frozenset[int]:
    """Read a comma list of XID codes; the empty text means none.

    Raises:
        ValueError: An entry is not a whole number from 1 to 999.
    """
    codes = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if not (entry.isascii() and entry.isdigit() and 1 <= int(entry) <= _LAST_XID):
            raise ValueError(f"XID {entry[:256]!r}; allowed: whole numbers from 1 to 999, comma-separated")
        codes.add(int(entry))
    return frozenset(codes)
