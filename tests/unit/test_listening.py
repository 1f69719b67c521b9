"""Listening sockets when nothing is left to accept with, and bounds of connections."""

import asyncio
import errno
import gc
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pytest_mock import MockerFixture

from kubeapi.listening import (
    KEEP_ALIVE_S,
    REQUEST_S,
    Acceptor,
    Connection,
    Connections,
    limit_connections,
    open_listeners,
)


@pytest.fixture
async def acceptor() -> AsyncIterator[Acceptor]:
    (listener,) = await open_listeners("127.0.0.1", 0)
    acceptor = Acceptor(listener, Connections(lambda _: asyncio.Protocol()), None)
    acceptor.start()
    yield acceptor
    acceptor.close()


async def test_without_file_descriptors_it_is_told_once_and_tried_again(
    acceptor: Acceptor, mocker: MockerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    told, begun = asyncio.Semaphore(0), asyncio.Event()

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reports.append(context)
        told.release()

    asyncio.get_running_loop().set_exception_handler(note)
    refusing = mocker.patch.object(socket.socket, "accept", side_effect=OSError(errno.EMFILE, "none left"))
    monkeypatch.setattr("kubeapi.listening.PAUSE_S", 0.05)
    mocker.patch.object(asyncio.Protocol, "connection_made", side_effect=lambda _: begun.set())
    async with asyncio.timeout(10):
        _, writer = await asyncio.open_connection(*acceptor.listener.getsockname())
        await told.acquire()
        for _ in range(10):
            await asyncio.sleep(0)
        assert refusing.call_count == len(reports) == 1
        assert reports[0]["message"] == "socket.accept() out of system resource"
        await told.acquire()
        mocker.stop(refusing)
        await begun.wait()
    writer.close()


async def test_a_client_that_is_ended_before_its_turn_is_closed_at_once() -> None:
    """Its task never ran, and keeps the socket until garbage is collected, which is seldom."""
    (listener,) = await open_listeners("127.0.0.1", 0)
    acceptor = Acceptor(listener, Connections(lambda _: asyncio.Protocol(), most=1), None)
    acceptor.start()
    gc.disable()
    try:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        clients[0].setblocking(False)
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(clients[0], 1) == b""
        for client in clients:
            client.close()
    finally:
        gc.enable()
        acceptor.close()


async def test_closed_it_accepts_nothing(acceptor: Acceptor) -> None:
    address = acceptor.listener.getsockname()
    acceptor.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_all_addresses_of_the_machine() -> None:
    made = await open_listeners(None, 0)
    assert {each.family for each in made} <= {socket.AF_INET, socket.AF_INET6}
    assert made
    for each in made:
        each.close()


async def test_a_machine_without_ipv6_has_its_other_addresses(mocker: MockerFixture) -> None:
    bind = socket.socket.bind

    def only_ipv4(self: socket.socket, address: Any) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no IPv6")
        bind(self, address)

    mocker.patch.object(socket.socket, "bind", only_ipv4)
    mocker.patch.object(
        asyncio.get_running_loop(),
        "getaddrinfo",
        return_value=[
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        ],
    )
    (made,) = await open_listeners(None, 0)
    assert made.family == socket.AF_INET
    made.close()


async def test_a_port_that_is_taken_leaves_no_socket_behind() -> None:
    (first,) = await open_listeners("127.0.0.1", 0)
    first.listen()
    with pytest.raises(OSError, match="in use"):
        await open_listeners("127.0.0.1", first.getsockname()[1])
    first.close()


class Wire(asyncio.Transport):
    """A transport that only knows whether it was closed, and what its client has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.was_closed = asyncio.Event()
        self.unread = 0

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.was_closed.set()

    def get_write_buffer_size(self) -> int:
        return self.unread


class Crowd:
    """Connections with a clock that the test moves."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.connections = Connections(lambda _: asyncio.Protocol(), most, lambda: self.now)

    def connect(self) -> tuple[Connection, Wire]:
        """Let a client in, a second after the last one."""
        self.now += 1
        connection = self.connections.admit()
        assert connection is not None
        wire = Wire()
        connection.connection_made(wire)
        return connection, wire

    def answered(self) -> tuple[Connection, Wire]:
        connection, wire = self.connect()
        connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        with connection.answering():
            pass
        return connection, wire


async def test_for_one_more_the_longest_waiting_that_was_never_answered_is_ended() -> None:
    crowd = Crowd(3)
    _, known = crowd.answered()
    _, first = crowd.connect()
    _, second = crowd.connect()
    _, third = crowd.connect()
    assert [each.aborted for each in (known, first, second, third)] == [False, True, False, False]
    crowd.connect()
    assert [each.aborted for each in (known, second, third)] == [False, True, False]


async def test_then_the_one_that_was_answered_longest_ago_is_ended() -> None:
    crowd = Crowd(2)
    (early, wire_of_early), (_, wire) = crowd.answered(), crowd.answered()
    crowd.now += 1
    with early.answering():
        pass
    crowd.connect()
    assert (wire_of_early.aborted, wire.aborted) == (False, True)


async def test_clients_that_come_at_the_same_time_do_not_end_each_other() -> None:
    crowd = Crowd(8)
    known = [crowd.answered()[1] for _ in range(8)]
    new = [crowd.connect()[1] for _ in range(3)]
    assert [each.aborted for each in (*known, *new)] == [*[True] * 3, *[False] * 8]
    crowd.connect()
    assert [each.aborted for each in (*known[3:], *new)] == [*[False] * 5, True, False, False]


async def test_one_that_is_answered_is_never_ended_and_a_further_client_is_refused() -> None:
    crowd = Crowd(2)
    wires = []
    for _ in range(2):
        connection, wire = crowd.connect()
        connection.begin_answer()
        wires.append(wire)
    crowd.now += 1e6
    crowd.connections.end_overdue()
    assert crowd.connections.admit() is None
    assert not any(wire.aborted for wire in wires)


@pytest.mark.parametrize(
    ("answered", "sent", "limit_s"),
    [
        pytest.param(False, [], REQUEST_S, id="nothing sent"),
        pytest.param(False, [b"G", b"E", b"T"], REQUEST_S, id="byte by byte"),
        pytest.param(True, [], KEEP_ALIVE_S, id="idle after an answer"),
        pytest.param(True, [b"G", b"E", b"T"], REQUEST_S, id="byte by byte after an answer"),
    ],
)
async def test_a_client_that_takes_too_long_is_ended(
    *, answered: bool, sent: list[bytes], limit_s: float
) -> None:
    crowd = Crowd(2)
    connection, wire = crowd.answered() if answered else crowd.connect()
    for byte in sent:
        connection.data_received(byte)
        crowd.now += limit_s / len(sent) / 2
    crowd.now += limit_s - (crowd.now - connection.since)
    crowd.connections.end_overdue()
    assert not wire.aborted
    crowd.now += 0.1
    crowd.connections.end_overdue()
    assert wire.aborted


async def test_of_bodies_that_are_too_large_together_the_largest_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kubeapi.listening.MOST_UNANSWERED_BYTES", 100)
    crowd = Crowd(9)
    (small, small_wire), (large, large_wire), (answered, answered_wire) = (crowd.connect() for _ in range(3))
    answered.data_received(b"x" * 45)
    answered.begin_answer()
    large.data_received(b"x" * 30)
    small.data_received(b"x" * 25)
    assert not large_wire.aborted
    small.data_received(b"x")
    assert (small_wire.aborted, large_wire.aborted, answered_wire.aborted) == (False, True, False)
    answered.end_answer()
    small.data_received(b"x" * 74)
    assert not small_wire.aborted
    small.data_received(b"x")
    assert small_wire.aborted


async def test_a_handshake_that_is_never_made_counts_and_is_ended() -> None:
    crowd = Crowd(1)
    handshaking = crowd.connections.admit()
    assert handshaking is not None
    handshaking.beginning = asyncio.create_task(asyncio.sleep(60))
    crowd.connect()
    await asyncio.wait([handshaking.beginning])
    assert handshaking.beginning.cancelled()


async def test_the_end_lets_clients_read_what_was_answered() -> None:
    crowd = Crowd(2)
    (_, idle), (reading, unread) = crowd.answered(), crowd.answered()
    unread.unread = 5
    ending = asyncio.create_task(crowd.connections.close(10))
    async with asyncio.timeout(10):
        await unread.was_closed.wait()
        assert (idle.aborted, unread.aborted, ending.done()) == (True, False, False)
        reading.connection_lost(None)
        await ending


@pytest.mark.parametrize(("files", "most"), [(1024, 256), (200, 50), (10, 8), (resource.RLIM_INFINITY, 256)])
def test_a_server_leaves_most_files_to_others(mocker: MockerFixture, files: int, most: int) -> None:
    mocker.patch.object(resource, "getrlimit", return_value=(files, files))
    assert limit_connections() == most
