"""Access to the Kubernetes API: requests in bytes, list and watch, leader election, Events.

The `kubernetes` package reads configuration, credentials and TLS. The bytes go through aiohttp: decoding
thousands of objects through models costs seconds and hundreds of MiB.
"""


def read_version() -> str:
    """Read the version of gpupack that runs, without loading more for it."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("gpupack")
    except PackageNotFoundError:  # a source tree on the path that was never installed
        return "0.0.0+unknown"
