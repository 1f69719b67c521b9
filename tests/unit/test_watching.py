"""The view of the API server: how long it may be quiet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from kubeapi.errors import Unreachable
from kubeapi.process_options import MIN_STALE_S
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import Watcher


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
    task = asyncio.create_task(watcher.run())
    async with asyncio.timeout(30):
        await api.enough.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert 1 <= min(api.asked) <= max(api.asked) <= longest_s


class Unreadable(QuietApi):
    """One of two pods is none."""

    async def pages(self, path: str, _limit: int) -> AsyncIterator[bytes]:
        items = b'{"metadata":7},{"metadata":{"name":"p","uid":"u"}}' if path.endswith("pods") else b""
        yield b'{"metadata":{"resourceVersion":"1"},"items":[%b]}' % items


async def test_what_could_not_be_read_is_counted() -> None:
    api = Unreadable()
    watcher = Watcher(cast("Any", api), ClusterState(), lambda: api.now, 180.0)
    task = asyncio.create_task(watcher.run())
    async with asyncio.timeout(30):
        await api.enough.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert watcher.skipped == {"nodes": 0, "pods": 1, "resourceclaims": 0}


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
    task = asyncio.create_task(watcher.run())
    async with asyncio.timeout(30):
        await api.enough.wait()
        await watcher.refresh()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sorted(api.listed[2:4]) == ["/api/v1/nodes", "/api/v1/pods"]
    assert told == ["a", "b"]


async def test_a_refresh_lists_pods_and_then_nodes() -> None:
    """Words that are older than the list of pods may lack a pod that was deleted before it."""
    api = Restored()
    api.versions = {"/api/v1/nodes": ["50"], "/api/v1/pods": ["100"]}
    watcher = Watcher(cast("Any", api), ClusterState(), lambda: 0.0, 180)
    filled = asyncio.Event()
    watcher.filled.connect(filled.set)
    task = asyncio.create_task(watcher.run())
    async with asyncio.timeout(30):
        await filled.wait()
        await watcher.refresh()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
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
    task = asyncio.create_task(watcher.run())
    async with asyncio.timeout(30):
        await filled.wait()
        await watcher.refresh()
        await enough.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert all(lists >= count for count, lists in enumerate(done, 1))
