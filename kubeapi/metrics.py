"""Metrics of the process that every process has."""

import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from kubeapi import read_version


def make_process_registry() -> CollectorRegistry:
    """Make a registry that has gpupack_build_info and the process' metrics.

    Counters and histograms come without their `_created` series, in the whole process. Such series double
    what Prometheus stores, and it can tell from the values when a counter began anew.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge(
        "gpupack_build_info",
        "Always 1; the labels say what runs.",
        ("version", "python_version"),
        registry=registry,
    )
    build.labels(read_version(), platform.python_version()).set(1)
    return registry
