"""Read the cards' generation from the driver; None if it does not tell. The library must be open."""

from typing import Final

import pynvml

ARCHITECTURES: Final = {
    getattr(pynvml, f"NVML_DEVICE_ARCH_{name}", None): name.lower()
    for name in (
        "KEPLER",
        "MAXWELL",
        "PASCAL",
        "VOLTA",
        "TURING",
        "AMPERE",
        "ADA",
        "HOPPER",
        "BLACKWELL",
        "RUBIN",
    )
}
"""Names of generations by NVML's number; what this release of pynvml does not know has no number."""


class NvmlGenerations:
    """Asks NVML."""

    def architecture(self, uuid: str) -> int | None:
        try:
            return int(pynvml.nvmlDeviceGetArchitecture(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
        except pynvml.NVMLError:
            return None

    def cuda(self) -> int | None:
        """Return the newest CUDA that the driver knows: 13010 for 13.1."""
        try:
            return int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        except pynvml.NVMLError:
            return None
