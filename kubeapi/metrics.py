"""Metrics of the process that every process has."""

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics


def make_process_registry(prefix: str, distribution: str) -> CollectorRegistry:
    """Make a registry that has build_info and the process' metrics.

    Counters and histograms come without their `_created` series, in the whole process. Such series double
    what Prometheus stores, and it can tell from the values when a counter began anew.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge(
        f"{prefix}_build_info",
        "Always 1; the labels say what runs.",
        ("version", "python_version"),
        registry=registry,
    )
    build.labels(_read_version(distribution), platform.python_version()).set(1)
    return registry


def _read_version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # a source tree on the path that was never installed
        return "0.0.0+unknown"
