"""What the extender tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from scheduler_plugin.cluster.nodes import Exclusion
from scheduler_plugin.cluster.state import ClusterState

_BUCKETS_S = (0.0005, 0.001, 0.0015, 0.002, 0.004, 0.008, 0.016, 0.03, 0.1, 0.5, 1, 5)


class Metrics:
    """The extender's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.handled = Histogram(
            "gpupack_extender_seconds",
            "Time to handle a call, reading and writing HTTP not included.",
            ("verb",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.errors = Counter(
            "gpupack_extender_errors_total",
            "Calls answered with an error, or refused as rubbish.",
            ("verb",),
            registry=self.registry,
        )
        self._nodes = Gauge(
            "gpupack_scheduler_nodes", "Nodes by what their words say.", ("words",), registry=self.registry
        )
        self._units = Gauge(
            "gpupack_scheduler_units",
            "GPU memory of usable nodes, in units.",
            ("kind",),
            registry=self.registry,
        )
        self._pods = Gauge("gpupack_scheduler_pods", "Pods in the cache.", registry=self.registry)
        self._age = Gauge(
            "gpupack_scheduler_cache_age_seconds",
            "Seconds since the API server was last heard of.",
            registry=self.registry,
        )

    def render(self, state: ClusterState, age_s: float) -> bytes:
        """Write everything in Prometheus' text format."""
        nodes = state.nodes
        for exclusion in Exclusion:
            if exclusion is not Exclusion.VACANT:
                label = "readable" if exclusion is Exclusion.NONE else exclusion.name.lower()
                self._nodes.labels(label).set(int((nodes.exclusion == exclusion).sum()))
        for kind, array in (("size", nodes.size), ("used", nodes.used), ("assumed", nodes.assumed)):
            self._units.labels(kind).set(int(array.sum()))
        self._pods.set(len(state.pods))
        self._age.set(age_s)
        return generate_latest(self.registry)
