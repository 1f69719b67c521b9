"""POST and PATCH on kept connections, against a server that answers byte by byte what the test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from kubeapi import errors, posting
from kubeapi.client import KubeClient
from kubeapi.posting import make_post_client
from tests.credentials_world import kubeconfig
from tests.waiting import until

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Keeps what it was asked; `answers` are given in turn, the last one for ever."""

    def __init__(self) -> None:
        self.answers = [OK]
        self.heads: list[bytes] = []
        self.connections = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
                self.heads.append(head)
                await self.may_answer.wait()
                writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    yield server
    listening.close()
    for writer in server.writers:
        writer.close()


@pytest.fixture
async def client(server: Server, tmp_path: Path) -> AsyncIterator[KubeClient]:
    config = kubeconfig(tmp_path / "kc", f"{server.url}/base", token="t0")  # type: ignore[attr-defined]
    async with await KubeClient.connect(config, posts=make_post_client) as client:
        yield client


async def test_requests_share_a_connection(server: Server, client: KubeClient) -> None:
    for _ in range(3):
        assert await client.post("/x", {"a": 1}, dryRun="All") == b"{}"
    assert server.connections == 1
    assert server.heads[0].startswith(b"POST /base/x?dryRun=All HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer t0\r\n" in server.heads[0]
    assert await client.patch("/x", b"[]", "application/json-patch+json") == b"{}"
    assert server.connections == 1
    assert server.heads[3].startswith(b"PATCH /base/x HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/json-patch+json\r\n" in server.heads[3]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
)
async def test_answers_of_any_form_are_read(server: Server, client: KubeClient, answer: bytes) -> None:
    server.answers = [answer]
    for _ in range(2):
        assert await client.post("/x", {}) == b"{}"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"Content", b"Connection: close\r\nContent"),
        OK.replace(b"1.1", b"1.0"),
        OK + OK,
        OK + b"more",
    ],
)
async def test_a_connection_that_cannot_be_used_again_is_not(
    server: Server, client: KubeClient, answer: bytes
) -> None:
    server.answers = [answer]
    for _ in range(2):
        with suppress(errors.Unreachable):
            await client.post("/x", {})
    assert server.connections == 2


async def test_what_is_said_unasked_ends_a_connection(server: Server, client: KubeClient) -> None:
    await client.post("/x", {})
    server.writers[0].write(OK)
    await until(server.writers[0].is_closing)
    await client.post("/x", {})
    assert server.connections == 2


async def test_a_request_that_is_given_up_takes_its_connection_along(
    server: Server, client: KubeClient
) -> None:
    server.may_answer.clear()
    with pytest.raises(errors.TimedOut, match=r"POST /x: no answer within 0.05 s") as caught:
        await client.post("/x", {}, timeout_s=0.05)
    assert caught.value.maybe_done
    server.may_answer.set()
    await client.post("/x", {})
    assert server.connections == 2


async def test_an_unused_connection_is_closed(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "CLOSE_UNUSED_AFTER_S", 0.01)
    await client.post("/x", {})
    await until(server.writers[0].is_closing)
    await client.post("/x", {})
    assert server.connections == 2


async def test_it_is_closed_that_long_after_its_last_request(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "CLOSE_UNUSED_AFTER_S", 1500.0)
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    machine_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: machine_s() + ahead_s)
    await client.post("/x", {})
    ahead_s = 1000.0
    await client.post("/x", {})
    ahead_s = 1501.0
    await asyncio.sleep(0.01)  # the first check runs
    assert not server.writers[0].is_closing()
    ahead_s = 2501.0
    await until(server.writers[0].is_closing)


async def test_more_requests_than_connections_wait(server: Server, client: KubeClient) -> None:
    server.may_answer.clear()
    waiting = [asyncio.create_task(client.post("/x", {})) for _ in range(20)]
    await until(lambda: len(server.heads) == 16)
    with pytest.raises(errors.Unreachable, match="connections") as caught:
        await client.post("/late", {}, timeout_s=0.05)
    assert not caught.value.maybe_done
    server.may_answer.set()
    await asyncio.gather(*waiting)
    assert server.connections == 16


async def test_a_proxy_is_left_to_aiohttp(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client._credentials, "proxy", "http://127.0.0.1:1")
    assert make_post_client(client._credentials, (), 1, 1.0) is None
