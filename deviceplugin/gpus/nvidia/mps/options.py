"""Options with which the control daemons of MPS are started."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeapi.options import option

PROGRAM: Final = "nvidia-cuda-mps-control"

INTERFACES: Final = ("auto", "2", "3")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOptions:
    """Options of the control daemons. Each field is an option of `gpupack mps`."""

    root: Path = option(Path("/run/gpupack/mps"), help="Folder of the host, of the same path here.")
    program: str = option(
        PROGRAM,
        name="control-program",
        help="NVIDIA's control daemon; its runtime brings it along with the capability `compute`.",
    )
    interface: str = option(
        "auto",
        allowed=INTERFACES,
        help="Of MPS: 3 limits a container's compute from outside it; auto takes that from driver 615 on.",
    )
    http: str | None = option(None, metavar="HOST:PORT", help="Serve /healthz and /readyz there.")
    multi_user: bool = option(
        False,
        negative="single-user",
        shown=False,
        help="Clients of several users at once: passes -multiuser-server, which newer drivers know. "
        "Interface 3 always takes them.",
    )

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of the control daemon of MPS v2, which stays in the foreground."""
        return ("-f", "-multiuser-server") if self.multi_user else ("-f",)
