"""Our HTTP servers beside crowds: more idle, slow and eager clients than there are files.

Who must be answered is: kubelet, kube-scheduler, probes. Nothing is said of how fast.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest

from allocator.packing import read_node
from tests.certificates import make_certificate
from tests.cluster_builders import node_object, pod_object
from tests.integration.daemon_processes import (
    NODE,
    make_pod,
    node_command,
    process,
    status_of,
    until_is,
    until_ready,
    used_units,
    world,
)
from tests.waiting import DEADLINE_S

__all__ = ["world"]

FILES = 128
"""Files that a process may open here."""
IDLE, SLOW, ASKING = 160, 40, 16

BEGUN = (
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
)
"""Requests that never end: one in its headers, one in its body."""


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE_S)) as opened:
        yield opened


async def connect(url):
    host, port = url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.connect((host, int(port)))
    await asyncio.sleep(0.001)
    return client


@asynccontextmanager
async def crowd(url, *paths):
    """Clients that stay connected: idle ones, ones that send byte by byte, and ones that ask for `paths`."""
    clients = [await connect(url) for _ in range(IDLE)]
    slow = [await connect(url) for _ in range(SLOW)]

    async def drip():
        sent = 0
        while True:
            for number, client in enumerate(slow):
                begun = BEGUN[number % len(BEGUN)]
                with contextlib.suppress(OSError):
                    client.send(begun[sent : sent + 1] or b"x")
            sent += 1
            await asyncio.sleep(0.02)

    async def ask(asking):
        for path in itertools.cycle(paths):
            await status_of(asking, url + path)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as asking:
        tasks = [asyncio.create_task(each) for each in (drip(), *(ask(asking) for _ in range(ASKING)))]
        try:
            await asyncio.sleep(0.5)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in (*clients, *slow):
                client.close()


async def answers(session, url, path):
    """Wait for the answer over a connection of its own; None where the server does not take or keep it."""
    try:
        async with session.get(url + path, headers={"Connection": "close"}) as answer:
            return answer.status
    except (aiohttp.ClientConnectionError, TimeoutError):
        return None


async def end(running):
    running.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(running.wait(), DEADLINE_S)


async def test_a_node_daemon_serves_pods_and_ends_with_its_words_withdrawn(world, session):
    folder, api, kubelet = world
    async with process(*node_command(folder, kubelet), files=FILES) as (daemon, url, lines):
        await until_ready(session, url)
        await until_is(lambda: used_units(api), (0, 0))
        async with crowd(url, "/explain", "/metrics", "/telemetry"):
            assert [await answers(session, url, "/healthz") for _ in range(5)] == [200] * 5
            for units in (2, 3):
                make_pod(api, f"p{units}", units)
            await until_is(lambda: used_units(api), (5, 0))
            assert await answers(session, url, "/readyz") == 200
            assert await end(daemon) == 0
    words = read_node(api.node(NODE)["status"]["allocatable"])
    assert words.used == words.sizes
    assert "go on offering" not in "".join(lines)
    assert "Too many open files" not in "".join(lines)


@asynccontextmanager
async def extender(folder, api, *more):
    node = node_object("a", (16, 16))
    api.add_node("a", {}, node["status"]["allocatable"], node["metadata"]["annotations"])
    arguments = ["scheduler", "--kubeconfig", folder / "kubeconfig", *more]
    async with process(*arguments, files=FILES) as started:
        yield started


async def filter_pod(session, url, **options):
    """Ask as kube-scheduler does, over a connection of its own."""
    body = {"Pod": pod_object("p", 8), "Nodes": None, "NodeNames": ["a"]}
    asked = session.post(f"{url}/filter", json=body, headers={"Connection": "close"}, **options)
    async with asked as answer:
        return json.loads(await answer.read())["NodeNames"]


async def test_an_extender_answers_kube_scheduler(world, session):
    folder, api, _ = world
    async with extender(folder, api) as (running, url, lines):
        await until_ready(session, url)
        async with crowd(url, "/metrics"):
            assert [await filter_pod(session, url) for _ in range(5)] == [["a"]] * 5
            assert [await answers(session, url, "/healthz") for _ in range(5)] == [200] * 5
            assert await end(running) == 0
    assert "Too many open files" not in "".join(lines)


async def test_an_extender_answers_whom_it_knows_beside_strangers_over_tls(world, session, tmp_path):
    folder, api, _ = world
    certificate, key = await asyncio.to_thread(make_certificate, tmp_path, "IP:127.0.0.1")
    tls = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-client-ca-file", certificate)
    stranger, known = (ssl.create_default_context(cafile=str(certificate)) for _ in range(2))
    known.load_cert_chain(certificate, key)
    async with extender(folder, api, *tls) as (running, url, _):
        host, port = url.removeprefix("http://").split(":")
        safe = f"https://{host}:{port}"

        async def ready():
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"{safe}/readyz", ssl=stranger) as answer:
                    return answer.status

        await until_is(ready, 200)
        # Strangers that shake hands and stay, ones that do not even shake hands.
        silent = [await connect(url) for _ in range(IDLE)]
        met = [await asyncio.open_connection(host, int(port), ssl=stranger) for _ in range(FILES)]
        assert [await filter_pod(session, safe, ssl=known) for _ in range(5)] == [["a"]] * 5
        assert await end(running) == 0
        for _, writer in met:
            writer.transport.abort()
        for client in silent:
            client.close()


@pytest.mark.parametrize(
    ("arguments", "path"),
    [(("queue",), "/status"), (("autoscale",), "/status"), (("dashboard",), "/api/state")],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
async def test_the_others_answer_probes(world, session, arguments, path):
    folder, api, _ = world
    node = node_object("a", (16, 16))
    api.add_node("a", {}, node["status"]["allocatable"], node["metadata"]["annotations"])
    config = folder / "queues.yaml"
    config.write_text("queues:\n  - {name: q, nominalQuota: 8}\n")
    more = ("--config", config) if arguments == ("queue",) else ()
    kubeconfig = ("--kubeconfig", folder / "kubeconfig")
    async with process(*arguments, *more, *kubeconfig, files=FILES) as (running, url, lines):
        await until_is(lambda: answers(session, url, "/readyz"), 200)
        async with crowd(url, path):
            assert [await answers(session, url, "/healthz") for _ in range(5)] == [200] * 5
            assert await answers(session, url, path) == 200
            assert await end(running) == 0
    assert "Too many open files" not in "".join(lines)
