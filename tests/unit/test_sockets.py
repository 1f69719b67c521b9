"""Who is at a socket's path, making room for our own, and being woken by changes of a folder."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin.errors import RegistrationError
from deviceplugin.host.inotify import Inotify
from deviceplugin.kubelet.grpc_sockets import GrpcSockets
from deviceplugin.kubelet.registration import Registrar
from deviceplugin.kubelet.sockets import (
    FolderWatch,
    check_socket_path,
    clear_left_over,
    clear_socket_path,
    identify,
    name_of_our_own,
)
from tests.kubelet_world import short_folder
from tests.waiting import until


@pytest.fixture
def folder() -> Iterator[Path]:
    context = short_folder()
    runner = asyncio.Runner()
    try:
        yield runner.run(context.__aenter__())
    finally:
        runner.run(context.__aexit__(None, None, None))
        runner.close()


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_identity(folder: Path) -> None:
    path = folder / "s"
    assert identify(path) is None
    path.write_text("")
    assert identify(path) is None
    path.unlink()
    bind(path)
    first = identify(path)
    assert first is not None
    path.chmod(0o600)
    assert identify(path) == first
    path.unlink()
    bind(path)
    os.utime(path, ns=(first.modified_ns + 1, first.modified_ns + 1))
    assert identify(path) != first


def test_no_two_processes_have_a_socket_of_one_name_and_none_stays_behind(folder: Path) -> None:
    ours = name_of_our_own("gpupack.io-x.sock")
    assert name_of_our_own("gpupack.io-x.sock") != ours
    clear_left_over(folder / "none", "gpupack.io-x.sock")
    for name in (ours, "gpupack.io-x.sock", "gpupack.io-other.sock", "kubelet.sock"):
        bind(folder / name)
    (folder / "gpupack.io-x-precious.sock").write_text("")
    clear_left_over(folder, "gpupack.io-x.sock")
    assert {path.name for path in folder.iterdir()} == {
        "gpupack.io-other.sock",
        "kubelet.sock",
        "gpupack.io-x-precious.sock",
    }


def test_makes_room_by_removing_sockets_only(folder: Path) -> None:
    path = folder / "s"
    clear_socket_path(path)
    bind(path)
    clear_socket_path(path)
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(RegistrationError, match="in the way"):
        clear_socket_path(path)
    assert path.read_text() == "precious"


def test_says_when_it_cannot_make_room(folder: Path) -> None:
    with pytest.raises(RegistrationError, match="cannot be replaced"):
        clear_socket_path(folder / ("x" * 300))


def test_the_longest_path() -> None:
    check_socket_path(Path("/" + "x" * 106))
    with pytest.raises(RegistrationError, match="allowed: 107 bytes"):
        check_socket_path(Path("/" + "x" * 107))
    with pytest.raises(RegistrationError, match="allowed: 107 bytes"):
        Registrar(
            None,
            Path("/" + "x" * 100),
            "gpupack.sock",
            "a/b",
            on_registered=lambda: None,
            on_kubelet_restart=lambda: None,
        )


async def test_watches_from_the_start() -> None:
    async with short_folder() as path:
        seen: list[int] = []
        async with FolderWatch(path, lambda: seen.append(1)):
            (path / "x").write_text("")
            await until(lambda: seen)


async def test_watches_a_folder_that_comes_later_and_comes_again() -> None:
    async with short_folder() as path:
        seen: list[int] = []
        inner = path / "inner"
        async with FolderWatch(inner, lambda: seen.append(1)):
            inner.mkdir()
            await until(lambda: seen)
            inner.rmdir()
            inner.mkdir()
            seen.clear()
            await until(lambda: seen)
            (inner / "x").write_text("")
            seen.clear()
            await until(lambda: seen)


async def test_tells_at_once_of_all_that_happens_in_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.kubelet.sockets._TICK_S", 1000.0)
    async with short_folder() as path:
        (path / "file").write_text("old")
        seen: list[int] = []
        async with FolderWatch(path, lambda: seen.append(1)):
            for change in (
                lambda: (path / "file").write_text("new"),
                lambda: (path / "file").rename(path / "other"),
                lambda: bind(path / "s"),
                (path / "s").unlink,
            ):
                seen.clear()
                change()
                await until(lambda: seen)


async def test_looks_once_a_second_where_the_kernel_has_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Inotify) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr("deviceplugin.kubelet.sockets._TICK_S", 0.001)
    async with short_folder() as path:
        seen: list[int] = []
        with monkeypatch.context() as without:
            without.setattr(Inotify, "open", refuse)
            watch = await FolderWatch(path, lambda: seen.append(1)).__aenter__()
            await until(lambda: seen)
        await until(lambda: watch._open)
        await watch.__aexit__(None, None, None)


async def test_a_socket_that_a_starting_kubelet_deletes_as_it_is_made_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with short_folder() as path:
        sockets = GrpcSockets([path / "ours.sock"], lambda _server: None, grace_s=0.1)
        make_server = grpc.aio.server

        def make_server_that_loses(**options: Any) -> Any:
            server = make_server(**options)
            start = server.start

            async def start_and_lose() -> None:
                await start()
                (path / "ours.sock").unlink()

            deleted.setattr(server, "start", start_and_lose)
            return server

        with monkeypatch.context() as deleted:
            deleted.setattr(grpc.aio, "server", make_server_that_loses)
            await sockets.serve()
        assert (sockets.is_serving, sockets.are_ours) == (True, False)
        await sockets.stop()
        await sockets.serve()
        assert sockets.are_ours
        await sockets.stop()
