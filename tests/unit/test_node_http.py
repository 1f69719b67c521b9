"""The node daemon's HTTP server."""

import asyncio

import pytest

from deviceplugin.http import HttpServer
from deviceplugin.metrics import Metrics

LIMIT_S = 20.0


async def test_a_slow_reader_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.http.SHUTDOWN_S", 0.05)
    asked = asyncio.Event()

    def explain() -> dict[str, str]:
        asked.set()
        return {"long": "x" * 2**26}

    server = HttpServer(Metrics(), list, explain, telemetry=lambda _history: {})
    _, writer = await asyncio.open_connection(*await server.start("127.0.0.1", 0), limit=1)
    writer.write(b"GET /explain HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        await asked.wait()
        await server.stop()
    writer.close()
