"""Batch mode beside kube-scheduler on the same nodes: headroom, a count of lost races, and a pause."""

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from allocator.names import BATCH_POOL, BATCH_SCHEDULER
from scheduler_plugin.binding.batch_protocol import CommitOutcome
from scheduler_plugin.binding.shared_nodes import STOPPED_S, SharedNodes
from scheduler_plugin.cache.host_objects import HostPod
from scheduler_plugin.extender.metrics import Metrics
from tests.batch_world import BatchWorld
from tests.cluster_builders import pod_object

OWN = {"taints": [{"key": BATCH_POOL, "value": "true", "effect": "NoSchedule"}]}
TOLERATES = {"tolerations": [{"key": BATCH_POOL, "operator": "Exists"}]}


def fail(world: BatchWorld, name: str, node: str, reason: str, scheduler: str = "default-scheduler") -> None:
    """A kubelet fails a pod."""
    raw = pod_object(name, 1, node=node, spec={"schedulerName": scheduler})
    world.shared.apply_pod(msgspec.convert(raw, HostPod), world.now)
    raw["status"] = {"phase": "Failed", "reason": reason}
    world.shared.apply_pod(msgspec.convert(raw, HostPod), world.now)


async def bind(world: BatchWorld, name: str, node: str = "n", **more: Any) -> str:
    """Why a pod is not bound, empty where it is."""
    world.pod(name, 1, **more)
    (result,) = await world.commit([world.candidates(name, node)])
    assert (result.outcome is CommitOutcome.BOUND) is (not result.why)
    world.see(name)
    return result.why


async def test_a_pod_that_a_kubelet_fails_stops_batch_mode_on_shared_nodes_for_a_while() -> None:
    world = BatchWorld()
    assert not await bind(world, "p")
    fail(world, "theirs", "n", "OutOfcpu")
    for node in ("n", "m"):
        why = await bind(world, f"q-{node}", node)
        assert "the kubelet of node n had not enough cpu for pod default/theirs" in why
        assert "batchHeadroom" in why
    world.now += STOPPED_S
    assert not await bind(world, "r")


async def test_nodes_of_batch_mode_alone_are_used_all_the_same() -> None:
    world = BatchWorld()
    world.node("m", spec=OWN)
    assert not await bind(world, "p")
    fail(world, "theirs", "n", "OutOfmemory")
    assert await bind(world, "q", spec=TOLERATES)
    assert not await bind(world, "r", "m", spec=TOLERATES)


async def test_headroom_is_kept_on_shared_nodes_only() -> None:
    world = BatchWorld()
    world.node("n", cpu="2")
    world.node("m", cpu="2", spec=OWN)
    for name in "pq":
        world.pod(name, 1, cpu="1500m", spec=TOLERATES)
    lists = [world.candidates("p", "n"), world.candidates("q", "m")]
    shared, own = await world.commit(*([each] for each in lists), headroom=0.5)
    assert (shared.why, own.outcome) == ("insufficient cpu", CommitOutcome.BOUND)


async def test_who_is_no_loser_of_a_race_with_batch_mode_does_not_count() -> None:
    world = BatchWorld()
    fail(world, "alone", "n", "OutOfcpu")
    assert not await bind(world, "p")
    fail(world, "odd", "n", "UnexpectedAdmissionError")
    fail(world, "elsewhere", "m", "OutOfcpu")
    world.node("n", spec=OWN)
    fail(world, "own", "n", "OutOfcpu")
    assert not world.shared.failed
    world.node("n")
    fail(world, "race", "n", "OutOfcpu")
    fail(world, "race", "n", "OutOfcpu")
    fail(world, "ours", "m", "OutOfmemory", BATCH_SCHEDULER)
    assert dict(world.shared.failed) == {"cpu": 1, "memory": 1}


def test_what_failed_before_this_process_began_is_history() -> None:
    def failed(name: str) -> HostPod:
        status = {"reason": "OutOfcpu"}
        raw = pod_object(
            name, 1, node="n", phase="Failed", status=status, spec={"schedulerName": BATCH_SCHEDULER}
        )
        return msgspec.convert(raw, HostPod)

    shared = SharedNodes()
    shared.replace_pods([failed("before")], 0)
    assert not shared.is_stopped(0)
    shared.replace_pods([failed("before"), failed("since")], 0)
    assert (shared.is_stopped(0), shared.failed.total()) == (True, 1)
    shared.replace_pods([], 0)
    assert (shared._counted, shared._on, shared._node_of) == (set(), {}, {})


def test_the_count_and_the_pause_are_metrics() -> None:
    shared = SharedNodes()
    now = 0.0
    metrics = Metrics()
    metrics.follow_shared_nodes(shared, lambda: now)

    def read() -> dict[str, float]:
        return {
            "|".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(metrics.render().decode())
            for sample in family.samples
            if "batch" in sample.name and "pods_total" not in sample.name.replace("failed_pods_total", "")
        }

    assert read() == {
        "gpupack_extender_batch_failed_pods_total|cpu": 0,
        "gpupack_extender_batch_failed_pods_total|memory": 0,
        "gpupack_extender_batch_paused": 0,
    }
    shared.replace_pods([], now)
    raw = pod_object("p", 1, node="n", phase="Failed", status={"reason": "OutOfcpu"})
    raw["spec"]["schedulerName"] = BATCH_SCHEDULER  # type: ignore[index]
    shared.apply_pod(msgspec.convert(raw, HostPod), now)
    assert read()["gpupack_extender_batch_failed_pods_total|cpu"] == 1
    assert read()["gpupack_extender_batch_paused"] == 1
    now = STOPPED_S
    assert read()["gpupack_extender_batch_paused"] == 0
