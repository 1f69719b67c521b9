"""Metrics of the queue for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram, generate_latest

from kubeapi.metrics import make_process_registry
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.status import report_queues

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)


class QueueMetrics:
    """The queue's metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = make_process_registry()
        self.leader = Gauge(
            "gpupack_queue_leader",
            "1 where this process may admit pods: it holds the queue's Lease, or there is no election.",
            registry=registry,
        )
        self._units = Gauge(
            "gpupack_queue_units", "GPU memory in units.", ("queue", "kind"), registry=registry
        )
        self._pods = Gauge("gpupack_queue_pods", "Pods.", ("queue", "state"), registry=registry)
        self._weight = Gauge(
            "gpupack_queue_weight", "Share beside the others.", ("queue",), registry=registry
        )
        self._shares = Gauge(
            "gpupack_queue_weighted_share",
            "Dominant share by weight, with fairSharing: dominant.",
            ("queue",),
            registry=registry,
        )
        self._oldest = Gauge(
            "gpupack_queue_oldest_wait_seconds",
            "How long the pod waits that waits longest.",
            ("queue",),
            registry=registry,
        )
        self.decisions = Histogram(
            "gpupack_queue_decision_duration_seconds",
            "Time to find the next pod to admit, or that there is none.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._counters = {
            name: Counter(f"gpupack_queue_{name}_total", text, ("queue",), registry=registry)
            for name, text in (
                ("admitted", "Pods admitted."),
                ("borrowed", "Pods admitted on what others lent."),
                ("requeued", "Admitted pods that were requeued: others have their room."),
                ("reclaimed", "Pods evicted because a lender needed what their queue had borrowed."),
            )
        }

    def render_metrics(self, controller: Controller, now: float) -> bytes:
        for gauge in (self._units, self._pods, self._weight, self._shares, self._oldest):
            gauge.clear()
        for queue_state in report_queues(controller.queue, now):
            for kind, units in (
                ("nominal", queue_state.nominal),
                ("used", queue_state.used),
                ("borrowed", queue_state.borrowed),
                ("lent", queue_state.lent),
            ):
                if units is not None:
                    self._units.labels(queue_state.name, kind).set(units)
            self._pods.labels(queue_state.name, "waiting").set(queue_state.waiting)
            self._pods.labels(queue_state.name, "first_stage").set(queue_state.first_stage)
            self._pods.labels(queue_state.name, "admitted").set(queue_state.running)
            self._weight.labels(queue_state.name).set(queue_state.weight)
            if controller.queue.config.fair_sharing == "dominant":
                self._shares.labels(queue_state.name).set(queue_state.weighted_share)
            self._oldest.labels(queue_state.name).set(queue_state.oldest_wait_s)
        counts = controller.counts
        for name, by_queue in (
            ("admitted", counts.admitted),
            ("borrowed", counts.borrowed),
            ("requeued", counts.requeued),
            ("reclaimed", counts.reclaimed),
        ):
            for queue, count in by_queue.items():
                self._counters[name].labels(queue).inc(count)
            by_queue.clear()
        return generate_latest(self.registry)
