"""Client and reflector against the API server stand-in, over real connections that break in every way."""

import asyncio
import contextlib
import json

import msgspec
import pytest

from kubeapi import errors
from kubeapi.client import KubeClient
from kubeapi.reflect import Reflector
from standins.apiserver.server import ApiServer
from tests.waiting import until


class Meta(msgspec.Struct):
    name: str
    resourceVersion: str  # noqa: N815


class Pod(msgspec.Struct):
    metadata: Meta


def pod(name) -> dict:
    container = {"name": "c", "resources": {"limits": {"gpupack.io/gpu-memory-gib": 1}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


class View:
    """A sink that holds what a consumer would hold."""

    def __init__(self) -> None:
        self.names = {}
        self.errors = []
        self.lists = 0
        self.bookmarks = []

    def replace(self, items, resource_version) -> None:
        self.names = {item.metadata.name: item.metadata.resourceVersion for item in items}
        self.lists += 1

    def event(self, kind, item, resource_version) -> None:
        assert item.metadata.resourceVersion == resource_version
        if kind == "DELETED":
            del self.names[item.metadata.name]
        else:
            assert (kind == "ADDED") == (item.metadata.name not in self.names)
            self.names[item.metadata.name] = resource_version

    def bookmark(self, resource_version) -> None:
        self.bookmarks.append(resource_version)

    def disconnected(self, error) -> None:
        self.errors.append(error)


@pytest.fixture
async def api():
    async with ApiServer(seed=1) as api:
        yield api


@pytest.fixture
async def client(api, tmp_path):
    async with await KubeClient.connect(api.kubeconfig(tmp_path / "kubeconfig")) as client:
        yield client


@contextlib.asynccontextmanager
async def following(api, client):
    view = View()
    reflector = Reflector(client, "/api/v1/pods", Pod, view, base_s=0.01, cap_s=0.05, page_size=2)
    task = asyncio.create_task(reflector.run())
    try:
        await until(lambda: api.http.watches, "the watch is open")
        yield view, reflector
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def truth(api) -> dict:
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in api.objects("pods")}


async def settled(api, view) -> None:
    await until(lambda: view.names == truth(api), "the view equals the truth")


async def test_the_view_follows_creates_updates_binds_and_deletes(api, client) -> None:
    for name in "abcde":
        api.add_pod(pod(name))
    async with following(api, client) as (view, reflector):
        assert view.names == truth(api)
        api.patch_pod("default", "a", {"metadata": {"annotations": {"x": "1"}}})
        api.bind_pod("default", "b", "n1")
        api.delete_pod("default", "b")
        api.delete_pod("default", "c")
        api.add_pod(pod("f"))
        await settled(api, view)
        assert set(view.names) == set("abdef")
        assert (view.lists, view.errors) == (1, [])
        assert reflector.resource_version == str(api.store.version)


@pytest.mark.parametrize("as_status", [False, True])
async def test_410_as_event_and_as_status(api, client, as_status) -> None:
    api.http.gone_as_status = as_status
    async with following(api, client) as (view, _):
        api.http.latency_s = 0.05
        api.end_watches()
        api.add_pod(pod("a"))
        api.compact()
        await settled(api, view)
        assert view.lists == 2
        assert any(isinstance(error, errors.Gone) for error in view.errors)


@pytest.mark.parametrize("line", [b"rubbish\n", b'{"type":"ADDED","object":{}}\n', b"\xff\n", b'{"type":\n'])
async def test_rubbish_in_the_stream_costs_one_list(api, client, line) -> None:
    api.add_pod(pod("a"))
    async with following(api, client) as (view, _):
        api.say(line)
        await until(lambda: view.lists == 2, "a second list")
        api.add_pod(pod("b"))
        await settled(api, view)
        assert [type(error) for error in view.errors] == [errors.Malformed]


async def test_bookmarks_keep_a_quiet_view_young(api, client) -> None:
    async with following(api, client) as (view, reflector):
        api.add_node("n1")  # moves the version without touching a pod
        api.bookmark()
        await until(lambda: view.bookmarks, "a bookmark")
        assert view.bookmarks == [str(api.store.version)]
        api.compact()
        api.end_watches()
        api.add_pod(pod("a"))
        await settled(api, view)
        assert (view.lists, reflector.synced) == (1, True)


async def test_pages_are_of_one_moment(api, client) -> None:
    for name in "abcde":
        api.add_pod(pod(name))
    names = []
    async for page in client.pages("/api/v1/pods", 2):
        names += [item["metadata"]["name"] for item in json.loads(page)["items"]]
        api.add_pod(pod(f"aa{len(names)}"))
        if len(names) == 2:
            api.delete_pod("default", "e")
    assert names == list("abcde")


async def bind(api, client, timeout_s=5.0) -> None:
    found = api.pod("default", "a")["metadata"]
    await client.bind("default", "a", found["uid"], "n1", {}, found["resourceVersion"], timeout_s)


async def test_a_binding_without_answer_may_have_happened(api, client) -> None:
    api.add_pod(pod("a"))
    api.http.bind_answer_latency_s = 30.0
    with pytest.raises(errors.TimedOut):
        await bind(api, client, timeout_s=0.2)
    assert api.pod("default", "a")["spec"]["nodeName"] == "n1"


async def test_a_binding_that_waits_too_long_does_not_happen(api, client) -> None:
    api.add_pod(pod("a"))
    api.http.bind_latency_s = 30.0
    with pytest.raises(errors.TimedOut):
        await bind(api, client, timeout_s=0.2)
    assert "nodeName" not in api.pod("default", "a")["spec"]


async def test_of_many_bindings_of_one_pod_one_wins(api, client) -> None:
    api.add_pod(pod("a"))
    results = await asyncio.gather(*(bind(api, client) for _ in range(20)), return_exceptions=True)
    assert results.count(None) == 1
    assert {type(result) for result in results} == {type(None), errors.Conflict}
