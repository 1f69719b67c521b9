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


def pod(name, **labels) -> dict:
    container = {"name": "c", "resources": {"limits": {"gpupack.io/gpu-memory-gib": 1}}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


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
async def following(api, client, **options):
    view = View()
    options = {"base_s": 0.01, "cap_s": 0.05, "page_size": 2, **options}
    reflector = Reflector(client, "/api/v1/pods", Pod, view, **options)
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


async def test_a_watch_that_ends_with_a_zero_chunk_is_resumed(api, client) -> None:
    async with following(api, client) as (view, _):
        for name in "abc":
            api.add_pod(pod(name))
            await settled(api, view)
            api.end_watches()
            api.add_pod(pod(f"{name}2"))
            await settled(api, view)
        assert view.lists == 1
        assert not [error for error in view.errors if error.status]


async def test_dropped_connections_are_made_again(api, client) -> None:
    async with following(api, client) as (view, _):
        for name in "abc":
            api.drop_connections()
            api.add_pod(pod(name))
            await settled(api, view)
        assert view.lists == 1
        assert {type(error) for error in view.errors} == {errors.Unreachable}


async def test_an_outage_is_told_and_survived(api, client) -> None:
    async with following(api, client) as (view, _):
        await api.away(True)
        await until(lambda: len(view.errors) > 3, "errors are told")
        api.add_pod(pod("meanwhile"))
        await api.away(False)
        await settled(api, view)
        assert view.lists == 1


async def test_history_lost_in_an_outage_is_listed_again(api, client) -> None:
    api.add_pod(pod("before"))
    async with following(api, client) as (view, _):
        await api.away(True)
        api.add_pod(pod("meanwhile"))
        api.delete_pod("default", "before")
        api.compact()
        await api.away(False)
        await settled(api, view)
        assert view.lists == 2
        assert errors.Gone in {type(error) for error in view.errors}


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


async def test_expired_watches_list_again(api, client) -> None:
    async with following(api, client) as (view, _):
        api.add_pod(pod("a"))
        await settled(api, view)
        api.expire_watches()
        await until(lambda: view.lists == 2, "a second list")
        assert [type(error) for error in view.errors] == [errors.Gone]


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


async def test_periodic_bookmarks(api, client) -> None:
    api.http.bookmark_s = 0.01
    async with following(api, client) as (view, _):
        await until(lambda: len(view.bookmarks) > 2, "bookmarks")


async def test_a_silent_server_is_noticed(api, client) -> None:
    async with following(api, client, idle_s=0.05) as (view, _):
        await until(lambda: len(view.errors) > 1, "time-outs")
        assert {type(error) for error in view.errors} == {errors.TimedOut}
        api.add_pod(pod("a"))
        await settled(api, view)


async def test_a_selection_sees_what_enters_and_leaves_it(api, client) -> None:
    api.add_pod(pod("a", team="x"))
    api.add_pod(pod("b", team="y"))
    async with following(api, client, params={"labelSelector": "team=x"}) as (view, _):
        assert set(view.names) == {"a"}
        api.patch_pod("default", "b", {"metadata": {"labels": {"team": "x"}}})
        await until(lambda: set(view.names) == {"a", "b"}, "b enters")
        api.patch_pod("default", "a", {"metadata": {"labels": {"team": "y"}}})
        await until(lambda: set(view.names) == {"b"}, "a leaves")


async def test_pods_of_a_node(api, client) -> None:
    for name in "ab":
        api.add_pod(pod(name))
    async with following(api, client, params={"fieldSelector": "spec.nodeName=n1"}) as (view, _):
        assert view.names == {}
        api.bind_pod("default", "a", "n1")
        api.bind_pod("default", "b", "n2")
        await until(lambda: set(view.names) == {"a"}, "a arrives")
        api.delete_pod("default", "a", 0)
        await until(lambda: view.names == {}, "a is gone")


async def test_a_list_compacted_between_its_pages_starts_over(api, client) -> None:
    for name in "abcde":
        api.add_pod(pod(name))
    compacted = []

    async def intercept(request):
        if "continue" in request.query and not compacted:
            compacted.append(True)
            api.compact()

    api.http.intercept = intercept
    async with following(api, client) as (view, _):
        assert view.names == truth(api)
        assert view.lists == 1
        assert [type(error) for error in view.errors] == [errors.Gone]


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


async def bind(api, client, name="a", **change) -> None:
    found = api.pod("default", name)["metadata"]
    arguments = {
        "uid": found["uid"],
        "resource_version": found["resourceVersion"],
        "timeout_s": 5.0,
        **change,
    }
    await client.bind(
        "default",
        name,
        arguments["uid"],
        "n1",
        {"k/a": "v"},
        arguments["resource_version"],
        arguments["timeout_s"],
    )


async def test_a_binding_lands_with_its_annotations(api, client) -> None:
    api.add_pod({**pod("a"), "metadata": {"name": "a", "annotations": {"k/a": "old", "k/b": "kept"}}})
    await bind(api, client)
    found = api.pod("default", "a")
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"] == {"k/a": "v", "k/b": "kept"}


async def test_the_conflicts_of_a_binding(api, client) -> None:
    api.add_pod(pod("a"))
    with pytest.raises(errors.Conflict) as caught:
        await bind(api, client, uid="00000000-0000-0000-0000-000000000000")
    assert caught.value.cause == "uid"
    with pytest.raises(errors.Conflict) as caught:
        await bind(api, client, resource_version="1")
    assert caught.value.cause == "stale"
    await bind(api, client)
    with pytest.raises(errors.Conflict) as caught:
        await bind(api, client)
    assert caught.value.cause == "bound"
    api.delete_pod("default", "a")
    with pytest.raises(errors.Conflict) as caught:
        await bind(api, client)
    assert caught.value.cause == "terminating"
    gated = pod("g")
    gated["spec"]["schedulingGates"] = [{"name": "x/y"}]
    api.add_pod(gated)
    with pytest.raises(errors.Conflict) as caught:
        await bind(api, client, "g")
    assert caught.value.cause == "gated"
    api.delete_pod("default", "a", 0)
    with pytest.raises(errors.NotFound):
        await client.bind("default", "a", "u", "n1", {})


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


async def test_annotating_the_wrong_pod_is_a_conflict(api, client) -> None:
    uid = api.add_pod(pod("a"))["metadata"]["uid"]
    api.delete_pod("default", "a")
    api.add_pod(pod("a"))
    with pytest.raises(errors.Conflict) as caught:
        await client.annotate_pod("default", "a", uid, {"x": "1"})
    assert caught.value.cause == "uid"
    await client.annotate_pod("default", "a", api.pod("default", "a")["metadata"]["uid"], {"x": "1"})
    assert api.pod("default", "a")["metadata"]["annotations"] == {"x": "1"}
