"""`gpupack top` with what cards do: asked of the node daemons' pods through the API server."""

import asyncio
import json
import re

import pytest
from aiohttp import web

from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.api.telemetry import name_throttle_reasons
from gpupack.embedded import EmbeddedCluster
from gpupack.inventory.rendering import RenderOptions
from gpupack.inventory.watch_rows import watch
from tests.integration.telemetry_world import FOREIGN_PODS, SYSTEM_PODS, cluster, daemon_pod, foreign_pod
from tests.integration.top_world import run
from tests.running import background

__all__ = ["cluster", "run"]


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
    assert lines[-1].endswith("16/176 in use, whole cards free: 2, largest free card: 44")
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
    assert cluster.asked[1][0] == SYSTEM_PODS


@pytest.mark.parametrize("wrong", FOREIGN_PODS)
@pytest.mark.parametrize("last", [True, False])
def test_a_pod_of_somebody_else_is_not_asked(cluster, run, tmp_path, wrong, last):
    cluster.pods.insert(2 if last else 0, foreign_pod(wrong))
    _, out, _ = cluster.run(run, tmp_path, "-o", "wide")
    assert "302/350W" in out
    assert [path for path, _ in cluster.asked if "foreign" in path] == []


def test_an_installation_elsewhere_is_named_by_its_queue(cluster, run, tmp_path):
    """Nothing answers for that namespace, so that the line says what was asked."""
    cluster.forbidden = ("/namespaces/gpu/pods",)
    _, out, _ = cluster.run(run, tmp_path, "-o", "wide", "--queue-service", "gpu/gpupack-queue")
    assert "no right: /api/v1/namespaces/gpu/pods" in out.splitlines()[-1]
    assert [path for path, _ in cluster.asked if path == SYSTEM_PODS] == []


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


def test_a_daemon_that_answers_something_else(cluster, run, tmp_path):
    """One daemon takes the others' values nowhere; see also test_dashboard_telemetry.py."""
    cluster.answers = {"a": web.Response(body=b"soup")}
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


def test_real_daemons_of_a_whole_cluster(run):
    """From the sampling in each daemon to the table: a process runs on one card, and others idle."""

    async def ask() -> tuple[int, str, str]:
        async with EmbeddedCluster({"node-a": "2xt4", "node-b": "4xl40s"}) as whole:
            source = whole.nodes["node-a"].gpus
            source.set_used(source.cards()[1].uuid, 1024, [GpuProcess(7, 1024)])
            daemons = [node.daemon for node in whole.nodes.values()]
            for daemon in daemons:
                await daemon._sampler._once()
            return await asyncio.to_thread(run, "--kubeconfig", whole.kubeconfig, "-o", "wide")

    status, out, err = asyncio.run(ask())
    assert (status, err) == (0, "")
    # The daemons of this process log to the same place.
    head, *lines = out[out.index("NODE  ") :].splitlines()
    at, until = head.index("UTIL"), head.index("MODEL")
    told = [line[at:until].split() for line in lines[:6]]
    idle = {"T4": ["0%", "0%", "32C", "10/70W", "210MHz", "none"], "L40S": ["0%", "0%", "32C", "25/350W"]}
    assert told[0] == idle["T4"]
    assert [row[:4] for row in told[2:]] == [idle["L40S"]] * 4
    assert int(told[1][0].rstrip("%")) >= 30
    assert told[1][4:] == ["1590MHz", "none"]


async def test_watching_asks_again(capsys, monkeypatch):
    """The table comes first, then what cards do, then what they do later."""
    monkeypatch.setattr("gpupack.inventory.watch_rows.TELEMETRY_S", 0.05)
    monkeypatch.setattr("gpupack.inventory.watch_rows.LOOK_S", 0.05)
    seen = ""

    async def until(text: str) -> None:
        nonlocal seen
        async with asyncio.timeout(60):
            while text not in seen:
                seen += capsys.readouterr().out
                await asyncio.sleep(0.02)

    async with EmbeddedCluster({"node-a": "2xt4"}) as whole:
        look = RenderOptions("wide")
        async with background(watch(whole.kubeconfig, (), look, telemetry=True, gap_s=0.01)):
            await until("10/70W")
            assert seen.index("NODE  ") < seen.index("UTIL")
            source = whole.nodes["node-a"].gpus
            source.set_used(source.cards()[0].uuid, 1024, [GpuProcess(7, 1024)])
            await whole.nodes["node-a"].daemon._sampler._once()
            await until("1590MHz")


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (0b0_0000_0001, "none"),
        (0b0_0010_0101, "sw_power_cap,sw_thermal_slowdown"),
        (0b0_0110_1100, "hw_slowdown,hw_thermal_slowdown +2"),
        (0b1_1111_1111, "hw_slowdown,hw_thermal_slowdown +6"),
    ],
)
def test_of_many_reasons_two_are_named(cluster, run, tmp_path, mask, shown):
    now = {"throttle_reasons": name_throttle_reasons(mask)}
    cluster.answers = {"a": web.json_response({"cards": [{"cards": ["GPU-a-0"], "now": now}]})}
    _, out, _ = cluster.run(run, tmp_path, "-o", "wide")
    head, line = out.splitlines()[:2]
    assert line[head.index("SLOWED") : head.index("MODEL")].rstrip() == shown
