"""Annotations of pods: as many as needed, again when they fail."""

import json

import pytest
from structlog.testing import capture_logs

from allocator.names import POD_ALLOCATION
from allocator.records import MemoryRecord, dump_allocation
from deviceplugin.allocation.objects import PodObject
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.publishing.annotator import REPAIR_S, AllocationAnnotator
from deviceplugin.publishing.published_use import PublishedUse
from kubeapi.errors import Conflict, Forbidden, Invalid, NotFound, Unreachable
from kubeapi.objects import ObjectMeta
from tests.ledger_world import ids, pod
from tests.publisher_world import Bench
from tests.running import background
from tests.waiting import until


def pod_object(name: str, allocation: str | None) -> PodObject:
    return PodObject(
        ObjectMeta(name, namespace="ns", annotations=allocation and {POD_ALLOCATION: allocation})
    )


def admitted() -> Bench:
    """Pod `a` runs, and no annotation says so yet."""
    bench = Bench()
    bench.complete()
    bench.admit()
    return bench


def annotator_of(bench: Bench) -> AllocationAnnotator:
    return AllocationAnnotator(bench.api, bench.account, bench.pods)


def annotating(allocation: str | None) -> tuple[Bench, AllocationAnnotator]:
    """Pod `a` runs, and its object has this annotation."""
    bench = admitted()
    bench.pods.pods_by_uid["a"] = pod_object("pod-a", allocation)
    return bench, annotator_of(bench)


async def annotated(bench: Bench, annotator: AllocationAnnotator) -> list:
    await annotator._step()
    return [(name, json.loads(notes[POD_ALLOCATION])) for _, name, _, notes in bench.api.notes]


async def test_an_allocation_is_written_once():
    bench = admitted()
    annotator = annotator_of(bench)
    assert await annotated(bench, annotator) == []
    bench.pods.pods_by_uid["a"] = pod_object("pod-a", None)
    told = [("pod-a", {"uid": "a", "containers": {"main": [["c0", 3]]}})]
    assert await annotated(bench, annotator) == told
    assert await annotated(bench, annotator) == told


@pytest.mark.parametrize(("uid", "written"), [("a", 0), ("other", 1)], ids=["its own", "a copied one"])
async def test_an_allocation_that_is_there_already_is_left_alone_unless_it_is_a_copy(uid, written):
    bench, annotator = annotating(f'{{"uid":"{uid}","containers":{{"main":[["c0",3]]}}}}')
    assert len(await annotated(bench, annotator)) == written


@pytest.mark.parametrize(("uid", "used"), [("a", 700), ("other", None)], ids=["its own", "a copied one"])
async def test_what_a_pod_used_is_kept_over_a_restart_unless_another_pod_used_it(uid, used):
    bench = admitted()
    memory = {"main": {"c0": MemoryRecord("driver", 700)}}
    written = dump_allocation(uid, {"main": (("c0", 3),)}, memory)
    bench.pods.pods_by_uid["a"] = pod_object("pod-a", written)
    annotator = AllocationAnnotator(
        bench.api, bench.account, bench.pods, PublishedUse(lambda *_: Enforcement.DRIVER, bench.account.now_s)
    )
    notes = await annotated(bench, annotator)
    # Its own annotation says all of it already: nothing is written.
    told = dict(notes).get("pod-a", json.loads(written))
    assert told["memory"]["main"]["c0"] == {"held": "driver"} | ({"used": used} if used else {})


async def test_an_allocation_that_somebody_changed_is_written_again_once_a_minute():
    ours = '{"uid":"a","containers":{"main":[["c0",3]]}}'
    lie = ours.replace("c0", "c1")
    bench, annotator = annotating(ours)
    assert await annotated(bench, annotator) == []
    for text in (lie, None):
        bench.pods.pods_by_uid["a"] = pod_object("pod-a", text)
        before = len(bench.api.notes)
        assert len(await annotated(bench, annotator)) == before + 1
        assert await annotator._step() is None, "what was written has not been seen yet"
        bench.pods.pods_by_uid["a"] = pod_object("pod-a", ours)
        assert await annotator._step() is None
        bench.now_s += 20.0
        for _ in range(3):
            # They do it again and again.
            bench.pods.pods_by_uid["a"] = pod_object("pod-a", lie)
            assert await annotator._step() == REPAIR_S - 20.0
        assert len(bench.api.notes) == before + 1
        bench.now_s += REPAIR_S - 20.0
        assert len(await annotated(bench, annotator)) == before + 2
        bench.now_s += REPAIR_S
    assert {notes[POD_ALLOCATION] for *_, notes in bench.api.notes} == {ours}


def admitted_pair() -> Bench:
    """Pods `a` and `b` run, and no annotation says so yet."""
    bench = admitted()
    bench.ledger.apply_pod(pod("b", 2, "c1"), bench.now_s)
    bench.checkpoint(a=ids("c0", 0, 1, 2), b=ids("c1", 0, 1))
    bench.pods.pods_by_uid |= {uid: pod_object(f"pod-{uid}", None) for uid in "ab"}
    return bench


@pytest.mark.parametrize("failure", [Conflict("another uid", cause="uid"), NotFound("gone")])
async def test_a_pod_that_is_gone_is_not_tried_again(failure):
    bench, annotator = annotating(None)
    bench.api.failures = [failure]
    assert await annotated(bench, annotator) == []
    bench.now_s += 3600
    assert await annotated(bench, annotator) == []
    assert annotator.errors == 0


@pytest.mark.parametrize(
    "failure",
    [
        Forbidden("webhook denied", status=403),
        Invalid("too long", status=422),
        Conflict("the object has been modified"),
        Conflict("who knows"),
        Unreachable("away"),
    ],
)
async def test_a_refused_annotation_is_tried_again_and_holds_up_no_other(failure):
    bench = admitted_pair()
    annotator = annotator_of(bench)
    bench.api.failures = [failure]
    wait_s = await annotator._step()
    assert [name for _, name, _, _ in bench.api.notes] == ["pod-b"]
    assert annotator.errors == 1
    assert wait_s is not None
    assert 0.5 <= wait_s <= 1.0
    assert await annotator._step() == wait_s
    bench.now_s += 1.0
    assert await annotator._step() is None
    assert [name for _, name, _, _ in bench.api.notes] == ["pod-b", "pod-a"]


async def test_an_annotation_that_is_always_refused_is_tried_ever_more_seldom_with_one_warning():
    bench, annotator = annotating(None)
    bench.api.failures = [Forbidden("webhook denied", status=403)] * 10
    waits_s = []
    with capture_logs() as logs:
        for _ in range(10):
            waits_s.append(await annotator._step())
            bench.now_s += waits_s[-1]
    assert waits_s[5] >= 16
    assert max(waits_s) <= 60
    assert annotator.errors == 10
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["pod"], line["error"]) for line in warnings] == [("ns/pod-a", "webhook denied")]
    assert await annotator._step() is None
    assert len(bench.api.notes) == 1


async def test_a_pod_that_is_gone_is_not_waited_for():
    bench = admitted_pair()
    annotator = annotator_of(bench)
    bench.api.failures = [Forbidden("webhook denied", status=403)]
    assert await annotator._step() is not None
    bench.end(b=ids("c1", 0, 1))
    assert await annotator._step() is None


async def test_the_annotator_wakes_up_for_what_is_due_again():
    bench = admitted_pair()
    annotator = annotator_of(bench)
    bench.api.failures = [Unreachable("away")]
    async with background(annotator.run()):
        await until(lambda: len(bench.api.notes) > 0, "the other pod's annotation")
        assert annotator.errors == 1
        bench.now_s += 60.0
        annotator.wake()
        await until(lambda: len(bench.api.notes) > 1, "the refused annotation")
    assert [name for _, name, _, _ in bench.api.notes] == ["pod-b", "pod-a"]


async def test_an_allocate_gets_its_turn_between_two_annotations(mocker):
    bench = admitted_pair()
    annotator = annotator_of(bench)
    pauses: list[tuple[float, int]] = []

    async def sleep(seconds: float) -> None:
        pauses.append((seconds, len(bench.api.notes)))

    mocker.patch("deviceplugin.publishing.publisher.asyncio.sleep", sleep)
    await annotator._step()
    assert pauses == [(0.02, 1), (0.02, 2)]
