"""Listening sockets when nothing is left to accept with."""

import asyncio
import errno
import socket
from typing import Any

import pytest
from pytest_mock import MockerFixture

from scheduler_plugin.http.listening import Listener, listeners


async def test_without_file_descriptors_a_turn_of_the_loop_fails_once(mocker: MockerFixture) -> None:
    (listener,) = await listeners("127.0.0.1", 0)
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    tried = mocker.patch.object(socket.socket, "accept", side_effect=OSError(errno.EMFILE, "none left"))
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, sock=listener, backlog=128)
    with socket.create_connection(listener.getsockname()):
        while not reports:  # noqa: ASYNC110  (a loop of turns, that is what is counted)
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
    server.close()
    assert tried.call_count == len(reports) == 1
    mocker.stopall()


async def test_afterwards_it_accepts_again(mocker: MockerFixture) -> None:
    (listener,) = await listeners("127.0.0.1", 0)
    listener.listen()
    listener.setblocking(False)
    with socket.create_connection(listener.getsockname()):
        refusing = mocker.patch.object(socket.socket, "accept", side_effect=OSError(errno.EMFILE, "none"))
        with pytest.raises(OSError, match="none"):
            listener.accept()
        mocker.stop(refusing)
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.accept()[0].close()
    listener.close()


async def test_another_error_is_told_every_time(mocker: MockerFixture) -> None:
    (listener,) = await listeners("127.0.0.1", 0)
    mocker.patch.object(socket.socket, "accept", side_effect=OSError(errno.EINVAL, "bad"))
    for _ in range(2):
        with pytest.raises(OSError, match="bad"):
            listener.accept()
    listener.close()


async def test_all_addresses_of_the_machine() -> None:
    made = await listeners(None, 0)
    assert {each.family for each in made} <= {socket.AF_INET, socket.AF_INET6}
    assert made
    for each in made:
        each.close()


async def test_a_machine_without_ipv6_has_its_other_addresses(mocker: MockerFixture) -> None:
    bind = Listener.bind

    def only_ipv4(self: Listener, address: Any) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no IPv6")
        bind(self, address)

    mocker.patch.object(Listener, "bind", only_ipv4)
    mocker.patch.object(
        asyncio.get_running_loop(),
        "getaddrinfo",
        return_value=[
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        ],
    )
    (made,) = await listeners(None, 0)
    assert made.family == socket.AF_INET
    made.close()


async def test_a_port_that_is_taken_leaves_no_socket_behind() -> None:
    (first,) = await listeners("127.0.0.1", 0)
    first.listen()
    with pytest.raises(OSError, match="in use"):
        await listeners("127.0.0.1", first.getsockname()[1])
    first.close()
