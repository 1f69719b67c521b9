"""The queue as a whole: pods come, are admitted in order, run and end."""

import pytest

from allocator.names import QUEUE_GATE
from scheduler_plugin.queue.scheduler.queue import FORGOTTEN_FROM
from tests.queue_world import TWO_QUEUES, QueueWorld, world

__all__ = ["world"]


def test_pods_are_released_by_age_as_long_as_a_card_can_take_them(world: QueueWorld) -> None:
    """The sum would suffice for the last one, no card does."""
    for i, name in enumerate(("third", "second", "first")):
        world.pod(name, 10, created=100 - i)
    assert world.admitted() == ["first", "second"]
    assert world.admitted() == []


def test_what_was_released_and_is_not_bound_keeps_its_room(world: QueueWorld) -> None:
    """Also when a pod comes that would fit beside nothing else."""
    world.pod("one", 16)
    world.pod("two", 16)
    world.decide()
    world.pod("three", 16)
    assert world.admitted() == []


def test_a_pod_that_ends_makes_room_for_the_next(world: QueueWorld) -> None:
    """As soon as the state knows."""
    uids = [world.pod(name, 16, created=i) for i, name in enumerate(("one", "two", "three"))]
    assert world.admitted() == ["one", "two"]
    world.bind(*uids[:2])
    world.delete(uids[0])
    assert world.admitted() == ["three"]


def test_a_pod_that_does_not_fit_does_not_hold_up_smaller_ones(world: QueueWorld) -> None:
    """In a queue of strategy BestEffortFIFO."""
    world.pod("large", 17, created=1)
    world.pod("small", 4, created=2)
    assert world.admitted() == ["small"]


def test_a_pod_that_asks_for_no_cpu_fits_where_more_is_requested_than_there_is() -> None:
    """As kube-scheduler has it: a node may offer less than when its pods came."""
    world = QueueWorld()
    world.node("n1", (16, 16), cpu="4")
    world.run("runs", 4, cpu="4")
    world.node("n1", (16, 16), cpu="2", memory="500Mi")
    world.pod("asks", 4, cpu="100m", memory="0")
    world.pod("asks-for-none", 4, cpu="0", memory="0")
    assert world.admitted() == ["asks-for-none"]


def test_a_strict_queue_waits_for_its_oldest() -> None:
    """Strategy StrictFIFO."""
    world = QueueWorld("queues: [{name: a, queueingStrategy: StrictFIFO}]", n1=(16, 16))
    large = world.pod("large", 17, created=1)
    world.pod("small", 4, created=2)
    assert world.admitted() == []
    world.delete(large)
    assert world.admitted() == ["small"]


def test_shares_follow_the_weights() -> None:
    """Of 12 pods that fit, nine are of the queue that is worth three times as much."""
    world = QueueWorld("queues: [{name: a, weight: 3}, {name: b}]")
    world.node("n1", (12, 12), cpu="100", memory="1000Gi")
    for i in range(24):
        world.pod(f"a{i}", 2, queue="a")
        world.pod(f"b{i}", 2, queue="b")
    names = world.admitted()
    assert sorted(name[0] for name in names) == ["a"] * 9 + ["b"] * 3


def test_a_stopped_queue_releases_nothing() -> None:
    """Until it is started again."""
    world = QueueWorld("queues: [{name: a, stopPolicy: Hold}]", n1=(16, 16))
    world.pod("one")
    assert world.admitted() == []
    world.configure("queues: [{name: a}]")
    assert world.admitted() == ["one"]


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        ({"queue": "nobody"}, 'queue "nobody" does not exist; allowed: a'),
        ({"queue": ""}, "label gpupack.io/queue-name is missing; allowed: a"),
        ({"gates": (QUEUE_GATE, "example.com/other")}, "it waits for the scheduling gates example.com/other"),
        (
            {"gang": "g"},
            "annotation gpupack.io/gang-size is missing; allowed: a whole number from 1 to 1024",
        ),
        ({"gang": "g", "size": "0x2"}, 'annotation gpupack.io/gang-size is "0x2"'),
        ({"size": 2}, "annotation gpupack.io/gang-size without gpupack.io/gang"),
        ({"annotations": {"gpupack.io/cards": "x"}}, 'annotation gpupack.io/cards is "x"'),
        ({"annotations": {"gpupack.io/node-policy": "best"}}, 'annotation gpupack.io/node-policy is "best"'),
        ({"units": 0}, "it asks for no gpupack.io/gpu-memory-gib"),
    ],
)
def test_a_pod_with_something_wrong_waits_and_the_others_go_on(
    world: QueueWorld, pod: dict[str, object], says: str
) -> None:
    """And the queue can say why."""
    uid = world.pod("wrong", **pod)  # type: ignore[arg-type]
    world.pod("right")
    assert world.admitted() == ["right"]
    assert says in world.queue.refusals.explain(world.queue.queued_pods[uid])


def test_a_foreign_gate_is_waited_for(world: QueueWorld) -> None:
    """The pod is admitted once nobody else holds it."""
    uid = world.pod("one", gates=("example.com/other", QUEUE_GATE))
    assert world.admitted() == []
    world.change(uid, spec={"schedulingGates": [{"name": QUEUE_GATE}]})
    assert world.admitted() == ["one"]


def test_a_queue_is_for_the_namespaces_that_it_selects() -> None:
    """A namespace that gets the label lets its pods in."""
    world = QueueWorld("queues: [{name: a, namespaceSelector: {matchLabels: {team: x}}}]", n1=(16, 16))
    world.pod("one")
    assert world.admitted() == []
    world.queue.set_namespaces({"default": {"team": "x"}})
    assert world.admitted() == ["one"]


def test_labels_taints_and_affinity_of_nodes_count() -> None:
    """A pod is admitted for a node that kube-scheduler will allow, or not at all."""
    world = QueueWorld()
    world.node("n1", (16, 16), spec={"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})
    world.node("n2", (16, 16), labels={"zone": "z1"}, spec={"unschedulable": True})
    world.pod("one", 1, spec={"nodeSelector": {"zone": "z1"}})
    two = world.pod("two", 1)
    world.pod("three", 1, spec={"tolerations": [{"key": "k", "operator": "Exists"}]})
    assert world.admitted() == ["three"]
    assert world.state.get_assumed("uid-three").node == "n1"  # type: ignore[union-attr]
    world.node("n2", (16, 16), labels={"zone": "z1"})
    assert sorted(world.admitted()) == ["one", "two"]
    assert world.state.get_assumed(two).node == "n2"  # type: ignore[union-attr]


def test_data_that_is_near_comes_first_and_locality_is_relaxed_when_nobody_is_near() -> None:
    """u's data is on n1 and goes there although n2 is as good."""
    world = QueueWorld(policy="least-requested")
    world.node("n1", (16,), labels={"topology.kubernetes.io/rack": "r1"})
    world.node("n2", (16,), labels={"topology.kubernetes.io/rack": "r2", "data.gpupack.io/d": ""})
    near = world.pod("near", 4, data="d", created=9)
    far = world.pod("far", 4, data="nowhere", created=1)
    releases = {release.workload.uid: release for release in world.decide()}
    assert not releases[near].relaxed
    assert releases[near].members[0].node == "n2"
    assert releases[far].relaxed
    assert list(releases) == [near, far]


def test_everything_is_found_again_after_a_restart() -> None:
    """Another queue that is told of the same objects knows the same."""
    world = QueueWorld(TWO_QUEUES, n1=(16, 16))
    for i in range(6):
        world.pod(f"a{i}", 4, queue="a", created=i)
    world.pod("b0", 4, queue="b", created=50)
    world.decide()
    world.bind("uid-a0")
    again = QueueWorld(TWO_QUEUES, n1=(16, 16))
    for raw in world.objects.values():
        again.objects[raw["metadata"]["uid"]] = raw
        again._send(raw)
    for name in ("a", "b"):
        assert again.queue.queues[name].units == world.queue.queues[name].units
        assert len(again.queue.queues[name].waiting) == len(world.queue.queues[name].waiting)


def test_needs_of_pods_that_are_gone_are_forgotten(world: QueueWorld) -> None:
    """Pods of a thousand kinds come and go; what is remembered of them does not stay."""
    for number in range(1000):
        uid = world.pod(f"p{number}", 1, spec={"nodeSelector": {"kind": str(number)}})
        world.queue.capacity.mask_fits(world.queue.queued_pods[uid].requirements)  # type: ignore[arg-type]
        world.delete(uid)
        world.queue.forget_unused()
    assert len(world.queue._requirement_pool) <= FORGOTTEN_FROM
    assert len(world.queue.capacity._masks) <= FORGOTTEN_FROM + 1
