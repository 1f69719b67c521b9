"""Pods that the coscheduling label makes a gang, of the size that a PodGroup or an annotation says."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from allocator.names import POD_GANG, POD_GANG_SIZE, QUEUE_NAME
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import find_gang
from kubeapi import objects
from kubeapi.errors import Forbidden, KubeApiError, NotFound, TimedOut
from kubeapi.objects import ObjectMeta, PodGroup
from scheduler_plugin.cache.gang_names import GROUP_LABELS, WORKER_GROUP_LABELS
from scheduler_plugin.cache.pod_groups import (
    COSCHEDULING,
    GroupKey,
    PodGroups,
    find_coscheduling_key,
    list_pod_group_paths,
)
from scheduler_plugin.cache.watcher import PodGroupWatch, Watcher
from scheduler_plugin.queue.cache import pods as queue_pods
from scheduler_plugin.queue.cache.pods import read_gang, read_queue_info
from scheduler_plugin.queue.controller import watching
from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.controller.watching import QueueFeed
from tests.ask_world import Node, Pod
from tests.cluster_builders import pod_object
from tests.queue_world import QueueWorld

NEW, OLD = GROUP_LABELS


def read(
    annotations: dict[str, str], labels: dict[str, str] | None = None, size: int | None = None
) -> tuple[str, int, str]:
    name = next(iter((labels or {}).values()), "")
    groups: PodGroups[objects.Pod] = PodGroups()
    groups.replace_groups([] if size is None else [group(name, size)])
    return read_gang(
        objects.Pod(ObjectMeta(namespace="default", annotations=annotations, labels=labels)), groups
    )


@pytest.mark.parametrize("label", GROUP_LABELS)
def test_the_label_names_a_gang(label: str) -> None:
    assert read({POD_GANG_SIZE: "3"}, {label: "train"}) == ("train", 3, "")


def test_an_annotation_comes_before_the_label() -> None:
    assert read({POD_GANG: "own", POD_GANG_SIZE: "2"}, {NEW: "train"}) == ("own", 2, "")
    assert read({POD_GANG_SIZE: "2"}, {OLD: "older", NEW: "train"}) == ("train", 2, "")


def test_a_group_of_a_leader_worker_set_is_a_gang_for_pods_that_say_a_size() -> None:
    of_set, index = WORKER_GROUP_LABELS
    labels = {of_set: "serve", index: "3"}
    assert read({POD_GANG_SIZE: "4"}, labels) == ("serve-3", 4, "")
    assert read({}, labels) == ("", 1, "")
    assert read({POD_GANG: "all", POD_GANG_SIZE: "8"}, labels) == ("all", 8, "")
    assert read({POD_GANG_SIZE: "2"}, {**labels, NEW: "train"}) == ("train", 2, "")
    name, size, fault = read({POD_GANG_SIZE: "4"}, {of_set: "serve"})
    assert (name, size, fault[:12]) == ("", 1, "annotation g")


def test_a_size_that_nobody_says_is_a_fault_with_what_to_do() -> None:
    name, size, fault = read({}, {OLD: "train"})
    assert (name, size) == ("train", 0)
    assert fault == (
        f'label {OLD} names a gang whose size is not known; allowed: a PodGroup "train" with minMember, or '
        f"annotation {POD_GANG_SIZE}"
    )


def test_a_size_of_a_group_that_is_none_is_told_as_its_own() -> None:
    assert read({}, {NEW: "train"}, 4) == ("train", 4, "")
    assert read({}, {NEW: "train"}, 0) == (
        "train",
        0,
        'minMember of PodGroup "train" is "0"; allowed: a whole number from 1 to 1024',
    )


def test_a_pod_of_a_group_is_not_taken_for_one_with_annotations() -> None:
    """The write that takes its gate away must not add to annotations that are not there."""
    pod = msgspec.convert(pod_object("g0", 4), objects.Pod)
    pod.metadata.labels, pod.metadata.annotations = {NEW: "train"}, None
    groups: PodGroups[objects.Pod] = PodGroups()
    groups.put_group(group("train", 2))
    found = read_queue_info(pod, groups)
    assert (found.gang, found.gang_size, found.annotated) == ("train", 2, False)


def group(name: str, min_member: int, namespace: str = "default") -> PodGroup:
    raw = {"metadata": {"name": name, "namespace": namespace}, "spec": {"minMember": min_member}}
    return msgspec.convert(raw, PodGroup)


class FeedWorld(QueueWorld):
    """A queue that is fed through its watcher, with PodGroups."""

    def __init__(self, config: str = "queues: [{name: a}]") -> None:
        super().__init__(config)
        watcher = Watcher(None, self.state, lambda: self.now, 60.0)  # type: ignore[arg-type]
        self.feed = QueueFeed(self.queue, watcher, lambda: self.now)
        self.groups = self.watch_groups(None)

    def watch_groups(self, client: Any) -> PodGroupWatch:
        paths = list_pod_group_paths(COSCHEDULING)
        watch = PodGroupWatch(client, self.queue.coscheduling_groups, lambda: 0.0, paths)
        watch.updated.connect(self.feed.apply_members)
        return watch

    def _send(self, raw: dict[str, Any], *, live: bool = False) -> None:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        pod = msgspec.convert(raw, objects.Pod)
        self.state.apply_pod(pod, self.now)
        self.feed._set_pod("ADDED" if live else "MODIFIED", pod)

    def labelled(self, name: str, labels: dict[str, str], **annotations: str) -> str:
        return self.pod(
            name,
            4,
            annotations=annotations,
            metadata={"labels": {QUEUE_NAME: "a", **labels}},
        )

    def delete(self, uid: str) -> None:
        self.feed._set_pod("DELETED", msgspec.convert(self.objects[uid], objects.Pod))
        super().delete(uid)


@pytest.fixture
def world() -> FeedWorld:
    world = FeedWorld()
    world.node("n1", (16, 16))
    return world


def test_pods_wait_for_a_group_and_go_together_once_it_is_there(world: FeedWorld) -> None:
    for at in range(2):
        world.labelled(f"g{at}", {NEW: "train"})
    assert world.admitted() == []
    (first, _) = explain_waiting(world.queue, world.now)
    assert "names a gang whose size is not known" in first.message
    world.groups.event("ADDED", group("train", 2, "elsewhere"), "1")
    assert world.admitted() == []
    world.groups.event("ADDED", group("train", 2), "1")
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_gang_of_a_group_waits_for_its_last_pod(world: FeedWorld) -> None:
    world.groups.replace([group("train", 3)], "1")
    uids = [world.labelled(f"g{at}", {OLD: "train"}) for at in range(2)]
    assert world.admitted() == []
    assert world.queue.queued_pods[uids[0]].queue_info.gang_size == 3
    world.labelled("g2", {NEW: "train"})
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]


def test_an_annotation_on_the_pod_is_nearer_than_its_group(world: FeedWorld) -> None:
    world.groups.replace([group("train", 5)], "1")
    world.labelled("g0", {NEW: "train"}, **{POD_GANG_SIZE: "2"})
    world.labelled("g1", {NEW: "train"}, **{POD_GANG_SIZE: "2"})
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_pods_keep_the_size_of_a_group_that_was_deleted(world: FeedWorld) -> None:
    world.groups.event("ADDED", group("train", 2), "1")
    uid = world.labelled("g0", {NEW: "train"})
    world.groups.event("DELETED", group("train", 2), "2")
    world.groups.replace([], "3")
    world.labelled("g1", {NEW: "train"})
    assert world.queue.queued_pods[uid].queue_info.gang_size == 2
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_new_gang_does_not_get_the_size_of_a_group_of_its_name_that_was_deleted(world: FeedWorld) -> None:
    world.groups.event("ADDED", group("train", 1), "1")
    old = world.labelled("old", {NEW: "train"})
    assert world.admitted() == ["old"]
    world.groups.event("DELETED", group("train", 1), "2")
    world.delete(old)
    world.labelled("g0", {NEW: "train"})
    assert world.admitted() == []
    world.groups.event("ADDED", group("train", 2), "3")
    assert world.admitted() == []
    world.labelled("g1", {NEW: "train"})
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_list_without_a_group_deletes_it_too(world: FeedWorld) -> None:
    world.groups.event("ADDED", group("train", 1), "1")
    old = world.labelled("old", {NEW: "train"})
    assert world.admitted() == ["old"]
    world.groups.replace([group("other", 1)], "2")
    world.delete(old)
    world.labelled("g0", {NEW: "train"})
    assert world.admitted() == []


def test_a_group_that_is_there_again_before_its_last_pod_goes_keeps_its_size(world: FeedWorld) -> None:
    world.groups.event("ADDED", group("train", 1), "1")
    old = world.labelled("old", {NEW: "train"})
    world.groups.event("DELETED", group("train", 1), "2")
    world.groups.event("ADDED", group("train", 1), "3")
    assert world.admitted() == ["old"]
    world.delete(old)
    world.labelled("g0", {NEW: "train"})
    assert world.admitted() == ["g0"]


def test_the_end_of_one_group_leaves_another_that_has_no_pods_yet(world: FeedWorld) -> None:
    world.groups.replace([group("early", 1), group("train", 1)], "1")
    world.groups.event("DELETED", group("train", 1), "2")
    world.labelled("g0", {NEW: "early"})
    assert world.admitted() == ["g0"]


def test_a_group_looks_at_its_own_pods_only(world: FeedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{at}" for at in range(8)]
    for name in names:
        world.labelled(name, {NEW: name})
    looked: list[str] = []

    def read(metadata: ObjectMeta) -> GroupKey | None:
        looked.append(metadata.name)
        return find_coscheduling_key(metadata)

    for module in (queue_pods, watching):
        monkeypatch.setattr(module, "find_coscheduling_key", read)
    for name in names:
        world.groups.event("ADDED", group(name, 2), "1")
    assert set(looked) == set(names)
    assert all(looked.count(name) <= 2 for name in names)


def test_a_pod_that_changes_its_label_is_of_the_other_group(world: FeedWorld) -> None:
    world.groups.replace([group("train", 1), group("other", 1)], "1")
    uid = world.labelled("g0", {NEW: "train"})
    world.labelled("g0", {NEW: "other"})
    groups = world.queue.coscheduling_groups
    assert not groups.get_members(("default", "train"))
    assert [*groups.get_members(("default", "other"))] == [uid]


def test_a_size_that_changes_counts(world: FeedWorld) -> None:
    world.groups.event("ADDED", group("train", 3), "1")
    for at in range(2):
        world.labelled(f"g{at}", {NEW: "train"})
    assert world.admitted() == []
    world.groups.event("MODIFIED", group("train", 2), "2")
    assert sorted(world.admitted()) == ["g0", "g1"]


class Answers:
    """Answers the questions whether there are PodGroups, and ends the watch after the last one."""

    def __init__(self, *errors: KubeApiError) -> None:
        self._errors = list(errors)

    async def get(self, path: str, **parameters: Any) -> None:
        del path, parameters
        if not self._errors:
            raise asyncio.CancelledError
        raise self._errors.pop(0)


async def ask(world: FeedWorld, monkeypatch: pytest.MonkeyPatch, *errors: KubeApiError) -> list[str]:
    """Ask once for each error; the warnings."""
    monkeypatch.setattr("scheduler_plugin.cache.watcher.LOOK_S", 0.0)
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await world.watch_groups(Answers(*errors)).run()
    return [each["error"] for each in logs if each["log_level"] == "warning"]


async def test_a_cluster_without_pod_groups_is_no_fault(
    world: FeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.labelled("g0", {NEW: "train"})
    assert await ask(world, monkeypatch, NotFound("none"), NotFound("none")) == []
    (why,) = explain_waiting(world.queue, world.now)
    assert "cannot be read" not in why.message


async def test_pod_groups_that_cannot_be_read_are_told_once_and_in_the_reason(
    world: FeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.labelled("g0", {NEW: "train"})
    assert await ask(world, monkeypatch, Forbidden("no rights"), TimedOut("too late")) == ["no rights"]
    world.labelled("h0", {NEW: "later"})
    for why in explain_waiting(world.queue, world.now):
        assert "not known: PodGroups cannot be read (TimedOut); allowed:" in why.message
    errors = Forbidden("no rights"), NotFound("none"), Forbidden("again"), NotFound("none")
    assert await ask(world, monkeypatch, *errors) == ["no rights", "again"]
    assert not any("cannot be read" in why.message for why in explain_waiting(world.queue, world.now))


def test_why_counts_pods_of_a_group() -> None:
    pods = [Pod(f"g{at}", 12, labels=((NEW, "train"),)).object() for at in range(3)]
    items = [Node("n1", (16, 16)).object(()), *pods]
    cluster = Cluster.from_json(json.dumps({"kind": "List", "items": items}))
    pod = cluster.find_pod("default", "g0")
    assert find_gang(cluster, pod) is None  # whose size nobody says
    cluster.coscheduling_groups.put_group(group("train", 3))
    found = find_gang(cluster, pod)
    assert found is not None
    assert (found.name, found.size, found.pods) == ("train", 3, 3)


def test_why_counts_pods_of_a_group_of_a_leader_worker_set() -> None:
    of_set, index = WORKER_GROUP_LABELS
    pods = [
        Pod(f"s{at}", 12, labels=((of_set, "serve"), (index, str(at // 2))), policies=((POD_GANG_SIZE, "2"),))
        for at in range(4)
    ]
    items = [Node("n1", (16, 16)).object(()), *(pod.object() for pod in pods)]
    cluster = Cluster.from_json(json.dumps({"kind": "List", "items": items}))
    found = find_gang(cluster, cluster.find_pod("default", "s3"))
    assert found is not None
    assert (found.name, found.size, found.pods) == ("serve-1", 2, 2)
