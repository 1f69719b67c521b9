"""Listening sockets when nothing is left to accept with."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pytest_mock import MockerFixture

from scheduler_plugin.extender.listening import Acceptor, open_listeners


@pytest.fixture
async def acceptor() -> AsyncIterator[Acceptor]:
    (listener,) = await open_listeners("127.0.0.1", 0)
    acceptor = Acceptor(listener, asyncio.Protocol, None)
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
    monkeypatch.setattr("scheduler_plugin.extender.listening.PAUSE_S", 0.05)
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
