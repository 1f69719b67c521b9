"""Grants a container what makes its processes clients of a card's MPS; pure.

https://docs.nvidia.com/deploy/mps/appendix-tools-and-interface-reference.html
"""

from pathlib import Path
from typing import Final

from allocator.names import MIB_PER_GIB
from deviceplugin.gpus.api.container_grant import ContainerGrant, Mount
from deviceplugin.gpus.nvidia.mps.folder import SHM, CardFolder
from deviceplugin.gpus.nvidia.mps.namespaces import CUDA_WITH_NAMESPACES

VOLTA: Final = 5
"""NVML's number of the first architecture whose clients have address spaces, and so limits, of their own."""

CUDA_WITH_LIMITS: Final = 11_050
"""CUDA 11.5 brought CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; as NVML writes versions, 1000 * major + 10 * minor."""

CUDA_WITH_MORE_CLIENTS: Final = 13_010

PIPE_IN_CONTAINER: Final = "/run/gpupack/mps"


def client_limit(cuda: int) -> int:
    """Tell how many clients a server takes on a card from Volta on.

    "Volta MPS server supports 60 client CUDA contexts per-device. This is increased from 48 client CUDA
    contexts per-device limit on CUDA 13.0 and prior." (NVIDIA's documentation of MPS, "Client-Server
    Connection Limits"). Older cards take 16, which share one address space: they are not offered here.

    Args:
        cuda: the newest CUDA version that the driver knows, 13010 for 13.1.
    """
    return 60 if cuda >= CUDA_WITH_MORE_CLIENTS else 48


def find_obstacle(architecture: int | None, cuda: int | None, interface: str = "auto") -> str:
    """Say why MPS cannot hold processes to their memory on a card; empty if it can."""
    if architecture is None or cuda is None:
        return "the driver does not say the card's architecture or its CUDA version"
    if architecture < VOLTA:
        return "the card is older than Volta: processes share one address space under MPS"
    if cuda < CUDA_WITH_LIMITS:
        return "the driver is older than CUDA 11.5 (driver 495): its MPS has no memory limits"
    if interface == "3" and cuda < CUDA_WITH_NAMESPACES:
        return "--interface 3: the driver is older than CUDA 13.4 (driver 615), which brought MPS v3"
    return ""


def grant_namespace(pipe: Path) -> ContainerGrant:
    """Make a container a client of a namespace, whose limits the server holds.

    The folder has its path on the host: so NVIDIA's own guides mount it. In one that is wrong a program would
    find no control daemon, and run without MPS.
    """
    return ContainerGrant({"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}, mounts=(Mount(str(pipe), str(pipe)),))


def grant_client(folder: CardFolder, root: Path, mib: int, compute: int) -> ContainerGrant:
    """Describe a share of one card to a container.

    Args:
        mib: the limit of each of the container's processes.
        compute: percent of the card's multiprocessors; 0 for no limit.
    """
    limit = f"{mib // MIB_PER_GIB}G" if mib % MIB_PER_GIB == 0 else f"{mib}M"
    envs = {
        "CUDA_MPS_PIPE_DIRECTORY": PIPE_IN_CONTAINER,
        # The container sees one card, so its number there is 0.
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}",
    }
    if compute:
        envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(compute)
    return ContainerGrant(
        envs,
        mounts=(
            Mount(PIPE_IN_CONTAINER, str(folder.pipe)),
            # Client and server exchange memory through files there.
            Mount("/dev/shm", str(root / SHM)),  # noqa: S108 (a mount point, no temporary file)
        ),
    )
