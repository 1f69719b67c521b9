"""Batch mode beside kube-scheduler on the same nodes: headroom, a count of lost races, and a pause."""

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from allocator.names import BATCH_POOL, BATCH_SCHEDULER
from kubeapi.objects import Pod
from scheduler_plugin.binding.batch_protocol import CommitOutcome
from scheduler_plugin.binding.shared_nodes import RACE_S, STOPPED_S, SharedNodes
from scheduler_plugin.extender.metrics import Metrics
from tests.batch_world import BatchWorld
from tests.cluster_builders import pod_object

OWN = {"taints": [{"key": BATCH_POOL, "value": "true", "effect": "NoSchedule"}]}
TOLERATES = {"tolerations": [{"key": BATCH_POOL, "operator": "Exists"}]}


def show(
    shared: SharedNodes, name: str, now: float, node: str = "", reason: str = "", scheduler: str = "other"
) -> None:
    """Bring a version of a pod: unbound, bound, or failed by its kubelet."""
    phase = "Failed" if reason else "Pending"
    raw = pod_object(
        name, 1, node=node, phase=phase, status={"reason": reason}, spec={"schedulerName": scheduler}
    )
    shared.apply_pod(msgspec.convert(raw, Pod), now)


def bind_other(world: BatchWorld, name: str, node: str) -> None:
    show(world.shared, name, world.now)
    show(world.shared, name, world.now, node)


def fail(world: BatchWorld, name: str, node: str, reason: str) -> None:
    """A kubelet fails a pod of another scheduler."""
    show(world.shared, name, world.now, node, reason)


async def bind(world: BatchWorld, name: str, node: str = "n", **more: Any) -> str:
    """Why a pod is not bound, empty where it is."""
    world.pod(name, 1, **more)
    (result,) = await world.commit([world.candidates(name, node)])
    assert (result.outcome is CommitOutcome.BOUND) is (not result.why)
    world.see(name)
    return result.why


async def test_a_lost_race_with_a_binding_of_batch_mode_stops_it_on_that_node_for_a_while() -> None:
    world = BatchWorld()
    assert not await bind(world, "p")
    bind_other(world, "theirs", "n")
    fail(world, "theirs", "n", "OutOfcpu")
    why = await bind(world, "q")
    assert "node n: its kubelet had not enough cpu for pod default/theirs" in why
    assert "batchHeadroom" in why
    assert not await bind(world, "r", "m")
    world.now += STOPPED_S
    assert not await bind(world, "s")


async def test_a_pod_that_names_its_node_itself_stops_nobody() -> None:
    world = BatchWorld()
    assert not await bind(world, "p")
    show(world.shared, "evil", world.now, "n")
    fail(world, "evil", "n", "OutOfcpu")
    show(world.shared, "evil-batch", world.now, "n", "OutOfcpu", BATCH_SCHEDULER)
    assert not await bind(world, "q")
    assert not world.shared.failed


async def test_nodes_of_batch_mode_alone_are_used_all_the_same() -> None:
    world = BatchWorld()
    assert not await bind(world, "p")
    bind_other(world, "theirs", "n")
    fail(world, "theirs", "n", "OutOfmemory")
    assert await bind(world, "q", spec=TOLERATES)
    world.node("n", spec=OWN)
    assert not await bind(world, "r", spec=TOLERATES)


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
    bind_other(world, "alone", "n")
    fail(world, "alone", "n", "OutOfcpu")
    assert not await bind(world, "p")
    for name in ("odd", "own", "race"):
        bind_other(world, name, "n")
    bind_other(world, "elsewhere", "m")
    fail(world, "odd", "n", "UnexpectedAdmissionError")
    fail(world, "elsewhere", "m", "OutOfcpu")
    world.node("n", spec=OWN)
    fail(world, "own", "n", "OutOfcpu")
    world.node("n")
    world.now += RACE_S + 1
    bind_other(world, "late", "n")
    fail(world, "late", "n", "OutOfcpu")
    show(world.shared, "admitted", world.now, scheduler=BATCH_SCHEDULER)
    world.shared.apply_pod(
        msgspec.convert(pod_object("admitted", 1, node="m", phase="Running"), Pod), world.now
    )
    show(world.shared, "admitted", world.now, "m", "OutOfcpu", BATCH_SCHEDULER)
    assert not world.shared.failed
    for _ in range(2):
        fail(world, "race", "n", "OutOfcpu")
    show(world.shared, "ours", world.now, scheduler=BATCH_SCHEDULER)
    show(world.shared, "ours", world.now, "m", "OutOfmemory", BATCH_SCHEDULER)
    assert dict(world.shared.failed) == {"cpu": 1, "memory": 1}


def test_lists_replace_what_was_known() -> None:
    shared = SharedNodes()
    lose_race(shared)
    show(shared, "waits", 0)
    show(shared, "bound", 0)
    show(shared, "bound", 0, "n")
    assert shared.list_stopped(0) == ["n"]
    shared.replace_pods([], 0)
    shared.replace_nodes([])
    assert not shared.list_stopped(0)
    assert not [*shared._unbound, *shared._bound_at, *shared._batch_bound_at, *shared._stopped]


def lose_race(shared: SharedNodes) -> None:
    """A pod that batch mode bound is failed by the kubelet of node n."""
    show(shared, "p", 0, scheduler=BATCH_SCHEDULER)
    show(shared, "p", 0, "n", "OutOfcpu", BATCH_SCHEDULER)


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
        "gpupack_extender_batch_paused_nodes": 0,
    }
    lose_race(shared)
    assert read()["gpupack_extender_batch_failed_pods_total|cpu"] == 1
    assert read()["gpupack_extender_batch_paused_nodes"] == 1
    now = STOPPED_S
    assert read()["gpupack_extender_batch_paused_nodes"] == 0
