"""Metrics of `gpupack autoscale`."""

from collections import Counter
from collections.abc import Mapping

from prometheus_client import Gauge, Histogram, generate_latest

from gpupack.autoscale.planner import Plan
from gpupack.autoscale.scale_down import KeepReason, KeptNode
from gpupack.autoscale.waiting_pods import Outcome
from kubeapi.metrics import make_process_registry

_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class AutoscaleMetrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = make_process_registry()
        self._placeholders = Gauge(
            "gpupack_autoscale_placeholders", "Placeholder pods that ask for a node.", registry=registry
        )
        self._pods = Gauge(
            "gpupack_autoscale_waiting_pods",
            "Pods that wait for cards, by what is done for them.",
            ("outcome",),
            registry=registry,
        )
        self._kept = Gauge(
            "gpupack_autoscale_kept_nodes",
            "Nodes that are kept from scale-down, by why.",
            ("reason",),
            registry=registry,
        )
        self._starting = Gauge(
            "gpupack_autoscale_starting_nodes", "Nodes that do not take pods yet.", registry=registry
        )
        self._failed = Gauge(
            "gpupack_autoscale_failed_writes",
            "Writes that the API server refused or did not answer, since the start.",
            ("what",),
            registry=registry,
        )
        self.passes = Histogram(
            "gpupack_autoscale_pass_duration_seconds",
            "Time to find out which nodes to ask for.",
            buckets=_BUCKETS_S,
            registry=registry,
        )

    def render(self, plan: Plan, kept: Mapping[str, KeptNode], failed: Mapping[str, int]) -> bytes:
        self._placeholders.set(len(plan.placeholders))
        self._starting.set(len(plan.starting))
        counts = plan.counts()
        for outcome in Outcome:
            self._pods.labels(outcome.value).set(counts[outcome])
        reasons = Counter(each.reason for each in kept.values())
        for reason in KeepReason:
            self._kept.labels(reason.value).set(reasons[reason])
        for what in ("create", "delete", "mark", "rename", "node", "label"):
            self._failed.labels(what).set(failed.get(what, 0))
        return generate_latest(self.registry)
