"""Calls that are answered without a framework, and everything that is not."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from unittest.mock import Mock

import pytest
import uvloop
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError

from kubeapi.listening import Connection, Connections
from scheduler_plugin.extender.fast_server import FastServer, VerbAnswer

BODY = b'{"Pod":{}}'
HEAD = (
    b"POST /filter HTTP/1.1\r\nHost: 127.0.0.1:8910\r\nUser-Agent: Go-http-client/1.1\r\n"
    b"Content-Length: %d\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)
LIMIT_S = 10


def request(body: bytes = BODY, verb: bytes = b"filter") -> bytes:
    return (HEAD % len(body)).replace(b"/filter", b"/" + verb) + body


class Other(asyncio.Protocol):
    """The server for everything else: keeps what it is given."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.world.handed_over.append(b"")

    def data_received(self, data: bytes) -> None:
        self.world.handed_over[-1] += data
        self.world.news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.world.news.set()


class World:
    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.cut_off: list[str] = []
        self.handed_over: list[bytes] = []
        self.news = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.address = ("", 0)
        self.server = FastServer(self.call, self.note_cut_off, 1000, only_known_clients=False)
        self.connections = Connections(
            lambda connection: self.server.make_protocol(connection, lambda: Other(self))
        )

    def connection(self) -> Connection:
        admitted = self.connections.admit()
        assert admitted is not None
        return admitted

    async def close(self, grace_s: float) -> None:
        await self.connections.close(grace_s)
        await self.server.close()

    async def call(self, path: str, body: bytes) -> VerbAnswer:
        self.calls.append((path, body))
        self.news.set()
        await self.may_answer.wait()
        return VerbAnswer(b"answer to " + body, 0.0015)

    def note_cut_off(self, path: str) -> None:
        self.cut_off.append(path)
        self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    world = World()
    listening = await asyncio.get_running_loop().create_server(world.connection, "127.0.0.1", 0)
    world.address = listening.sockets[0].getsockname()[:2]
    try:
        yield world
    finally:
        listening.close()
        await world.close(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as world:
        yield world


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(LIMIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        return head, await reader.readexactly(length)


async def test_calls_one_after_the_other_on_one_connection(world: World) -> None:
    reader, writer = await world.connect()
    for verb in (b"filter", b"prioritize", b"bind", b"preempt"):
        writer.write(request(verb, verb))
        head, body = await answer(reader)
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        assert b"\r\nServer-Timing: handled;dur=1.500\r\n" in head
        assert b"\r\nDate: " in head
        assert (body, world.calls[-1]) == (b"answer to " + verb, ("/" + verb.decode(), verb))
    assert world.handed_over == []
    writer.close()


async def test_a_body_in_parts_and_calls_that_come_together(world: World) -> None:
    reader, writer = await world.connect()
    large = request(b"x" * 900)
    for part in (request(b"") + request(b"x")[:-1], b"x" + large[:-800], large[-800:-1], large[-1:]):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.001)
    bodies = [(await answer(reader))[1] for _ in range(3)]
    assert bodies == [b"answer to " + b"x" * size for size in (0, 1, 900)]
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"rubbish",
        b"\r\n" + request(),
        request(verb=b"nowhere"),
        request(verb=b"filter?x=1"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request().replace(b"POST", b"post"),
        request().replace(b"Content-Length: 10\r\n", b""),
        request().replace(b"Content-Length: 10", b"Content-Length: 10\r\nContent-Length: 10"),
        request().replace(b"Content-Length: 10", b"Content-Length: +10"),
        request().replace(b"Content-Length: 10", b"Content-Length: 1_0"),
        request().replace(b"Content-Length: 10", b"Content-Length: 1001"),
        request().replace(b"Content-Length: 10", b"Content-Length : 10"),
        request().replace(b"Content-Length: 10", b"Transfer-Encoding: chunked"),
        request().replace(b"Accept-Encoding: gzip", b"Transfer-Encoding: chunked"),
        request().replace(b"Accept-Encoding: gzip", b"Content-Encoding: gzip"),
        request().replace(b"Accept-Encoding: gzip", b"Expect: 100-continue"),
        request().replace(b"Accept-Encoding: gzip", b"Connection: close"),
        request().replace(b"Accept-Encoding: gzip", b"Accept: a\r\n b"),
        request().replace(b"Accept-Encoding: gzip", b"Accept: a\x00b"),
        request().replace(b"Accept-Encoding: gzip", b"Accept: " + b"x" * 5000),
        request().replace(b"\r\n", b"\n"),
    ],
)
async def test_another_form_goes_to_the_other_server_whole(world: World, sent: bytes) -> None:
    reader, writer = await world.connect()
    writer.write(request(b"before"))
    await answer(reader)
    writer.write(sent)
    await world.until(lambda: world.handed_over == [sent])
    writer.write(b"and all that follows")
    await world.until(lambda: world.handed_over == [sent + b"and all that follows"])
    assert len(world.calls) == 1
    writer.close()


async def test_a_body_that_is_cut_off_is_told(world: World) -> None:
    _, writer = await world.connect()
    writer.write(request()[:-1])
    await writer.drain()
    writer.close()
    await world.until(lambda: world.cut_off == ["/filter"])
    assert world.calls == []


async def test_a_client_that_goes_away_does_not_end_its_call(world: World) -> None:
    world.may_answer.clear()
    _, writer = await world.connect()
    writer.write(request())
    await world.until(lambda: len(world.calls) == 1)
    writer.transport.abort()
    world.may_answer.set()
    reader, writer = await world.connect()
    writer.write(request(b"next"))
    assert (await answer(reader))[1] == b"answer to next"
    assert world.cut_off == []
    writer.close()


async def test_the_end_waits_for_answers_and_for_nothing_else(world: World) -> None:
    idle, unused = await world.connect()
    reader, writer = await world.connect()
    world.may_answer.clear()
    writer.write(request())
    await world.until(lambda: len(world.calls) == 1)
    ending = asyncio.create_task(world.close(LIMIT_S))
    async with asyncio.timeout(LIMIT_S):
        assert await idle.read() == b""
    assert not ending.done()
    world.may_answer.set()
    assert (await answer(reader))[1] == b"answer to " + BODY
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
        await ending
    writer.close()
    unused.close()


async def test_the_end_gives_up_what_does_not_end(world: World) -> None:
    world.may_answer.clear()
    connections = []
    for sent in (request(), request()[:-1]):
        reader, writer = await world.connect()
        writer.write(sent)
        await writer.drain()
        connections.append((reader, writer))
    await world.until(lambda: len(world.calls) == 1)
    async with asyncio.timeout(LIMIT_S):
        await world.close(0.05)
        for reader, writer in connections:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
    assert world.cut_off == []


async def test_a_client_that_sends_on_without_end_has_to_wait(world: World) -> None:
    world.may_answer.clear()
    _, writer = await world.connect()
    many = request(b"x" * 1000) * 64
    # Whatever the sockets' own buffers take.
    for _ in range(100):
        writer.write(many)
    await world.until(lambda: len(world.calls) == 1)
    (connection,) = world.connections.by_protocol.values()
    transport = connection._transport
    assert transport is not None
    async with asyncio.timeout(LIMIT_S):
        while transport.is_reading():  # noqa: ASYNC110  (no event tells that)
            await asyncio.sleep(0.001)
    assert len(world.calls) == 1
    world.may_answer.set()
    await world.until(lambda: len(world.calls) > 64)
    writer.transport.abort()


def test_on_the_event_loop_that_is_shipped() -> None:
    async def all_of_them() -> None:
        sent = request().replace(b"Accept-Encoding: gzip", b"Expect: 100-continue")
        async with serving() as world:
            await test_a_body_in_parts_and_calls_that_come_together(world)
        async with serving() as world:
            await test_another_form_goes_to_the_other_server_whole(world, sent)
        for test in (
            test_a_body_that_is_cut_off_is_told,
            test_the_end_waits_for_answers_and_for_nothing_else,
            test_the_end_gives_up_what_does_not_end,
            test_a_client_that_sends_on_without_end_has_to_wait,
        ):
            async with serving() as world:
                await test(world)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(all_of_them())


def mutated(chance: random.Random) -> bytes:
    """A call with a few bytes changed, taken out, doubled or put in."""
    data = bytearray(request(b"0123456789" * chance.randrange(3)))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        what = chance.randrange(4)
        if what == 0:
            data[at] = chance.choice(b"\r\n :,0159aZ\x00\x7f\xff\t")
        elif what == 1:
            del data[at : at + chance.randrange(1, 9)]
        elif what == 2:
            data[at:at] = data[at : at + chance.randrange(1, 30)]
        else:
            data[at:at] = chance.choice(
                [b"\r\n", b"\r\nContent-Length: 3", b"\r\nTransfer-Encoding: chunked", b" ", b"Host: x\r\n"]
            )
        data = data or bytearray(b"x")
    return bytes(data)


async def test_what_is_answered_here_is_what_a_whole_parser_reads() -> None:
    chance = random.Random(7)
    loop = asyncio.get_running_loop()
    answered = 0
    nowhere = Mock(spec=asyncio.Transport)
    nowhere.is_closing.return_value, nowhere.get_write_buffer_size.return_value = False, 0
    for _ in range(10_000):
        data = mutated(chance)
        world = World()
        connection = world.connection()
        connection.connection_made(nowhere)
        cut = chance.choice((len(data), chance.randrange(len(data) + 1)))
        for part in (data[:cut], data[cut:]):
            if part and not world.handed_over:
                connection.data_received(part)
        await asyncio.sleep(0)
        if not world.calls:
            continue
        answered += 1
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
        try:
            messages, _, _ = parser.feed_data(data)
        except HttpProcessingError:
            # What follows the call may be rubbish: that is read later.
            messages, _, _ = HttpRequestParser(BaseProtocol(loop), loop, 2**16).feed_data(
                data[: data.index(b"\r\n\r\n") + 4 + len(world.calls[0][1])]
            )
        message, payload = messages[0]
        path, body = world.calls[0]
        assert (message.method, message.path) == ("POST", path), data
        assert (b"" if not body else payload.read_nowait()) == body, data
        assert not message.should_close, data
    assert answered > 300
