"""The metrics of the extender."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from allocator.names import MIB
from kubeapi.lease import SOLE_PROCESS, LeaderStatus
from kubeapi.metrics import make_process_registry
from scheduler_plugin.binding.batch_protocol import CommitOutcome
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.unschedulable_pods import INVALID, NOT_REFUSED, UnschedulablePods
from scheduler_plugin.scheduling.reasons import FilterReason

if TYPE_CHECKING:
    from kubeapi.events import EventRecorder
    from scheduler_plugin.binding.shared_nodes import SharedNodes
    from scheduler_plugin.cache.watcher import Watcher
    from scheduler_plugin.extender.retry import RefusedPodRetrier
    from scheduler_plugin.preemption.preemptor import Preemptor

VERBS: Final = ("filter", "prioritize", "bind", "preempt", "commit")

_BUCKETS_S: Final = (0.0005, 0.001, 0.0015, 0.002, 0.004, 0.008, 0.016, 0.03, 0.1, 0.5, 1, 5)
_REASONS: Final = (*(reason.metric_label for reason in FilterReason), INVALID, NOT_REFUSED)


class Metrics:
    """The extender's metrics in a registry of their own."""

    def __init__(self, cluster: "ClusterMetrics | None" = None) -> None:
        self.registry = make_process_registry()
        self.handled = Histogram(
            "gpupack_extender_request_duration_seconds",
            "Time to handle a call, reading and writing HTTP not included.",
            ("verb",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.errors = Counter(
            "gpupack_extender_request_errors_total",
            "Calls answered with an error, or refused as rubbish.",
            ("verb",),
            registry=self.registry,
        )
        self.committed = Counter(
            "gpupack_extender_batch_pods_total",
            "Pods of batch mode that a queue handed over, by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        for outcome in CommitOutcome:
            self.committed.labels(outcome.value)
        for verb in VERBS:
            # From the start: what appears with its first error has no increase that an alert could see.
            self.handled.labels(verb)
            self.errors.labels(verb)
        if cluster is not None:
            self.registry.register(cluster)

    def follow_retrier(self, looks: "RefusedPodRetrier") -> None:
        found = Counter(
            "gpupack_scheduler_second_looks_total",
            "Refused pods that fit a moment later and that kube-scheduler was made to try again.",
            registry=self.registry,
        )
        looks.fits.connect(lambda _uid: found.inc())

    def follow_shared_nodes(self, shared: "SharedNodes", clock: Callable[[], float]) -> None:
        self.registry.register(SharedNodesMetrics(shared, clock))

    def follow_preemptor(self, preemptor: "Preemptor") -> None:
        attempts = Counter(
            "gpupack_preemption_attempts_total",
            "Preemptions of ours: begun, and those that came to nothing.",
            ("result",),
            registry=self.registry,
        )
        begun, failed = attempts.labels("begun"), attempts.labels("failed")
        preemptor.began.connect(lambda _pod, _plan: begun.inc())
        preemptor.failed.connect(lambda _pod, _why: failed.inc())
        victims = Counter(
            "gpupack_preemption_victims_total",
            "Pods evicted for pods of higher priority.",
            registry=self.registry,
        )
        preemptor.evicted.connect(lambda _victim, _pod, _node: victims.inc())
        Gauge(
            "gpupack_preemption_nominated_pods",
            "Pods that cards are being kept for.",
            registry=self.registry,
        ).set_function(lambda: len(preemptor.state.reservations))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class SharedNodesMetrics(Collector):
    """Reads what batch mode knows of shared nodes when Prometheus scrapes."""

    def __init__(self, shared: "SharedNodes", clock: Callable[[], float]) -> None:
        self._shared = shared
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        failed = CounterMetricFamily(
            "gpupack_extender_batch_failed_pods",
            "Pods that kubelets failed (OutOf...) where a Binding of batch mode met another, by resource.",
            labels=["resource"],
        )
        for resource in sorted({"cpu", "memory", *self._shared.failed}):
            failed.add_metric([resource], self._shared.failed[resource])
        yield failed
        yield GaugeMetricFamily(
            "gpupack_extender_batch_paused_nodes",
            "Shared nodes on which batch mode binds no pod for now, because the kubelet had to fail one.",
            value=len(self._shared.list_stopped(self._clock())),
        )


class ClusterMetrics(Collector):
    """Reads the cache when Prometheus scrapes."""

    def __init__(
        self,
        state: ClusterState,
        watcher: "Watcher",
        waiting: UnschedulablePods,
        events: "EventRecorder",
        leadership: LeaderStatus = SOLE_PROCESS,
    ) -> None:
        self._state = state
        self._watcher = watcher
        self._waiting = waiting
        self._events = events
        self._leadership = leadership

    def collect(self) -> Iterator[Metric]:
        yield from self._nodes()
        yield from self._cards()
        yield from self._pods()
        yield GaugeMetricFamily(
            "gpupack_scheduler_cache_age_seconds",
            "Seconds since the API server was last heard of.",
            value=self._watcher.age_s,
        )
        skipped = CounterMetricFamily(
            "gpupack_scheduler_skipped_objects",
            "Nodes and pods of the API server's lists that cannot be read, and do not count.",
            labels=["resource"],
        )
        for resource, count in self._watcher.skipped.items():
            skipped.add_metric([resource], count)
        yield skipped
        yield GaugeMetricFamily(
            "gpupack_scheduler_leader",
            "1 where this process may bind pods: it holds the Lease, or there is no election.",
            value=int(self._leadership.is_leader),
        )
        events = CounterMetricFamily(
            "gpupack_scheduler_events",
            "Events on pods: written; limited, which only raised a count; dropped.",
            labels=["result"],
        )
        for result in ("written", "limited", "dropped"):
            events.add_metric([result], getattr(self._events, result))
        yield events

    def _nodes(self) -> Iterator[Metric]:
        nodes = self._state.nodes
        family = GaugeMetricFamily(
            "gpupack_scheduler_nodes", "Nodes by what their words say.", labels=["words"]
        )
        for exclusion in Exclusion:
            if exclusion is not Exclusion.VACANT:
                label = "readable" if exclusion is Exclusion.NONE else exclusion.name.lower()
                family.add_metric([label], int((nodes.exclusion == exclusion).sum()))
        yield family

    def _cards(self) -> Iterator[Metric]:
        nodes = self._state.nodes
        unit_bytes = self._state.unit_mib * MIB
        memory = GaugeMetricFamily(
            "gpupack_scheduler_gpu_memory_bytes",
            "GPU memory of usable nodes: size of the cards; used, as the nodes say; assumed, of pods "
            "that are bound and not in that yet.",
            labels=["kind"],
        )
        used = np.minimum(nodes.used, nodes.size)
        for kind, array in (("size", nodes.size), ("used", used), ("assumed", nodes.assumed)):
            memory.add_metric([kind], int(array.sum(dtype=np.int64)) * unit_bytes)
        yield memory
        there = nodes.size > 0
        yield GaugeMetricFamily(
            "gpupack_scheduler_cards", "Cards of usable nodes.", value=int(np.count_nonzero(there))
        )
        yield GaugeMetricFamily(
            "gpupack_scheduler_whole_free_cards",
            "Cards of usable nodes with nothing on them.",
            value=int(np.count_nonzero(there & (nodes.free == nodes.size))),
        )
        yield GaugeMetricFamily(
            "gpupack_scheduler_largest_free_card_bytes",
            "The most GPU memory that is free on one card: a container that asks for more waits.",
            value=int(nodes.free.max(initial=0)) * unit_bytes,
        )

    def _pods(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("gpupack_scheduler_pods", "Pods in the cache.", value=len(self._state.pods))
        family = GaugeMetricFamily(
            "gpupack_scheduler_waiting_pods",
            "Pods that wait for a node and ask for cards, by why the nodes that come closest cannot take "
            "them. With not_refused kube-scheduler has not asked yet, or ruled out every node itself.",
            labels=["reason"],
        )
        counts = self._waiting.count_by_reason()
        for reason in _REASONS:
            family.add_metric([reason], counts[reason])
        yield family
