"""The command line of gpupack, its demo, and the stand-ins for kubelet and API server."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gpupack")
except PackageNotFoundError:  # a source tree on the path that was never installed
    __version__ = "0.0.0+unknown"
