"""`gpupack`'s daemons as processes, beside an API server and a node's kubelet."""

import asyncio
import os
import socket
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest

from allocator.packing import read_node
from standins.apiserver.server import ApiServer
from standins.kubelet.node import Kubelet
from tests.kubelet_world import short_folder
from tests.waiting import DEADLINE_S

NODE = "n1"


@asynccontextmanager
async def beside_kubelet():
    """A folder, an API server with one node, and the node's kubelet."""
    async with short_folder() as folder, ApiServer() as api:
        api.add_node(NODE)
        kubelet = Kubelet(folder, NODE, api.url)
        await kubelet.start()
        api.kubeconfig(folder / "kubeconfig")
        try:
            yield folder, api, kubelet
        finally:
            await kubelet.stop()


@pytest.fixture
async def world():
    async with beside_kubelet() as found:
        yield found


def make_pod(api, name="p", units=5):
    """Bind a pod that asks for so many GiB to the node; returns its UID."""
    limits = {"gpupack.io/gpu-memory-gib": str(units)}
    container = {"name": "c", "image": "none", "resources": {"limits": limits}}
    pod = {"metadata": {"name": name}, "spec": {"nodeName": NODE, "containers": [container]}}
    return api.add_pod(pod)["metadata"]["uid"]


def node_command(folder, kubelet, *options, gpus=("simulated", "--profile", "2xt4")):
    return [
        *("node", "--node-name", NODE, "--gpus", *gpus, "--kubeconfig", folder / "kubeconfig"),
        *(
            "--device-plugin-dir",
            kubelet.device_plugin_dir,
            "--kubelet-dir",
            kubelet.device_plugin_dir.parent,
        ),
        *options,
    ]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@asynccontextmanager
async def process(*arguments, stderr=asyncio.subprocess.PIPE, files=None, **environment):
    """The command as a process, where it serves, and what it says; it must end by itself when told.

    `files`: how many it may open.
    """
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpupack", *map(str, arguments), "--http", url.removeprefix("http://")]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    running = await asyncio.create_subprocess_exec(*command, stderr=stderr, env=os.environ | environment)
    lines = []

    async def read():
        while running.stderr is not None and (line := await running.stderr.readline()):
            lines.append(line.decode())

    reading = asyncio.create_task(read())
    try:
        yield running, url, lines
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
        await reading


async def status_of(session, url):
    try:
        async with session.get(url) as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientConnectionError:
        return 0, ""


async def until_is(ask, expected):
    """Ask, and await what is awaitable, until the answer is the expected one."""
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        answer = ask()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer == expected:
            return
        assert asyncio.get_running_loop().time() < end, f"{answer} instead of {expected}"
        await asyncio.sleep(0.05)


async def until_ready(session, url):
    await until_is(lambda: status_of(session, f"{url}/readyz"), (200, "ok\n"))


def used_units(api):
    """Units used of each card of the node, as its words say; None before a daemon has published them."""
    words = read_node(api.node(NODE)["status"]["allocatable"])
    return words and words.used
