"""The view of the API server: how long it may be quiet."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from kubeapi.errors import NotFound, Unreachable
from kubeapi.process_options import MIN_STALE_S
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import Watcher
from tests.cluster_builders import pod_object
from tests.running import background
from tests.waiting import until


class QuietApi:
    """Nothing ever happens: lists are empty, watches end when they were asked to, and time is theirs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[int] = []
        self.enough = asyncio.Event()

    async def pages(self, _path: str, _limit: int) -> AsyncIterator[bytes]:
        yield b'{"metadata":{"resourceVersion":"1"},"items":[]}'

    async def watch(
        self, _path: str, _version: str, *, timeout_s: int, idle_s: float | None, opened: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        assert idle_s is None
        opened()
        await asyncio.sleep(0)
        self.now += timeout_s
        self.asked.append(timeout_s)
        if len(self.asked) >= 40:
            self.enough.set()
            await asyncio.Event().wait()
        for line in ():
            yield line


@pytest.mark.parametrize(
    ("stale_s", "longest_s"), [(180.0, 120), (MIN_STALE_S, 6), (20.0, 13), (float("inf"), 120)]
)
async def test_a_quiet_cluster_is_heard_of_in_time(stale_s: float, longest_s: int) -> None:
    api = QuietApi()
    watcher = Watcher(cast("Any", api), ClusterState(), lambda: api.now, stale_s)
    async with background(watcher.run()), asyncio.timeout(30):
        await api.enough.wait()
    assert 1 <= min(api.asked) <= max(api.asked) <= longest_s


class Unreadable(QuietApi):
    """One of two pods is none."""

    async def pages(self, path: str, _limit: int) -> AsyncIterator[bytes]:
        items = b'{"metadata":7},{"metadata":{"name":"p","uid":"u"}}' if path.endswith("pods") else b""
        yield b'{"metadata":{"resourceVersion":"1"},"items":[%b]}' % items


async def test_what_could_not_be_read_is_counted() -> None:
    api = Unreadable()
    watcher = Watcher(cast("Any", api), ClusterState(), lambda: api.now, 180.0)
    async with background(watcher.run()), asyncio.timeout(30):
        await api.enough.wait()
    assert watcher.skipped == {"nodes": 0, "pods": 1, "resourceclaims": 0}


class Grouping(QuietApi):
    """Serves PodGroups in one version, and one pod, which may name one."""

    def __init__(self, served: str, group: str) -> None:
        super().__init__()
        self.served, self.group = served, group
        self.probed: list[str] = []
        self.watched: set[str] = set()

    async def get(self, path: str, **_: object) -> bytes:
        self.probed.append(path)
        if self.served not in path:
            raise NotFound("the server could not find the requested resource")
        return b"{}"

    async def pages(self, path: str, _limit: int) -> AsyncIterator[bytes]:
        items: list[object] = []
        if path.endswith("/pods"):
            spec = {"schedulingGroup": {"podGroupName": self.group}} if self.group else {}
            items = [pod_object("p", 8, spec=spec)]
        elif path.endswith("/podgroups"):
            spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
            items = [{"metadata": {"name": "g", "namespace": "default"}, "spec": spec}]
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    async def watch(self, path: str, *args: Any, **options: Any) -> AsyncIterator[bytes]:
        self.watched.add(path)
        async for line in super().watch(path, *args, **options):
            yield line


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3"])
async def test_pod_groups_are_watched_in_the_version_that_is_served_once_a_pod_names_one(
    version: str,
) -> None:
    api, state = Grouping(version, "g"), ClusterState()
    watcher = Watcher(cast("Any", api), state, lambda: api.now, 180.0)
    async with background(watcher.run()):
        await until(lambda: len(state.pod_groups), "the PodGroup is known")
    group = state.pod_groups.get_group(("default", "g"))
    assert group is not None
    assert group.spec.min_count == 3
    assert [*state.pod_groups.get_members(("default", "g"))] == ["uid-p"]
    assert state.pods["uid-p"].gang == ("default", "g")
    assert api.probed[-1] == f"/apis/scheduling.k8s.io/{version}/podgroups"


async def test_without_pods_that_name_one_nobody_asks_for_pod_groups() -> None:
    api, state = Grouping("v1beta1", ""), ClusterState()
    watcher = Watcher(cast("Any", api), state, lambda: api.now, 180.0)
    async with background(watcher.run()), asyncio.timeout(30):
        await api.enough.wait()
    assert api.probed == []
    assert api.watched == {"/api/v1/nodes", "/api/v1/pods"}


class Restored:
    """Lists that go back: pods notice, nodes do not by themselves."""

    def __init__(self) -> None:
        self.versions = {"/api/v1/nodes": ["50"], "/api/v1/pods": ["100", "40"]}
        self.listed: list[str] = []
        self.enough = asyncio.Event()

    async def pages(self, path: str, limit: int) -> AsyncIterator[bytes]:
        version = self.versions[path][0]
        if limit > 1:
            self.listed.append(path)
            if len(self.listed) == 4:
                self.enough.set()
        yield b'{"metadata":{"resourceVersion":"%b"},"items":[]}' % version.encode()

    async def watch(
        self, path: str, *_: str, opened: Callable[[], None], **__: object
    ) -> AsyncIterator[bytes]:
        opened()
        if len(self.versions[path]) > 1:
            del self.versions[path][0]
            raise Unreachable("reset")
        await asyncio.Event().wait()
        for line in ():
            yield line


async def test_after_a_restore_both_kinds_begin_anew_and_whoever_listens_hears_it_once() -> None:
    api, told = Restored(), []
    state = ClusterState()
    watcher = Watcher(cast("Any", api), state, lambda: 0.0, 180)
    watcher.restored.connect(lambda: told.append("a"))
    watcher.restored.connect(lambda: told.append("b"))
    async with background(watcher.run()), asyncio.timeout(30):
        await api.enough.wait()
        await watcher.refresh()
    assert sorted(api.listed[2:4]) == ["/api/v1/nodes", "/api/v1/pods"]
    assert told == ["a", "b"]


async def test_a_refresh_lists_pods_and_then_nodes() -> None:
    """Words that are older than the list of pods may lack a pod that was deleted before it."""
    api = Restored()
    api.versions = {"/api/v1/nodes": ["50"], "/api/v1/pods": ["100"]}
    watcher = Watcher(cast("Any", api), ClusterState(), lambda: 0.0, 180)
    filled = asyncio.Event()
    watcher.filled.connect(filled.set)
    async with background(watcher.run()), asyncio.timeout(30):
        await filled.wait()
        await watcher.refresh()
    assert api.listed[2:] == ["/api/v1/pods", "/api/v1/nodes"]


async def test_after_each_list_somebody_is_called_once_the_reflector_is_done_with_it() -> None:
    """The reflector has the list in its hands while the state takes it."""
    api = Restored()
    api.versions = {"/api/v1/nodes": ["50"], "/api/v1/pods": ["100"]}
    watcher = Watcher(cast("Any", api), ClusterState(), lambda: 0.0, 180)
    done: list[int] = []
    enough = asyncio.Event()

    def act() -> None:
        done.append(watcher.nodes.lists + watcher.pods.lists)
        if len(done) == 4:
            enough.set()

    watcher.call_after_each_list(act)
    filled = asyncio.Event()
    watcher.filled.connect(filled.set)
    async with background(watcher.run()), asyncio.timeout(30):
        await filled.wait()
        await watcher.refresh()
        await enough.wait()
    assert all(lists >= count for count, lists in enumerate(done, 1))
