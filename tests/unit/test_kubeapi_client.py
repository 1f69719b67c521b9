"""The client against a small HTTP server that answers what the test says."""

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack

import msgspec
import pytest
from aiohttp import web

from kubeapi import errors
from kubeapi.client import KubeClient
from kubeapi.credentials import RequestCredentials
from kubeapi.posting import make_post_client
from tests.credentials_world import kubeconfig
from tests.http_server import serving

JSON_PATCH = "application/json-patch+json"
BOUND = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'


class Server:
    """Records requests; `answer` makes the response."""

    def __init__(self) -> None:
        self.requests = []
        self.answer = None
        self.body = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.requests.append(request)
        self.body = json.loads(raw) if raw else None
        return await self.answer(request) if self.answer else web.json_response({})

    @property
    def last(self) -> web.Request:
        return self.requests[-1]


@pytest.fixture
async def server():
    server = Server()
    async with AsyncExitStack() as server.running:
        server.url = await server.running.enter_async_context(
            serving(server.handle, handler_cancellation=True)
        )
        yield server


@pytest.fixture(params=[None, make_post_client], ids=["aiohttp", "posting"])
async def client(request, server, tmp_path):
    config = kubeconfig(tmp_path / "kc", server.url, token="t0")
    async with await KubeClient.connect(config, posts=request.param) as client:
        yield client


def answering(status, body=b"{}", **headers):
    async def answer(_request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def test_verbs_paths_bodies_and_credentials(server, client) -> None:
    await client.get("/api/v1/pods", labelSelector="a in (b,c)", limit=5)
    assert (server.last.method, server.last.path, dict(server.last.query)) == (
        "GET",
        "/api/v1/pods",
        {"labelSelector": "a in (b,c)", "limit": "5"},
    )
    assert server.last.headers["Authorization"] == "Bearer t0"
    await client.post("/x", {"a": 1}, dryRun="All")
    assert (server.last.method, server.body, server.last.query["dryRun"]) == ("POST", {"a": 1}, "All")
    assert server.last.content_type == "application/json"
    await client.put("/x", b'{"raw": true}')
    assert (server.last.method, server.body) == ("PUT", {"raw": True})
    await client.patch("/x", {"a": None})
    assert (server.last.content_type, server.body) == ("application/merge-patch+json", {"a": None})
    await client.patch("/x", b"[]", JSON_PATCH)
    assert server.last.content_type == JSON_PATCH
    await client.delete("/x")
    assert (server.last.method, server.body) == ("DELETE", None)
    await client.delete("/x", {"preconditions": {"uid": "u"}})
    assert server.body == {"preconditions": {"uid": "u"}}


async def test_a_node_status_patch_takes_numbers(server, client) -> None:
    body = {"status": {"capacity": {"gpupack.io/packed-size-0": 2**53 - 1}}}
    await client.patch_node_status("n1", body)
    assert (server.last.path, server.body) == ("/api/v1/nodes/n1/status", body)


async def test_annotations_go_to_one_uid_only(server, client) -> None:
    await client.annotate_pod("ns", "p", "u1", {"a": "1", "gone": None})
    assert server.last.path == "/api/v1/namespaces/ns/pods/p"
    assert server.body == {"metadata": {"uid": "u1", "annotations": {"a": "1", "gone": None}}}
    message = 'Pod "p" is invalid: metadata.uid: Invalid value: "u1": field is immutable'
    server.answer = answering(
        422, msgspec.json.encode({"kind": "Status", "reason": "Invalid", "message": message})
    )
    with pytest.raises(errors.Conflict) as caught:
        await client.annotate_pod("ns", "p", "u1", {})
    assert (caught.value.cause, caught.value.status) == ("uid", 422)
    server.answer = answering(422, b'{"message":"metadata.annotations: Invalid value"}')
    with pytest.raises(errors.Invalid):
        await client.annotate_pod("ns", "p", "u1", {})


async def test_a_binding(server, client) -> None:
    server.answer = answering(201, BOUND)
    await client.bind("ns", "p", "u1", "n1", {"gpupack.io/assigned": "{}"}, "77", 3.0)
    assert (server.last.method, server.last.path) == ("POST", "/api/v1/namespaces/ns/pods/p/binding")
    assert server.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u1",
            "annotations": {"gpupack.io/assigned": "{}"},
            "resourceVersion": "77",
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    await client.bind("ns", "p", "u1", "n1", {})
    assert "resourceVersion" not in server.body["metadata"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<html>captive portal</html>",
        b'{"kind":"Status"}',
        b'{"kind":"Status","status":"Failure"}',
        b'{"kind":"Pod","status":"Success"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_a_2xx_to_a_binding_that_no_api_server_sends_is_no_answer(server, client, body) -> None:
    server.answer = answering(200, body)
    with pytest.raises(errors.Malformed, match=r"POST .*/binding: no API server answers so: ") as caught:
        await client.bind("ns", "p", "u1", "n1", {})
    assert caught.value.maybe_done
    assert len(str(caught.value)) <= 256
    assert not errors.Malformed("elsewhere").maybe_done


async def test_a_binding_as_the_answer(server, client) -> None:
    server.answer = answering(201, b'{"kind":"Binding","apiVersion":"v1","target":{"name":"n1"}}')
    await client.bind("ns", "p", "u1", "n1", {})


async def test_names_cannot_leave_their_segment(server, client) -> None:
    server.answer = answering(201, BOUND)
    await client.bind("a/b", "../nodes?x=1#y", "u", "n", {})
    assert server.last.raw_path == "/api/v1/namespaces/a%2Fb/pods/..%2Fnodes%3Fx%3D1%23y/binding"


async def test_a_time_out_says_that_it_may_have_happened(server, client) -> None:
    released = asyncio.Event()

    async def late(_request) -> web.Response:
        await released.wait()
        return web.Response()

    server.answer = late
    with pytest.raises(errors.TimedOut, match=r"POST .*/binding: no answer within 0.05 s") as caught:
        await client.bind("ns", "p", "u", "n", {}, timeout_s=0.05)
    assert caught.value.maybe_done
    released.set()


def refuse_first(server):
    """401 for the first request, then 200."""

    async def answer(_request) -> web.Response:
        return web.Response(body=BOUND, status=401 if len(server.requests) == 1 else 200)

    server.answer = answer


@pytest.mark.parametrize("client", [None], indirect=True)
async def test_a_second_try_has_the_time_that_the_first_left(server, client, mocker) -> None:
    refuse_first(server)
    mocker.patch.object(client._credentials, "renew", return_value=True)
    request = mocker.spy(client._session, "request")
    await client.bind("ns", "p", "u", "n", {}, timeout_s=7.5)
    first, second = (call.kwargs["timeout"] for call in request.call_args_list)
    assert second.total < first.total <= 7.5
    assert first.ceil_threshold > 7.5  # above it aiohttp would round up to whole seconds


async def _never(_) -> None:
    await asyncio.Event().wait()


async def test_credentials_are_renewed_within_the_time_of_the_request(server, client, mocker) -> None:
    refuse_first(server)
    mocker.patch.object(client._credentials, "_differ", side_effect=_never)
    now_s, renew = asyncio.get_running_loop().time, client._credentials.renew
    began_s = now_s()

    async def renew_at_the_end(refused: RequestCredentials, ends: float) -> bool:
        assert began_s < ends <= now_s() + 30.0
        return await renew(refused, now_s())

    mocker.patch.object(client._credentials, "renew", side_effect=renew_at_the_end)
    with pytest.raises(errors.Unauthorized) as caught:
        await client.bind("ns", "p", "u", "n", {}, timeout_s=30.0)
    assert not caught.value.maybe_done
    assert len(server.requests) == 1


async def test_credentials_are_fetched_within_the_time_of_the_request(server, client, mocker) -> None:
    mocker.patch.object(client._credentials, "authorization", side_effect=asyncio.Event().wait)
    with pytest.raises(errors.ConfigError, match=r"POST .*/binding: no credentials within 0.05 s"):
        await client.bind("ns", "p", "u", "n", {}, timeout_s=0.05)
    assert server.requests == []


async def test_a_lost_connection_says_that_it_may_have_happened(server, client) -> None:
    async def reset(request) -> web.Response:
        request.transport.abort()
        return web.Response()

    server.answer = reset
    with pytest.raises(errors.Unreachable) as caught:
        await client.post("/x", {})
    assert caught.value.maybe_done


async def test_a_refused_connection_says_that_it_did_not_happen(server, client) -> None:
    await server.running.aclose()
    with pytest.raises(errors.Unreachable) as caught:
        await client.post("/x", {})
    assert not caught.value.maybe_done
    assert server.url in caught.value.message
    assert caught.value.message.endswith(": Connection refused")  # no Python, no TLS


async def test_a_server_that_is_not_http(tmp_path) -> None:
    async def rubbish(_reader, writer) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(rubbish, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        await KubeClient.connect(kubeconfig(tmp_path / "kc", f"http://127.0.0.1:{port}")) as client,
    ):
        with pytest.raises(errors.Unreachable):
            await client.get("/x")


async def test_what_the_library_refuses_to_send_is_unreachable(server, tmp_path) -> None:
    named = server.url.replace("http://", "http://user:word@")
    async with await KubeClient.connect(kubeconfig(tmp_path / "kc", named, token="t0")) as client:
        with pytest.raises(errors.Unreachable, match="Cannot combine") as caught:
            await client.get("/x")
    assert not caught.value.maybe_done
    assert server.requests == []


async def test_redirects_are_not_followed(server, client) -> None:
    server.answer = answering(302, Location="http://127.0.0.1:1/steal")
    with pytest.raises(errors.Invalid):
        await client.get("/x")
    assert len(server.requests) == 1


async def test_pages_follow_the_token(server, client) -> None:
    pages = {
        None: {"metadata": {"continue": "t/1 &"}, "items": [1]},
        "t/1 &": {"metadata": {"continue": ""}, "items": [2]},
    }

    async def answer(request) -> web.Response:
        return web.json_response(pages[request.query.get("continue")])

    server.answer = answer
    got = [json.loads(page)["items"] async for page in client.pages("/api/v1/pods", 7, fieldSelector="a=b")]
    assert got == [[1], [2]]
    assert {request.query["limit"] for request in server.requests} == {"7"}
    assert {request.query["fieldSelector"] for request in server.requests} == {"a=b"}


@pytest.mark.parametrize(
    "form",
    [
        '{"kind":"PodList","metadata":{"continue":"%s"},"items":[{"a":{"b":1,"items":[2]}}]}',
        '{"items":[{"a":{"b":1,"items":[2]}}],"metadata":{"continue":"%s"}}',
        '{"kind":"PodList","items":[{"metadata":{"continue":"x"}}],"metadata":{"continue":"%s"}}',
        '{\n  "metadata": {\n "continue": "%s"\n },\n "items": []\n}',
        '{"metadata":{"continue":"%s"}}',
    ],
    ids=["as the API server writes it", "items first", "items before metadata", "indented", "no items"],
)
async def test_the_next_page_is_found_wherever_the_list_says_it(server, client, form) -> None:
    async def answer(request) -> web.Response:
        text = form % ("" if "continue" in request.query else 'more \\" ')
        return web.Response(text=text, content_type="application/json")

    server.answer = answer
    assert len([page async for page in client.pages("/api/v1/pods")]) == 2
    assert server.last.query["continue"] == 'more " '


@pytest.mark.parametrize("body", [b"rubbish", b"[]", b'{"metadata":{"continue":5}}', b"\xff"])
async def test_a_page_that_is_none(server, client, body) -> None:
    server.answer = answering(200, body)
    with pytest.raises(errors.Malformed, match="GET /api/v1/pods: not a list"):
        [page async for page in client.pages("/api/v1/pods")]


def streaming(*chunks, end=True):
    async def answer(request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if not end:
            await asyncio.Event().wait()
        await response.write_eof()
        return response

    return answer


async def lines(client, **options) -> list[bytes]:
    return [line async for line in client.watch("/api/v1/pods", "5", **options)]


async def test_watch_lines_come_whole_whatever_the_chunks(server, client) -> None:
    server.answer = streaming(b'{"a":', b'1}\n{"b":2}\n\n{"c"', b":", b"3}", b"\n")
    opened = []
    assert await lines(client, opened=lambda: opened.append(1), timeout_s=9, labelSelector="x=y") == [
        b'{"a":1}',
        b'{"b":2}',
        b'{"c":3}',
    ]
    assert opened == [1]
    assert dict(server.last.query) == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": "9",
        "labelSelector": "x=y",
    }


async def test_a_watch_line_larger_than_any_buffer(server, client) -> None:
    large = b'{"a":"' + b"x" * 3_000_000 + b'"}'
    server.answer = streaming(large + b"\n")
    assert await lines(client) == [large]


async def test_a_watch_without_end_of_line_is_bounded(server, client, monkeypatch) -> None:
    monkeypatch.setattr("kubeapi.streams.LINE_LIMIT", 1000)
    server.answer = streaming(*[b"x" * 600] * 3, end=False)
    with pytest.raises(errors.Malformed, match="above 1000 bytes"):
        await lines(client)


async def test_an_unfinished_last_line_is_handed_out(server, client) -> None:
    server.answer = streaming(b'{"a":1}\n{"half')
    assert await lines(client) == [b'{"a":1}', b'{"half']


async def test_a_silent_watch_is_given_up(server, client) -> None:
    server.answer = streaming(b'{"a":1}\n', end=False)
    watch = client.watch("/api/v1/pods", "5", idle_s=0.05)
    assert await anext(watch) == b'{"a":1}'
    with pytest.raises(errors.TimedOut, match=r"no answer within 0.05 s"):
        await anext(watch)


async def test_a_watch_cut_off_is_unreachable(server, client) -> None:
    async def cut(request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b'{"a":1}\n')
        request.transport.close()
        await asyncio.Event().wait()
        return response

    server.answer = cut
    with pytest.raises(errors.Unreachable):
        await lines(client)


async def test_a_watch_refused_with_410(server, client) -> None:
    server.answer = answering(410, b'{"kind":"Status","reason":"Expired","message":"too old"}')
    with pytest.raises(errors.Gone):
        await lines(client)


def test_the_models_of_the_kubernetes_package_stay_on_disk() -> None:
    code = (
        "import sys, kubeapi.client, kubeapi.reflect, kubeapi.lease\n"
        "print([name for name in sys.modules if '.models.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("posts", [None, make_post_client])
async def test_requests_go_through_the_proxy_of_the_environment(server, tmp_path, monkeypatch, posts) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url.replace("://", "://user:secret@"))
    config = kubeconfig(tmp_path / "kc", "http://api.invalid:1")
    async with await KubeClient.connect(config, posts=posts) as client:
        await client.post("/x", {})
    assert str(server.last.url) == "http://api.invalid:1/x"
    assert server.last.headers["Proxy-Authorization"] == "Basic dXNlcjpzZWNyZXQ="


@pytest.mark.parametrize("posts", [None, make_post_client])
async def test_a_server_in_a_network_of_no_proxy_is_asked_directly(
    server, tmp_path, monkeypatch, posts
) -> None:
    """0.0.0.0 is this machine, and by the rules of proxies another one."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    config = kubeconfig(tmp_path / "kc", server.url.replace("127.0.0.1", "0.0.0.0"))
    async with await KubeClient.connect(config, posts=posts) as client:
        with pytest.raises(errors.Unreachable):
            await client.post("/x", {})
    monkeypatch.setenv("NO_PROXY", "0.0.0.0/8")
    async with await KubeClient.connect(config, posts=posts) as client:
        await client.post("/x", {})
        await client.get("/x")
    assert len(server.requests) == 2
