"""`gpupack top --watch`: a state for every change, and a quiet end."""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from contextlib import asynccontextmanager

import pytest

from allocator.claims import CLAIMS_PATH, ClaimObject
from gpupack.errors import InputError
from gpupack.inventory.objects import CLAIMS_NOT_READ
from gpupack.inventory.rendering import RenderOptions
from gpupack.inventory.watch_rows import WatchedObjects, _Screen, watch
from kubeapi.errors import Forbidden, Unreachable
from kubeapi.objects import Node, ObjectMeta
from standins.apiserver.server import ApiServer
from tests.kubectl_nodes import REVISION, node

GIB = "gpupack.io/gpu-memory-gib"


def resources(used):
    return node("n", [44], [used], revision=REVISION + used)["status"]["allocatable"]


def use(api, name, used):
    amounts = resources(used)
    api.patch_node(name, {"status": {"capacity": amounts, "allocatable": amounts}})


@pytest.fixture
async def api(tmp_path):
    async with ApiServer() as server:
        for name in ("a", "b"):
            server.add_node(name, None, resources(0))
        server.config = server.kubeconfig(tmp_path / "kubeconfig")
        yield server


@asynccontextmanager
async def watching(api, *arguments, stdout=asyncio.subprocess.PIPE):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpupack", "top", "-w", "--kubeconfig", api.config, *arguments,
        stdout=stdout, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def state(process):
    lines = []
    while not lines or not lines[-1].startswith(GIB):
        line = await process.stdout.readline()
        assert line, (lines, await process.stderr.read())
        lines.append(line.decode().rstrip("\n"))
    return lines


async def test_every_change_is_shown_until_ctrl_c(api):
    async with watching(api, "--pods") as process:
        first = await state(process)
        assert [line.split()[:3] for line in first[1:]] == [
            ["a", "0", "░░░░"],
            ["b", "0", "░░░░"],
            [f"{GIB}:", "0/88", "in"],
        ]
        use(api, "b", 11)
        second = await state(process)
        assert second[0] == ""
        assert second[-1] == f"{GIB}: 11/88 in use, whole cards free: 1, largest free card: 44"
        api.add_pod(
            {
                "metadata": {"name": "p"},
                "spec": {
                    "nodeName": "a",
                    "containers": [{"name": "c", "image": "i", "resources": {"limits": {GIB: "4"}}}],
                },
            }
        )
        assert "default    p" in "\n".join(await state(process))
        api.delete_node("b")
        last = await state(process)
        assert last[-1] == f"{GIB}: 4/44 in use, whole cards free: 0, largest free card: 40"
        process.send_signal(signal.SIGINT)
        assert await process.stdout.read() == b""
        # The line break is click's, after the ^C that a terminal shows.
        assert (await process.wait(), await process.stderr.read()) == (130, b"\n")


async def test_a_pipe_that_is_closed_ends_it_without_a_change(api):
    read, write = os.pipe()
    async with watching(api, "a", stdout=write) as process:
        os.close(write)
        said = await asyncio.to_thread(os.read, read, 65_536)
        assert said.decode().count("\n") == 3
        os.close(read)
        assert (await process.wait(), await process.stderr.read()) == (0, b"")


async def test_a_terminal_shows_one_state_cut_to_its_size(api):
    for number in range(20):
        api.add_node(f"node-{number:02}", None, resources(1))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 60, 0, 0))
    async with watching(api, stdout=theirs) as process:
        os.close(theirs)
        text = await asyncio.to_thread(screen, ours)
        assert text.startswith("\x1b[H\x1b[2J\x1b[?7l")
        lines = text.splitlines()
        assert len(lines) == 8  # the last one is what follows the last line break
        assert lines[5] == "... 18 more lines: name nodes to see them"
        assert lines[6].startswith(f"{GIB}: 20/968 in use")
        use(api, "a", 40)
        text = await asyncio.to_thread(screen, ours)
        assert "60/968 in use" in text
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        os.close(ours)


def screen(terminal):
    text = ""
    while "\x1b[?7h" not in text:
        text += os.read(terminal, 65_536).decode()
    return text.replace("\r\n", "\n")


async def test_it_says_when_what_it_shows_is_old(api):
    async with watching(api) as process:
        await state(process)
        await api.away(True)
        old = await state(process)
        assert (await process.stdout.readline()).startswith(b"not up to date: ")
        await api.away(False)
        assert (await state(process))[1:] == old[1:]


def test_what_has_not_changed_is_not_written_again(capsys):
    view = WatchedObjects(None, "/api/v1/nodes", Node, list)
    view.replace([Node(ObjectMeta("n", labels={"gpupack.io/node": "true"}))], "1")
    claims = WatchedObjects(None, CLAIMS_PATH, ClaimObject, list)
    screen = _Screen(view, None, claims, [], RenderOptions("table"))
    for labels in ({}, {"new": "label"}):
        view.event("MODIFIED", Node(ObjectMeta("n", labels={"gpupack.io/node": "true", **labels})), "2")
        screen.draw()
    assert len(capsys.readouterr().out.splitlines()) == 2
    view.event("DELETED", Node(ObjectMeta("n")), "3")
    screen.draw()
    assert capsys.readouterr().out == "\nNo node publishes GPU cards.\n"


def test_claims_that_may_not_be_listed_are_said_not_to_count(capsys):
    view = WatchedObjects(None, "/api/v1/nodes", Node, list)
    view.replace([Node(ObjectMeta("n", labels={"gpupack.io/node": "true"}))], "1")
    claims = WatchedObjects(None, CLAIMS_PATH, ClaimObject, list)
    screen = _Screen(view, None, claims, [], RenderOptions("table"))
    screen.draw()
    assert CLAIMS_NOT_READ not in capsys.readouterr().out
    claims.disconnected(Forbidden("no", status=403))
    screen.draw()
    assert capsys.readouterr().out.splitlines()[-1] == CLAIMS_NOT_READ
    claims.replace([], "2")
    screen.draw()
    assert CLAIMS_NOT_READ not in capsys.readouterr().out


async def test_a_name_that_no_node_has(api):
    with pytest.raises(InputError, match='no node has the name "x"'):
        await watch(api.config, ["a", "x"], RenderOptions("table"))


async def test_nothing_to_show_at_the_start_is_an_error(api):
    await api.stop()
    with pytest.raises(Unreachable):
        await watch(api.config, [], RenderOptions("table"))
