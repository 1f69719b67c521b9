"""Why a pod waits, and each way out that was tried: `gpupack why`."""

from gpupack.diagnose.why import explain_pod

__all__ = ["explain_pod"]
