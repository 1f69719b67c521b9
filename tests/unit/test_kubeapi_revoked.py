"""One token is revoked while many requests are under way: it is fetched anew once, for all of them."""

import asyncio
import gc
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from kubeapi import errors
from kubeapi.client import KubeClient
from kubeapi.credentials import FORCED_GAP_S, REFRESH_S, Credentials
from kubeapi.posting import make_post_client
from tests.certificates import make_certificate
from tests.clock import Clock
from tests.credentials_world import outside_a_cluster, plugin, service_account, write
from tests.http_server import server_context, serving

__all__ = ["outside_a_cluster"]
pytestmark = pytest.mark.usefixtures("outside_a_cluster")
MANY = 16
BOUND = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
REFUSED = {"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}


class Server:
    """Answers nobody with a first token before `MANY` have come; `good` are the tokens that it accepts."""

    def __init__(self) -> None:
        self.good = set()
        self.asked = Counter()
        self.done = Counter()
        self.all_here = asyncio.Event()
        self.late = asyncio.Event()
        self.late.set()

    async def handle(self, request: web.Request) -> web.Response:
        await request.read()
        token = request.headers["Authorization"].split()[1]
        self.asked[token] += 1
        if token in self.good:
            self.done[request.path] += 1
            return web.json_response(BOUND, status=201 if request.method == "POST" else 200)
        if sum(self.asked.values()) >= MANY:
            self.all_here.set()
        await self.all_here.wait()
        if "late" in request.path:
            await self.late.wait()
        return web.json_response(REFUSED, status=401)


@pytest.fixture(params=["http", "https"])
async def server(request, tmp_path):
    server, context = Server(), None
    if request.param == "https":
        server.cert, key = make_certificate(tmp_path / "tls", "DNS:api.test")
        context = server_context(server.cert, key)
    async with serving(server.handle, context) as server.url:
        yield server


only_http = pytest.mark.parametrize("server", ["http"], indirect=True)
both = pytest.mark.parametrize("posts", [None, make_post_client], ids=["aiohttp", "posting"])


def calls(client, last="pod-15"):
    names = [*(f"pod-{number}" for number in range(MANY - 1)), last]
    return [
        client.bind("ns", name, "u", "n", {}) if number % 2 else client.get(f"/{name}")
        for number, name in enumerate(names)
    ]


def runs(tmp_path) -> int:
    """How often the plugin ran."""
    return int((tmp_path / "count").read_text())


async def of_plugin(server, tmp_path, **status):
    """Credentials of a plugin whose first token is refused from now on."""
    clock = Clock()
    path = write(tmp_path / "kc", {"server": server.url}, plugin(tmp_path, **status))
    credentials = await Credentials.load(path, clock)
    clock.now += FORCED_GAP_S
    return credentials


@both
@only_http
@pytest.mark.parametrize("status", [{}, {"expirationTimestamp": "2999-01-01T00:00:00Z"}])
async def test_a_plugin_is_asked_once_for_all(server, tmp_path, posts, status) -> None:
    server.good = {"token-2"}
    async with KubeClient(await of_plugin(server, tmp_path, **status), posts=posts) as client:
        await asyncio.gather(*calls(client))
    assert server.asked == {"token-1": MANY, "token-2": MANY}
    assert set(server.done.values()) == {1}
    assert len(server.done) == MANY
    assert runs(tmp_path) == 2


@both
@only_http
async def test_a_token_file_is_read_for_all(server, tmp_path, posts) -> None:
    server.good = {"two"}
    token, clock = tmp_path / "token", Clock()
    token.write_text("one")
    path = write(tmp_path / "kc", {"server": server.url}, {"tokenFile": str(token)})
    async with KubeClient(await Credentials.load(path, clock), posts=posts) as client:
        clock.now += FORCED_GAP_S
        token.write_text("two")
        await asyncio.gather(*calls(client))
    assert server.asked == {"one": MANY, "two": MANY}
    assert set(server.done.values()) == {1}


@both
@pytest.mark.parametrize("server", ["https"], indirect=True)
async def test_a_service_account_is_read_for_all(server, tmp_path, monkeypatch, posts) -> None:
    server.good = {"sa-2"}
    clock, token = Clock(), service_account(tmp_path, monkeypatch)
    (tmp_path / "ca.crt").write_bytes(server.cert.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    credentials = await Credentials.load(None, clock)
    credentials.tls_server_name = "api.test"
    async with KubeClient(credentials, posts=posts) as client:
        clock.now += FORCED_GAP_S
        token.write_text("sa-2")
        await asyncio.gather(*calls(client))
    assert server.asked == {"sa-1": MANY, "sa-2": MANY}
    assert set(server.done.values()) == {1}


@both
@only_http
async def test_who_is_refused_when_all_others_have_gone_on_goes_on_too(server, tmp_path, posts) -> None:
    server.good = {"token-2"}
    server.late.clear()
    async with KubeClient(await of_plugin(server, tmp_path), posts=posts) as client:
        *others, late = map(asyncio.ensure_future, calls(client, "late"))
        await asyncio.gather(*others)
        server.late.set()
        await late
    assert server.asked == {"token-1": MANY, "token-2": MANY}
    assert runs(tmp_path) == 2


@both
@only_http
async def test_a_new_token_that_is_refused_too_is_an_error_and_no_loop(server, tmp_path, posts) -> None:
    async with KubeClient(await of_plugin(server, tmp_path), posts=posts) as client:
        found = await asyncio.gather(*calls(client), return_exceptions=True)
    assert {type(each) for each in found} == {errors.Unauthorized}
    assert str(found[0]) == ("GET /pod-0: Unauthorized; credentials that were fetched anew are refused, too")
    assert {each.status for each in found} == {401}
    assert server.asked == {"token-1": MANY, "token-2": MANY}
    assert runs(tmp_path) == 2


@both
@only_http
async def test_the_same_token_again_is_not_sent_again(server, tmp_path, posts) -> None:
    async with KubeClient(await of_plugin(server, tmp_path, token="same"), posts=posts) as client:
        found = await asyncio.gather(*calls(client), return_exceptions=True)
    assert {str(each).rpartition(": ")[2] for each in found} == {"Unauthorized"}
    assert server.asked == {"same": MANY}
    assert runs(tmp_path) == 2


@only_http
async def test_a_plugin_that_fails_fails_all(server, tmp_path) -> None:
    (tmp_path / "token").write_text("one")
    clock = Clock()
    path = write(tmp_path / "kc", {"server": server.url}, {"tokenFile": str(tmp_path / "token")})
    async with KubeClient(await Credentials.load(path, clock)) as client:
        clock.now += FORCED_GAP_S
        (tmp_path / "token").unlink()
        found = await asyncio.gather(*calls(client), return_exceptions=True)
    assert {type(each) for each in found} == {errors.ConfigError}
    assert "credentials cannot be read again" in str(found[0])


def slow_plugin(tmp_path) -> dict:
    """A plugin that says at once what it says first, and from then on waits for a file."""
    user = plugin(tmp_path)
    (script,) = user["exec"]["args"]
    with Path(script).open("a") as file:
        file.write(
            "import os, sys, time\n"
            "sys.stdout.flush()\n"
            f"while n > 1 and not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        )
    return user


async def test_a_request_that_is_given_up_takes_the_refresh_from_no_other(tmp_path) -> None:
    clock = Clock()
    path = write(tmp_path / "kc", {"server": "http://h:1"}, slow_plugin(tmp_path))
    credentials = await Credentials.load(path, clock)
    clock.now += FORCED_GAP_S
    refused, loop = await credentials.proof(), asyncio.get_running_loop()
    assert not await credentials.renew(refused, loop.time() + 0.05)
    waiting = [asyncio.create_task(credentials.renew(refused)) for _ in range(3)]
    await asyncio.sleep(0)
    (tmp_path / "go").touch()
    assert await asyncio.gather(*waiting) == [True] * 3
    assert (runs(tmp_path), await credentials.authorization()) == (2, "Bearer token-2")


class SlowLoader:
    """Reads for ever."""

    async def load_and_set(self, _configuration) -> None:
        await asyncio.Event().wait()


async def test_a_client_that_closes_leaves_no_refresh_behind(tmp_path) -> None:
    clock = Clock()
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, {}), clock)
    clock.now += FORCED_GAP_S
    credentials._loader = SlowLoader()
    async with KubeClient(credentials):
        assert not await credentials.renew(
            await credentials.proof(), asyncio.get_running_loop().time() + 0.01
        )
        assert len(asyncio.all_tasks()) == 2
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_401_during_a_look_at_its_time_asks_the_plugin(tmp_path) -> None:
    """The look at its time leaves a token alone that has not expired."""
    clock = Clock()
    user = plugin(tmp_path, expirationTimestamp="2999-01-01T00:00:00Z")
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, user), clock)
    refused = await credentials.proof()
    clock.now += REFRESH_S
    look = asyncio.create_task(credentials.authorization())
    await asyncio.sleep(0)
    assert await credentials.renew(refused)
    await look
    assert (runs(tmp_path), await credentials.authorization()) == (2, "Bearer token-2")


class LongLoader:
    """Takes longer than there is between two refreshes, and brings nothing new."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.loads = 0

    async def load_and_set(self, _configuration) -> None:
        self.loads += 1
        await asyncio.sleep(0)
        self._clock.now += 2 * FORCED_GAP_S


async def test_a_long_refresh_is_not_begun_again_by_each_who_waited(tmp_path) -> None:
    clock = Clock()
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, {}), clock)
    clock.now += FORCED_GAP_S
    credentials._loader = loader = LongLoader(clock)
    refused = await credentials.proof()
    assert await asyncio.gather(*(credentials.renew(refused) for _ in range(MANY))) == [False] * MANY
    assert loader.loads == 1


class FailingLoader:
    """Fails once it may."""

    def __init__(self) -> None:
        self.may_fail = asyncio.Event()

    async def load_and_set(self, _configuration) -> None:
        await self.may_fail.wait()
        raise OSError("gone")


async def test_a_refresh_that_fails_when_nobody_waits_any_more_is_no_loose_end(tmp_path) -> None:
    clock, loop, loose = Clock(), asyncio.get_running_loop(), []
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, {}), clock)
    clock.now += FORCED_GAP_S
    credentials._loader = loader = FailingLoader()
    loop.set_exception_handler(lambda _, context: loose.append(context))
    assert not await credentials.renew(await credentials.proof(), loop.time() + 0.01)
    loader.may_fail.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    await asyncio.sleep(0)
    gc.collect()
    assert loose == []
