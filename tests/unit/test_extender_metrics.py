"""What the extender tells Prometheus of the cluster."""

from types import SimpleNamespace
from typing import Any, cast

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kubeapi.lease import SOLE_PROCESS
from scheduler_plugin.extender.metrics import ClusterMetrics, Metrics
from scheduler_plugin.extender.unschedulable_pods import UnschedulablePods
from scheduler_plugin.preemption.preemptor import SPARED_VICTIM_S
from tests.cluster_builders import pod, pod_object
from tests.extender_world import World
from tests.preemption_world import BUDGET_SAYS_NO, PreemptionWorld

GIB = 1 << 30


@pytest.fixture(autouse=True)
def restored():
    yield
    prometheus_client.enable_created_metrics()


class Told:
    def __init__(self) -> None:
        self.world = World()
        self.waiting = UnschedulablePods(self.world.state.pods)
        self.election: Any = SimpleNamespace(is_leader=True)

    def __call__(self, *, elected: bool = True) -> dict[str, float]:
        events: Any = SimpleNamespace(written=3, limited=2, dropped=1)
        fresh: Any = SimpleNamespace(age_s=1.5, skipped={"nodes": 0, "pods": 2})
        election = self.election if elected else SOLE_PROCESS
        cluster = ClusterMetrics(self.world.state, fresh, self.waiting, events, cast("Any", election))
        metrics = Metrics(cluster)
        metrics.handled.labels("bind").observe(0.001)
        text = metrics.render().decode()
        assert "_created" not in text
        return {
            "|".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def test_an_empty_cluster_has_every_series() -> None:
    told = Told()()
    assert told["gpupack_scheduler_largest_free_card_bytes"] == 0
    assert told["gpupack_scheduler_whole_free_cards"] == 0
    assert told["gpupack_scheduler_waiting_pods|not_free"] == 0
    assert told["gpupack_extender_request_duration_seconds_count|bind"] == 1
    assert told["gpupack_extender_request_errors_total|preempt"] == 0
    assert told["gpupack_extender_request_errors_total|commit"] == 0
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} < told.keys()


def test_cards_and_pods_as_they_are() -> None:
    told = Told()
    told.world.node("a", (16, 16), (8, 0))
    told.world.node("b", (16, 40), (16, 12), healthy=(True, False))
    told.world.node("bare", None)
    told.world.state.apply_pod(pod("p", 30), 0)
    told.world.state.apply_pod(pod("q", 2), 0)
    refusal = told.world.extender.filter(told.world.body(pod_object("p", 30)), 0).unschedulable
    assert refusal is not None
    told.waiting.record_refusal(refusal, 0)
    values = told()
    assert (
        values.items()
        >= {
            "gpupack_scheduler_cards": 4,
            "gpupack_scheduler_whole_free_cards": 1,
            "gpupack_scheduler_largest_free_card_bytes": 16 * GIB,
            "gpupack_scheduler_gpu_memory_bytes|size": 88 * GIB,
            "gpupack_scheduler_gpu_memory_bytes|used": (8 + 16 + 40) * GIB,
            "gpupack_scheduler_nodes|readable": 2,
            "gpupack_scheduler_nodes|no_words": 1,
            "gpupack_scheduler_pods": 2,
            "gpupack_scheduler_waiting_pods|too_small": 1,
            "gpupack_scheduler_waiting_pods|not_refused": 1,
            "gpupack_scheduler_cache_age_seconds": 1.5,
            "gpupack_scheduler_skipped_objects_total|nodes": 0,
            "gpupack_scheduler_skipped_objects_total|pods": 2,
            "gpupack_scheduler_events_total|written": 3,
            "gpupack_scheduler_events_total|dropped": 1,
        }.items()
    )


def test_who_leads() -> None:
    told = Told()
    assert told(elected=False)["gpupack_scheduler_leader"] == 1
    assert told()["gpupack_scheduler_leader"] == 1
    told.election.is_leader = False
    assert told()["gpupack_scheduler_leader"] == 0


async def test_what_the_preemptor_does_is_counted() -> None:
    world = PreemptionWorld()
    world.node("n1", (8,), a=(0, 4, 1), b=(0, 4, 2))
    metrics = Metrics()
    metrics.follow_preemptor(world.preemptor)
    world.wait("needy", 8)
    world.api.faults["/b/eviction"] = [BUDGET_SAYS_NO]

    def told() -> list[float]:
        text = metrics.render().decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        found = {name: float(value) for name, _, value in lines}
        attempts = "gpupack_preemption_attempts_total"
        others = ("gpupack_preemption_victims_total", "gpupack_preemption_nominated_pods")
        return [
            found[name]
            for name in (f'{attempts}{{result="begun"}}', f'{attempts}{{result="failed"}}', *others)
        ]

    assert told() == [0, 0, 0, 0]
    await world.settle()
    assert told() == [1, 1, 1, 0]
    await world.settle(SPARED_VICTIM_S[0])
    assert told() == [2, 1, 2, 1]
