"""`gpupack top` with what cards do: asked of the node daemons' pods through the API server."""

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from allocator.packing import NodeWords
from allocator.records import CardRecord, dump_cards
from deviceplugin.gpus.api.source import GpuCard, GpuSample
from deviceplugin.gpus.api.telemetry import CardTelemetry
from deviceplugin.http import HttpServer
from deviceplugin.metrics import Metrics
from deviceplugin.monitoring.telemetry import TelemetryHistory
from tests.integration.cli_world import in_process
from tests.integration.top_world import CONFIG, node

BUSY = CardTelemetry(
    utilization_percent=87.0,
    memory_utilization_percent=41.0,
    temperature_c=66.0,
    power_w=301.6,
    power_limit_w=350.0,
    sm_clock_mhz=2190.0,
    memory_clock_mhz=9001.0,
    throttle_reasons=("sw_power_cap",),
)
IN_PART = CardTelemetry(temperature_c=31.0, throttle_reasons=("gpu_idle",))

PODS = "/api/v1/pods"
SYSTEM_PODS = "/api/v1/namespaces/gpupack-system/pods"
SELECTOR = "app.kubernetes.io/name in (gpupack-node,gpupack-node-dra)"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `gpupack top` in this process; returns its exit status, stdout and stderr."""
    return in_process(monkeypatch, capsys, "top")


def gpu_node(name: str) -> dict[str, Any]:
    cards = [CardRecord(f"GPU-{name}-{at}", at, "NVIDIA L40S", 45459, 0, True) for at in range(2)]
    return node(name, NodeWords.of(1024, [44, 44], [8, 0], 1_763_000_000_000), cards=dump_cards(cards))


def daemon_pod(name: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": f"gpupack-node-{name}", "namespace": "gpupack-system"},
        "spec": {"nodeName": name},
        "status": {"phase": phase},
    }


def measure(name: str, *told: CardTelemetry) -> TelemetryHistory:
    history = TelemetryHistory(5.0, lambda: 0.0)
    cards = [GpuCard(at, f"GPU-{name}-{at}", "NVIDIA L40S", 45459, 0, 0, "", at) for at in range(len(told))]
    history.add(
        cards, [GpuSample(card.uuid, 0, (), telemetry=each) for card, each in zip(cards, told, strict=True)]
    )
    return history


@dataclass
class Cluster:
    """An API server with nodes, the pods of their daemons and the way to these.

    Attributes:
        histories: what the daemon of each node has measured.
        pods: of daemons.
        forbidden: paths, or parts of them, that may not be read.
        answers: what a daemon answers in place of its own words.
        asked: paths of the requests with their queries.
    """

    histories: dict[str, TelemetryHistory]
    pods: list[dict[str, Any]]
    forbidden: tuple[str, ...] = ()
    answers: dict[str, web.Response] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query)))
        if any(request.path.endswith(part) for part in self.forbidden):
            return web.json_response(
                {
                    "kind": "Status",
                    "code": 403,
                    "reason": "Forbidden",
                    "message": f"no right: {request.path}",
                },
                status=403,
            )
        if request.path == "/api/v1/nodes":
            return web.json_response(
                {"kind": "NodeList", "metadata": {}, "items": [gpu_node(name) for name in self.histories]}
            )
        if request.path in (PODS, SYSTEM_PODS):
            daemons = request.query.get("labelSelector") == SELECTOR
            return web.json_response(
                {"kind": "PodList", "metadata": {}, "items": self.pods if daemons else []}
            )
        name = request.path.removeprefix(f"{SYSTEM_PODS}/gpupack-node-").removesuffix("/proxy/telemetry")
        if name in self.answers:
            return self.answers.pop(name)
        if name not in self.histories:
            return web.json_response({"kind": "Status", "message": "no such path"}, status=404)
        return await self.forward(name, request)

    async def forward(self, name: str, request: web.Request) -> web.Response:
        """Ask the daemon's own HTTP server, as the API server does."""
        server = HttpServer(
            Metrics(), list, dict, telemetry=lambda history: self.histories[name].explain(history=history)
        )
        host, port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            f"GET /telemetry?{request.query_string} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b" 200 " in head
        writer.close()
        await server.stop()
        return web.Response(body=body, content_type="application/json")

    @contextlib.asynccontextmanager
    async def serve(self, tmp_path):
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            config = tmp_path / "kubeconfig"
            server = f"http://127.0.0.1:{runner.addresses[0][1]}"
            config.write_text(CONFIG.format(name="one", server=server, current="one"))
            yield str(config)
        finally:
            await runner.cleanup()

    def run(self, run, tmp_path, *arguments: str) -> tuple[int, str, str]:
        async def ask() -> tuple[int, str, str]:
            async with self.serve(tmp_path) as config:
                return await asyncio.to_thread(run, "--kubeconfig", config, *arguments)

        return asyncio.run(ask())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(
        {"a": measure("a", BUSY, IN_PART), "b": measure("b", IN_PART, IN_PART)},
        [daemon_pod("a"), daemon_pod("b")],
    )


def test_wide(cluster, run, tmp_path):
    status, out, err = cluster.run(run, tmp_path, "-o", "wide")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    at = lines[0].index("UTIL")
    assert lines[0][:at].split() == ["NODE", "STATUS", "CARD", "UNIT", "USED", "STATE", "MEMORY"]
    assert [line[at:] for line in lines[:-1]] == [
        "UTIL  BW   TEMP  POWER     CLOCK    SLOWED BY     MODEL        UUID",
        "87%   41%  66C   302/350W  2190MHz  sw_power_cap  NVIDIA L40S  GPU-a-0",
        "-     -    31C   -         -        none          NVIDIA L40S  GPU-a-1",
        "-     -    31C   -         -        none          NVIDIA L40S  GPU-b-0",
        "-     -    31C   -         -        none          NVIDIA L40S  GPU-b-1",
    ]
    assert lines[-1].endswith("16/176 in use, whole cards free: 2, largest request: 44")
    assert all(query == {"history": "0"} for path, query in cluster.asked if "/proxy/" in path)


def test_json(cluster, run, tmp_path):
    status, out, _ = cluster.run(run, tmp_path, "-o", "json", "--telemetry")
    cards = [card["telemetry"] for record in json.loads(out) for card in record["cards"]]
    assert status == 0
    assert cards[0] == {
        "utilization_percent": 87.0,
        "memory_utilization_percent": 41.0,
        "temperature_c": 66.0,
        "power_w": 301.6,
        "power_limit_w": 350.0,
        "sm_clock_mhz": 2190.0,
        "memory_clock_mhz": 9001.0,
        "throttle_reasons": ["sw_power_cap"],
    }
    assert cards[1:] == [{"temperature_c": 31.0, "throttle_reasons": ["gpu_idle"]}] * 3


@pytest.mark.parametrize(
    "arguments", [(), ("-o", "json"), ("-o", "wide", "--no-telemetry"), ("--pods", "-o", "wide")]
)
def test_nobody_else_asks_the_daemons(cluster, run, tmp_path, arguments):
    status, out, _ = cluster.run(run, tmp_path, *arguments)
    assert status == 0
    assert "telemetry" not in out
    assert [path for path, _ in cluster.asked if "/proxy/" in path] == []


def test_the_system_namespace_is_enough(cluster, run, tmp_path):
    cluster.forbidden = ("/api/v1/pods",)
    _, out, _ = cluster.run(run, tmp_path, "-o", "wide")
    assert "302/350W" in out
    assert [path for path, _ in cluster.asked][1:3] == [PODS, SYSTEM_PODS]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"forbidden": ("/pods",)}, "what cards do is not known: .*no right: /api/v1/namespaces/.*"),
        (
            {"forbidden": ("/telemetry",)},
            r"what cards do is not known of a and 1 more nodes: .*no right: .*proxy/telemetry",
        ),
        ({"pods": [daemon_pod("b")]}, "what cards do is not known of a: no pod of its daemon runs"),
        (
            {"pods": [daemon_pod("a", "Pending"), daemon_pod("b")]},
            "what cards do is not known of a: no pod of its daemon runs",
        ),
    ],
)
def test_what_is_not_known_is_said_in_a_line(cluster, run, tmp_path, change, line):
    for name, value in change.items():
        setattr(cluster, name, value)
    status, out, err = cluster.run(run, tmp_path, "-o", "wide")
    assert (status, err) == (0, "")
    assert re.fullmatch(line, out.splitlines()[-1]), out
    assert out.splitlines()[1].startswith("a     Ready   0     1 GiB  ▋░░░ 8/44  ok")
    status, out, err = cluster.run(run, tmp_path, "-o", "json", "--telemetry")
    assert (status, len(json.loads(out))) == (0, 2)
    assert re.fullmatch(line, err.strip())


@pytest.mark.parametrize(
    "body", [b"soup", b"[]", b'{"cards": [{"cards": ["GPU-a-0"], "now": {"power_w": "much"}}]}', b"\xff"]
)
def test_a_daemon_that_answers_something_else(cluster, run, tmp_path, body):
    """One daemon takes the others' values nowhere."""
    cluster.answers = {"a": web.Response(body=body)}
    status, out, _ = cluster.run(run, tmp_path, "-o", "wide")
    assert status == 0
    assert out.splitlines()[-1].startswith("what cards do is not known of a: ")
    assert "31C" in out


def test_words_of_a_daemon_leave_the_terminal_alone(cluster, run, tmp_path):
    told = {"cards": [{"cards": ["GPU-a-0"], "now": {"throttle_reasons": ["\x1b[31mred"]}}]}
    cluster.answers = {"a": web.json_response(told)}
    _, out, _ = cluster.run(run, tmp_path, "-o", "wide")
    assert "\x1b" not in out
    assert "red" in out


@pytest.mark.parametrize("arguments", [(), ("-o", "wide", "--pods")])
def test_it_is_asked_for_where_it_can_be_shown(run, arguments):
    status, _, err = run("--telemetry", *arguments)
    assert (status, "--telemetry is for -o wide without --pods, and for -o json" in err) == (2, True)
