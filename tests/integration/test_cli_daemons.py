"""`gpupack node` and `gpupack scheduler` as processes: they serve, say how they are, and stop when told."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from allocator.names import NODE_CARDS
from allocator.packing import read_node
from allocator.records import load_cards
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
from tests.yaml_text import read_yaml

GIB = "gpupack.io/gpu-memory-gib"
MOCK = os.environ.get("GPUPACK_NVML_MOCK", "")


__all__ = ["world"]


async def test_a_node(world):
    folder, api, kubelet = world
    async with (
        process(*node_command(folder, kubelet)) as (daemon, url, lines),
        aiohttp.ClientSession() as session,
    ):
        await until_ready(session, url)
        await until_is(lambda: used_units(api), (0, 0))
        uid = make_pod(api)
        await until_is(lambda: used_units(api), (5, 0))
        (record,) = kubelet.containers.values()
        assert record.envs["GPUPACK_MEMORY_MIB"] == str(5 * 1024)
        _, metrics = await status_of(session, f"{url}/metrics")
        promised = re.findall(r"^gpupack_card_promised_bytes\{.*\} (\S+)$", metrics, re.MULTILINE)
        assert [float(amount) for amount in promised] == [5 * 2**30, 0]
        status, explained = await status_of(session, f"{url}/explain")
        assert status == 200
        assert json.loads(explained)["not_ready"] == []
        assert uid in explained
        daemon.send_signal(signal.SIGHUP)
        # The other tests end it with SIGTERM.
        daemon.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(daemon.wait(), DEADLINE_S) == 0
    events = [re.search(r'event="?([^"=]+)"?( |$)', line) for line in lines]
    assert all(events), lines
    assert "level=error" not in "".join(lines)
    assert "Traceback" not in "".join(lines)
    # The effective settings are there, once.
    assert (
        len([line for line in lines if "unit_mib=1024" in line and "card_policy=fragmentation" in line]) == 1
    )


@contextmanager
def full_disk():
    with Path("/dev/full").open("wb", buffering=0) as device:
        yield device


@contextmanager
def pipe_that_nobody_reads():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


async def test_a_node_whose_log_goes_nowhere_serves_pods(world):
    folder, api, kubelet = world
    command = node_command(folder, kubelet, "--log-level", "debug")
    with pipe_that_nobody_reads() as stderr:
        async with (
            process(*command, stderr=stderr) as (daemon, url, _),
            aiohttp.ClientSession() as session,
        ):
            await until_ready(session, url)
            for name in ("p", "q"):
                make_pod(api, name)
            await until_is(
                lambda: [api.pod("default", name)["status"].get("phase") for name in ("p", "q")],
                ["Running", "Running"],
            )
            await until_ready(session, url)
            daemon.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(daemon.wait(), DEADLINE_S) == 0


async def test_a_scheduler_whose_log_goes_nowhere_answers(world):
    folder, _, _ = world
    arguments = ["scheduler", "--kubeconfig", folder / "kubeconfig", "--log-level", "debug"]
    with full_disk() as stderr:
        async with (
            process(*arguments, stderr=stderr) as (extender, url, _),
            aiohttp.ClientSession() as session,
        ):
            await until_ready(session, url)
            for _ in range(2):
                async with session.post(f"{url}/filter", data=b"rubbish") as answer:
                    assert answer.status == 400
            assert await status_of(session, f"{url}/readyz") == (200, "ok\n")
            extender.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(extender.wait(), DEADLINE_S) == 0


def lowest_free_file(pid):
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return min(set(range(len(used) + 1)) - used)


@pytest.mark.parametrize("command", ["node", "scheduler"])
async def test_without_a_file_descriptor_left_the_log_is_quiet(world, command):
    """asyncio tries 128 times a second then, and would log a traceback each time."""
    folder, _, kubelet = world
    arguments = {
        "node": node_command(folder, kubelet),
        "scheduler": ["scheduler", "--kubeconfig", folder / "kubeconfig"],
    }[command]
    async with process(*arguments) as (daemon, url, lines), aiohttp.ClientSession() as session:
        await until_ready(session, url)
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (lowest_free_file(daemon.pid), limits[1]))
        address = "127.0.0.1", int(url.rpartition(":")[2])
        with socket.create_connection(address), socket.create_connection(address):
            await until_is(lambda: any("no connection can be taken" in line for line in lines), expected=True)
            before = len(lines)
            await asyncio.sleep(2.5)  # two more of asyncio's tries
            assert [line for line in lines[before:] if "Traceback" in line or "accept" in line] == []
            assert len(lines) - before < 50
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        await until_ready(session, url)
        daemon.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(daemon.wait(), DEADLINE_S) == 0


@pytest.mark.skipif(not MOCK, reason="GPUPACK_NVML_MOCK names no folder with nvml-mock's libnvidia-ml.so.1")
@pytest.mark.parametrize("name", ["h100", "t4"])
async def test_a_node_with_cards_of_the_driver(world, name):
    folder, api, kubelet = world
    profile = Path(MOCK) / "profiles" / f"{name}.yaml"
    document = read_yaml(profile.read_text())
    memory = document["device_defaults"]["memory"]
    uuids = [device["uuid"] for device in document["devices"]]
    units = (memory["total_bytes"] - memory["reserved_bytes"]) >> 30
    mock = {"LD_LIBRARY_PATH": MOCK, "MOCK_NVML_CONFIG": str(profile)}
    async with process(*node_command(folder, kubelet, gpus=("nvml",)), **mock) as (_, _, lines):

        async def said():
            node = api.node(NODE)
            words = read_node(node["status"]["allocatable"])
            devices = node["status"]["allocatable"].get(GIB)
            return words and (words.sizes, words.used, words.layout.unit_mib, devices)

        await until_is(said, ((units,) * len(uuids), (0,) * len(uuids), 1024, str(units * len(uuids))))
        inventory = load_cards(api.node(NODE)["metadata"]["annotations"][NODE_CARDS])
        assert [(card.uuid, card.model) for card in inventory] == [
            (uuid, document["device_defaults"]["name"]) for uuid in uuids
        ]
        make_pod(api)

        async def used():
            words = read_node(api.node(NODE)["status"]["allocatable"])
            return {uuid: units for uuid, units in zip(uuids, words.used, strict=True) if units}

        async def running():
            return len(kubelet.containers)

        await until_is(running, 1)
        (record,) = kubelet.containers.values()
        await until_is(used, {record.envs["NVIDIA_VISIBLE_DEVICES"]: 5})
    assert "Traceback" not in "".join(lines)


async def test_a_scheduler(world):
    folder, _, _ = world
    arguments = ["scheduler", "--kubeconfig", folder / "kubeconfig"]
    async with process(*arguments) as (extender, url, lines), aiohttp.ClientSession() as session:
        await until_ready(session, url)
        assert (await status_of(session, f"{url}/healthz"))[0] == 200
        assert "gpupack_" in (await status_of(session, f"{url}/metrics"))[1]
        async with session.post(f"{url}/filter", data=b"rubbish") as answer:
            assert answer.status == 400
            assert "\n" not in (await answer.text()).strip()
        extender.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(extender.wait(), DEADLINE_S) == 0
    assert "Traceback" not in "".join(lines)


CALL = b"POST /filter HTTP/1.1\r\nHost: x\r\n"
CONTINUE = b"Expect: 100-continue\r\n"
"""Has the extender say that it has the head and waits for the body."""


RUBBISH = (
    ([b"GET / HTTPS/9\r\n\r\n"], b"400", 'level=warning event="Error handling request from 127.0.0.1: '),
    ([CALL + b"Content-Length: -5\r\n\r\n"], b"400", "Invalid character in Content-Length"),
    ([CALL + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n"], b"400", "Invalid character in chunk size"),
    (
        [CALL + CONTINUE + b"Transfer-Encoding: chunked\r\n\r\n", b"ZZ\r\n", None],
        None,
        "body cannot be read: ",
    ),
    (
        [CALL + CONTINUE + b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\n", b"rubbish"],
        b"400",
        "Can not decode content-encoding: gzip; allowed: a whole one, encoded as its headers say",
    ),
    ([CALL + CONTINUE + b"Content-Length: 9\r\n\r\n", b"{", None], None, "body cannot be read: "),
)
"""What is sent, in parts; the status of the answer, where there is one; and what the log says."""


async def test_rubbish_on_http_is_one_line_of_the_log(world):
    folder, _, _ = world
    arguments = ["scheduler", "--kubeconfig", folder / "kubeconfig"]
    async with process(*arguments) as (extender, url, lines), aiohttp.ClientSession() as session:
        await until_ready(session, url)
        began = before = len(lines)
        for sent, status, said in RUBBISH:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            for part in sent:
                if part is not None:
                    writer.write(part)
                    await writer.drain()
                if part is not None and CONTINUE in part:
                    # The rest comes by itself.
                    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            if status is None:
                writer.close()
            else:
                assert (await reader.readline()).split()[1] == status

            async def told(said=said, before=before):
                return said in "".join(lines[before:])

            await until_is(told, expected=True)
            writer.close()
            before = len(lines)
        extender.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(extender.wait(), DEADLINE_S) == 0
    assert len(lines) - began == len(RUBBISH), lines[began:]


async def test_a_scheduler_without_api_server_is_alive_and_not_ready(world):
    folder, api, _ = world
    await api.stop()
    arguments = ["scheduler", "--kubeconfig", folder / "kubeconfig"]
    async with process(*arguments) as (_, url, lines), aiohttp.ClientSession() as session:

        async def alive():
            return (await status_of(session, f"{url}/healthz"))[0]

        await until_is(alive, 200)
        assert (await status_of(session, f"{url}/readyz"))[0] == 503
    assert "Traceback" not in "".join(lines)
