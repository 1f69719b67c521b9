"""Why a pod waits, and each way out that was tried: `gpupack why`."""

from gpupack.diagnose.why import why

__all__ = ["why"]
