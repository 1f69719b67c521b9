"""PodGroups of Kubernetes in the queue: one more source of gangs, all of whose gates go together."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from allocator.names import PLACEHOLDER_SCHEDULER, POD_GANG, POD_GANG_SIZE, QUEUE_GATE
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import explain_held_group, format_gang
from kubeapi.objects import Pod
from scheduler_plugin.cache.pod_groups import PodGroups
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.cache.queued_pods import GangState
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.controller.watching import QueueFeed
from scheduler_plugin.queue.controller.writer import PodWriter
from scheduler_plugin.queue.scheduler.borrowed import BorrowedPods
from tests.queue_world import TWO_QUEUES, QueueWorld, pod_group, world

__all__ = ["world"]

NONE = "kube-scheduler starts none of such a group"

DELETED = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}


def members(world: QueueWorld, count: int, name: str = "g", units: int = 4, **more: Any) -> list[str]:
    return [world.pod(f"{name}{at}", units, group=name, **more) for at in range(count)]


def reasons(world: QueueWorld) -> set[tuple[str, str]]:
    return {(why.reason.value, why.message) for why in explain_waiting(world.queue, world.now)}


def state(world: QueueWorld) -> GangState:
    gang = world.queue.gangs.get("gang default/g")
    assert gang is not None
    return gang.state


def test_of_two_groups_one_goes_whole_and_the_other_waits_whole() -> None:
    """Half of each was admitted, and kube-scheduler tried neither: a gate keeps it from the whole group."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 10}]", n1=(8, 8, 8, 8))
    for name in "ab":
        world.pod_group(name, 2)
    for at in range(2):
        for name in "ab":
            world.pod(f"{name}{at}", 5, group=name)
    assert sorted(world.admitted()) == ["a0", "a1"]
    assert world.admitted() == []
    assert {(why.gang, why.gang_size, why.reason.value) for why in explain_waiting(world.queue, 0.0)} == {
        ("b", 2, "Quota")
    }


def test_a_group_waits_for_as_many_pods_as_its_min_count(world: QueueWorld) -> None:
    world.pod_group("g", 3)
    members(world, 2)
    assert world.admitted() == []
    assert reasons(world) == {("GangIncomplete", "2 of 3 pods of its gang are ready")}
    world.pod("g2", 4, group="g")
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]


def test_all_gates_of_a_group_go_together_beyond_min_count_too(world: QueueWorld) -> None:
    world.pod_group("g", 2)
    members(world, 4, units=9)
    assert world.admitted() == []
    ((reason, message),) = reasons(world)
    assert reason == "NeverFits"
    assert message.startswith(
        "its gang has 4 waiting pods, and the cluster has room for 2 of them at once even if"
    )
    world.node("n2", (16, 16))
    assert sorted(world.admitted()) == ["g0", "g1", "g2", "g3"]


def test_pods_that_join_a_running_group_go_together(world: QueueWorld) -> None:
    world.pod_group("g", 1)
    (first,) = members(world, 1)
    assert world.admitted() == ["g0"]
    world.bind(first)
    world.pod("g1", 4, group="g")
    held = world.pod("g2", 4, group="g", gates=(QUEUE_GATE, "example.com/held"))
    assert state(world) is GangState.WHOLE
    assert world.admitted() == []
    world.change(held, spec={"schedulingGates": [{"name": QUEUE_GATE}]})
    assert sorted(world.admitted()) == ["g1", "g2"]


def test_another_gate_on_one_pod_keeps_all_of_a_group(world: QueueWorld) -> None:
    world.pod_group("g", 2)
    members(world, 2)
    held = world.pod("g2", 4, group="g", gates=(QUEUE_GATE, "example.com/held"))
    assert world.admitted() == []
    assert reasons(world) == {
        ("GangIncomplete", "2 of 3 pods of its gang are ready"),
        ("Refused", "it waits for the scheduling gates example.com/held"),
    }
    world.change(held, spec={"schedulingGates": [{"name": QUEUE_GATE}]})
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]


def test_pods_that_the_queue_does_not_hold_count_for_a_group(world: QueueWorld) -> None:
    """kube-scheduler counts every pod of the group: a launcher without cards, one of no queue."""
    world.pod_group("g", 3)
    members(world, 1)
    assert world.admitted() == []
    launcher = world.pod("launcher", group="g", queue="", gates=(), containers=[{"name": "main"}])
    assert world.admitted() == []
    held = world.pod("elsewhere", 4, group="g", queue="", gates=("example.com/held",))
    assert world.admitted() == []
    ((_, message),) = reasons(world)
    told = 'pod elsewhere of PodGroup "g" has a scheduling gate'
    assert message == f"{told}: kube-scheduler tries no pod of it before that is gone"
    world.delete(launcher)
    world.change(held, spec={"schedulingGates": []})
    assert reasons(world) == {("GangIncomplete", "2 of 3 pods of its gang are ready")}
    world.pod("launcher", group="g", queue="", gates=(), containers=[{"name": "main"}])
    assert world.admitted() == ["g0"]


@pytest.mark.parametrize(
    "spec",
    [{}, {"schedulingGates": [{"name": "example.com/held"}]}, {"priority": 7}],
    ids=["alone", "behind a gate", "of another priority"],
)
def test_of_pods_that_are_being_deleted_only_those_on_a_node_count_for_a_group(
    world: QueueWorld, spec: dict[str, Any]
) -> None:
    """A finalizer keeps it, as a Job's does; kube-scheduler counts it no more where it has no node."""
    world.pod_group("g", 3)
    members(world, 2)
    other = world.pod("other", group="g", queue="", gates=(), containers=[{"name": "main"}])
    world.change(other, spec=spec, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert world.admitted() == []
    assert reasons(world) == {("GangIncomplete", "2 of 3 pods of its gang are ready")}
    world.change(other, spec={"nodeName": "n1", "priority": 0, "schedulingGates": []})
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_pod_that_the_queue_does_not_hold_has_the_priority_of_its_group(world: QueueWorld) -> None:
    """kube-scheduler compares every pod of the group, and so does `why`."""
    world.pod_group("g", 3)
    members(world, 2)
    world.pod("other", group="g", queue="", gates=(), containers=[{"name": "main"}], spec={"priority": 7})
    assert world.admitted() == []
    message = 'PodGroup "g" has priority 0, and a pod of it 7: kube-scheduler starts no such group'
    assert reasons(world) == {("GangIncomplete", message)}


def test_a_group_that_does_not_exist_yet_lets_its_pods_wait(world: QueueWorld) -> None:
    members(world, 2)
    assert world.admitted() == []
    missing = 'there is no PodGroup "g": kube-scheduler tries no pod of it before it is there'
    assert reasons(world) == {("GangIncomplete", missing)}
    world.pod_group("g", 2)
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_groups_that_cannot_be_read_are_told(world: QueueWorld) -> None:
    members(world, 1)
    for key in world.state.pod_groups.set_fault("Forbidden"):
        world.queue.gangs.update_group(key)
    assert {message for _, message in reasons(world)} == {
        'PodGroup "g" cannot be read (Forbidden): kube-scheduler tries no pod of it before it is there'
    }


def test_the_queue_follows_the_watch_of_groups(world: QueueWorld) -> None:
    watcher = Watcher(None, world.state, lambda: world.now, 60.0)  # type: ignore[arg-type]
    QueueFeed(world.queue, watcher, lambda: world.now)
    members(world, 2)
    sink = watcher.groups
    sink.event("ADDED", pod_group("g", 3), "1")
    assert reasons(world) == {("GangIncomplete", "2 of 3 pods of its gang are ready")}
    sink.event("DELETED", pod_group("g", 3), "2")
    ((_, message),) = reasons(world)
    assert message.startswith('there is no PodGroup "g"')
    sink.set_fault("Forbidden")
    ((_, message),) = reasons(world)
    assert message.startswith('PodGroup "g" cannot be read (Forbidden)')
    sink.replace([pod_group("g", 2)], "3")
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_group_that_is_deleted_lets_its_pods_run_and_nobody_join_them(world: QueueWorld) -> None:
    world.pod_group("g", 2)
    uids = members(world, 2)
    assert len(world.admitted()) == 2
    world.bind(*uids)
    world.lose_pod_group("g")
    world.now = 10_000.0
    assert world.requeue_pods() == []
    assert state(world) is GangState.WHOLE
    world.pod("late", 4, group="g")
    assert world.admitted() == []
    world.pod_group("g", 2)
    assert world.admitted() == ["late"]


def test_a_min_count_that_changes_counts(world: QueueWorld) -> None:
    world.pod_group("g", 3)
    members(world, 2)
    assert world.admitted() == []
    world.pod_group("g", 2)
    assert len(world.admitted()) == 2


def test_a_group_without_gang_policy_needs_only_its_gates_gone_together(world: QueueWorld) -> None:
    world.pod_group("g")
    members(world, 1)
    held = world.pod("g1", 4, group="g", gates=(QUEUE_GATE, "example.com/held"))
    assert world.admitted() == []
    world.change(held, spec={"schedulingGates": [{"name": QUEUE_GATE}]})
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_job_that_is_larger_than_its_queue_is_told_what_keeps_it_whole() -> None:
    """kube-controller-manager makes its PodGroup, with which the queue cannot let some of it go."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 10}]", n1=(16, 16))
    world.pod_group("g")
    members(world, 3)
    assert world.admitted() == []
    told = "it needs 12 units; queue a can never have more than 10"
    why = 'kube-scheduler tries no pod of PodGroup "g" before all gates are gone'
    assert reasons(world) == {("NeverFits", f"{told}; {why}: make the Job smaller, or without a PodGroup")}


def test_pods_that_have_succeeded_do_not_count_for_a_group(world: QueueWorld) -> None:
    """kube-scheduler tries none of a group with fewer others than its minCount."""
    world.pod_group("g", 3)
    first, second, _ = members(world, 3)
    assert len(world.admitted()) == 3
    world.bind(*(f"uid-g{at}" for at in range(3)))
    world.change(first, status={"phase": "Succeeded"})
    world.delete(second)
    world.pod("again", 4, group="g")
    assert world.admitted() == []
    there = "2 of the 3 pods that its PodGroup needs are there"
    told = f"{there}: kube-scheduler does not count 1 that has succeeded. Lower its minCount"
    assert reasons(world) == {("GangIncomplete", told)}
    world.pod_group("g", 2)
    assert world.admitted() == ["again"]


def test_an_admitted_pod_that_is_deleted_does_not_count_for_a_group(world: QueueWorld) -> None:
    """kube-scheduler would try none of the rest before the pod that replaces it is there."""
    world.pod_group("g", 3)
    members(world, 3)
    for each in list(world.queue.admit_workloads(world.now)):
        world.queue.record_refused_admission(each.members[-1].uid, world.now, "no")
        for member in each.members[:-1]:
            world.change(member.uid, spec={"schedulingGates": []})
    world.change("uid-g0", metadata=DELETED)
    world.now = 10.0
    assert world.admitted() == []
    assert reasons(world) == {("GangIncomplete", "1 of 3 pods of its gang are ready")}
    world.pod("again", 4, group="g")
    assert sorted(world.admitted()) == ["again", "g2"]


def test_an_annotation_that_disagrees_with_the_group_is_told(world: QueueWorld) -> None:
    world.pod_group("g", 3)
    members(world, 3, annotations={POD_GANG: "train", POD_GANG_SIZE: "2"})
    assert world.admitted() == []
    told = 'annotation gpupack.io/gang-size is 2, and PodGroup "g" lets 3 pods start together'
    assert reasons(world) == {("GangIncomplete", f"{told}; allowed: the same, or no annotation")}


def test_the_annotation_counts_where_the_group_lets_each_pod_start(world: QueueWorld) -> None:
    """kube-controller-manager makes such a PodGroup for every Job, also for one whose pods are a gang."""
    world.pod_group("g")
    members(world, 2, annotations={POD_GANG: "train", POD_GANG_SIZE: "3"})
    assert world.admitted() == []
    told = '2 of 3 pods of its gang are ready; none of another PodGroup than "g" counts'
    assert reasons(world) == {("GangIncomplete", told)}
    world.pod("other", 4, group="other", annotations={POD_GANG: "train", POD_GANG_SIZE: "3"})
    assert world.admitted() == [], "another Job's pods are of that Job's PodGroup"
    world.pod("g2", 4, group="g", annotations={POD_GANG: "train", POD_GANG_SIZE: "3"})
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]


def test_annotations_that_agree_with_the_group_change_nothing(world: QueueWorld) -> None:
    """As where kube-controller-manager makes the PodGroup of a Job that has the annotations already."""
    world.pod_group("g", 2)
    members(world, 2, annotations={POD_GANG: "train", POD_GANG_SIZE: "2"})
    assert sorted(world.admitted()) == ["g0", "g1"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"schedulerName": "second"},
            f'the pods of PodGroup "g" disagree on schedulerName (first, second): {NONE}',
        ),
        (
            {"preemptionPolicy": "Never"},
            f'the pods of PodGroup "g" disagree on preemptionPolicy (Never, PreemptLowerPriority): {NONE}',
        ),
        (
            {"priority": 7},
            'PodGroup "g" has priority 0, and a pod of it 7: kube-scheduler starts no such group',
        ),
    ],
    ids=["schedulers", "policies", "priority"],
)
@pytest.mark.parametrize("outside", [False, True], ids=["of the queue", "outside"])
def test_what_kube_scheduler_would_refuse_of_a_group_is_told(
    world: QueueWorld, other: dict[str, Any], message: str, *, outside: bool
) -> None:
    """Also where the pod that differs asks for no cards: kube-scheduler compares all of the PodGroup."""
    world.pod_group("g", 2)
    more: dict[str, Any] = {"containers": [{"name": "main"}], "gates": ()} if outside else {}
    world.pod("g0", 4, group="g", spec={"schedulerName": "first"})
    world.pod("g1", 4, group="g", spec={"schedulerName": "first", **other}, **more)
    assert world.admitted() == []
    assert reasons(world) == {("GangIncomplete", message)}


@pytest.mark.parametrize(
    ("spec", "more", "held"),
    [
        ({}, {}, False),
        ({"nodeName": "n1"}, {"metadata": DELETED}, False),
        ({"nodeName": "n1"}, {"status": {"phase": "Succeeded"}}, True),
        ({}, {"metadata": DELETED}, True),
        ({"schedulerName": PLACEHOLDER_SCHEDULER}, {}, True),
        ({"schedulingGates": [{"name": "x"}]}, {}, True),
        ({"schedulerName": "other"}, {}, True),
        ({"preemptionPolicy": "Never"}, {}, True),
        ({"nodeName": "n1", "priority": 7}, {}, True),
        ({"priority": 7}, {"metadata": DELETED}, True),
    ],
)
def test_the_queue_and_why_say_the_same_of_a_group(
    world: QueueWorld, spec: dict[str, Any], more: dict[str, Any], *, held: bool
) -> None:
    """The first two pods are the queue's; the third, which asks for no cards, is asked about for both."""
    world.pod_group("g", 3)
    uids = members(world, 2)
    assert {why.gang_size for why in explain_waiting(world.queue, 0.0)} == {3}
    uid = world.pod("g2", queue="", group="g", gates=(), containers=[{"name": "main"}])
    world.change(uid, spec=spec, **more)
    pods = [msgspec.convert(raw, Pod) for raw in world.objects.values()]
    cluster = Cluster.from_objects([], pods, pod_groups=PodGroups())
    cluster.pod_groups.put_group(pod_group("g", 3))
    first = cluster.pods[uids[0]]
    assert bool(explain_held_group(cluster, first)) == held
    (size,) = {why.gang_size for why in explain_waiting(world.queue, 0.0)}
    assert format_gang(cluster, first) == f"g ({size})"
    assert bool(world.admitted()) != held


def test_batch_mode_leaves_groups_to_kube_scheduler(world: QueueWorld) -> None:
    world.queue.batch.enabled = True
    world.pod_group("g", 1)
    spec = {"schedulerName": "gpupack-batch", "schedulingGroup": {"podGroupName": "g"}}
    uid = world.pod("g0", 4, group="g", gates=(), spec={"schedulerName": "gpupack-batch"})
    world.queue.set_batch_spec(uid, spec)
    assert world.admitted() == []
    ((reason, message),) = reasons(world)
    assert reason == "Refused"
    assert message.startswith("batch mode does not know schedulingGroup: create the pod without it, or with")


@pytest.mark.parametrize(
    ("count", "launcher", "told"),
    [(2, None, "1 of 2"), (3, {"nodeName": "n1"}, "2 of 3"), (3, {}, "1 of 3"), (1, None, "1 of 2")],
    ids=["alone", "with a bound launcher", "with a waiting launcher", "with more than minCount"],
)
def test_a_group_bound_in_part_is_taken_back_after_gang_within(
    world: QueueWorld, count: int, launcher: dict[str, Any] | None, told: str
) -> None:
    """A launcher without cards, which the queue leaves alone, is one of the pods that are told."""
    owned = {"metadata": {"labels": {"gpupack.io/queue-name": "a"}, **world.made_by("j")}}
    world.pod_group("g", count)
    if launcher is not None:
        world.pod("launcher", group="g", queue="", gates=(), containers=[{"name": "main"}], spec=launcher)
    uids = members(world, 2, **owned)
    assert len(world.admitted()) == 2
    world.bind(uids[0])
    world.now = 301.0
    removed = [each for each in world.requeue_pods() if each.removes]
    assert {world.name(each.queued_pod.uid) for each in removed} == ({"g1"} if count == 1 else {"g0", "g1"})
    assert {each.why for each in removed} == {f"{told} pods of its gang are bound after 300 s"}


@pytest.mark.parametrize(("count", "groups"), [(2, [2]), (0, [1])], ids=["gang", "no-gang"])
def test_reclaim_evicts_a_group_whole_if_it_is_a_gang(count: int, groups: list[int]) -> None:
    world = QueueWorld(TWO_QUEUES, n1=(16, 16))
    world.pod_group("g", count)
    uids = members(world, 2, units=12)
    assert len(world.admitted()) == 2
    world.bind(*uids)
    cohort = world.queue.queues.get_cohort("b")
    assert cohort is not None
    borrowed = BorrowedPods(world.queue).list_borrowed(cohort, "b", ())
    assert [len(group.pods) for group in borrowed] == groups


def test_running_pods_go_whole_where_their_group_is_not_there_after_a_restart() -> None:
    world = QueueWorld(TWO_QUEUES, n1=(16, 16))
    for at in range(2):
        world.pod(f"g{at}", 12, group="g", gates=(), node="n1")
    cohort = world.queue.queues.get_cohort("b")
    assert cohort is not None
    borrowed = BorrowedPods(world.queue).list_borrowed(cohort, "b", ())
    assert [len(group.pods) for group in borrowed] == [2]
    world.queue.gangs.begin_removal("gang default/g", world.now)
    assert state(world) is GangState.LEAVING


class Patches:
    """Takes the patches of pods."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.both = asyncio.Event()

    async def patch(self, path: str, body: Any, *_: object, **__: object) -> bytes:
        self.paths += [step["path"] for step in body]
        if path.endswith("/g1"):
            self.both.set()
        return b"{}"


@pytest.mark.parametrize("topology", ["", "zone"])
async def test_where_a_group_has_topology_constraints_no_node_is_named(topology: str) -> None:
    """The queue does not look at them: the cards that it names could be in several domains."""
    world = QueueWorld("mode: batch\nqueues: [{name: a}]", n1=(16, 16))
    world.pod_group("g", 2, topology)
    members(world, 2)
    api: Any = Patches()
    recorder: Any = SimpleNamespace(event=lambda *_: None)
    controller = Controller(
        world.queue, PodWriter(api, lambda: True, 1.0), recorder, lambda: world.now, lambda: True
    )
    controller.record_change()
    running = asyncio.create_task(controller.run())
    async with asyncio.timeout(30):
        await api.both.wait()
    running.cancel()
    names = {"/spec/affinity", "/metadata/annotations"} & set(api.paths)
    assert bool(names) != bool(topology)
    assert "/spec/schedulingGates" in api.paths
