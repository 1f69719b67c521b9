"""The node daemon's HTTP server."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from pytest_mock import MockerFixture

from deviceplugin.http import HttpServer
from deviceplugin.metrics import Metrics

LIMIT_S = 20.0


async def test_a_slow_reader_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeapi.serving.GRACE_S", 0.05)
    asked = asyncio.Event()

    def explain() -> dict[str, str]:
        asked.set()
        return {"long": "x" * 2**26}

    server = HttpServer(Metrics(), list, explain, telemetry=lambda _history: {})
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        host, port, _ = await server.start(stack, "127.0.0.1:0")
        _, writer = await asyncio.open_connection(host, port, limit=1)
        writer.write(b"GET /explain HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
    writer.close()


@pytest.mark.parametrize(
    ("remote", "is_told"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("fd00::7", False),
        ("::ffff:10.0.0.7", False),
        (None, False),
    ],
)
async def test_only_this_machine_s_processes_are_told_which_pods_there_are(
    mocker: MockerFixture, *, remote: str | None, is_told: bool
) -> None:
    server = HttpServer(Metrics(), list, lambda: {"pod": "team-a/secret"}, telemetry=lambda _history: {})
    mocker.patch("aiohttp.web.BaseRequest.remote", property(lambda _: remote))
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        host, port, _ = await server.start(stack, "127.0.0.1:0")
        for path in ("/healthz", "/readyz", "/metrics", "/telemetry"):
            async with session.get(f"http://{host}:{port}{path}") as answer:
                assert answer.status == 200
        async with session.get(f"http://{host}:{port}/explain") as answer:
            said = await answer.text()
            assert (answer.status, "secret" in said) == ((200, True) if is_told else (403, False))
            assert is_told or "kubectl port-forward" in said
