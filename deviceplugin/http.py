"""/healthz, /readyz, /metrics, /explain and /telemetry."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from allocator.errors import shown
from deviceplugin.errors import NodeSettingsError
from deviceplugin.metrics import Metrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"

PLACES: Final = web.AppKey("places", str)
"""What is served, in words."""

SHUTDOWN_S: Final = 2.0
"""The daemon's end waits so long, and once more, for who is slow to send a request or to read an answer."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Tells probes, Prometheus and people how the daemon is.

    Args:
        metrics: for /metrics.
        not_ready: why the node cannot serve pods yet; empty when it can.
        explain: everything of interest to a person, as JSON values.
        ends: why the process is of no use any more and must end; None while it is.
        telemetry: what the cards do, as JSON values; with its course over the last minutes for True.
    """

    def __init__(
        self,
        metrics: Metrics,
        not_ready: Callable[[], list[str]],
        explain: Callable[[], dict[str, Any]],
        ends: Callable[[], str | None] = lambda: None,
        *,
        telemetry: Callable[[bool], dict[str, Any]],
    ) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._explain = explain
        self._ends = ends
        self._telemetry = telemetry
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen.

        Args:
            host: address or name; empty for every address.
            port: 0 for any free one.

        Returns:
            The address and the port it listens on.

        Raises:
            SettingsError: the address cannot be had.
        """
        app = web.Application(middlewares=[_explain_unknown_paths])
        routes = [
            web.get("/healthz", self._on_healthz),
            web.get("/readyz", self._on_readyz),
            web.get("/metrics", self._on_metrics),
            web.get("/explain", self._on_explain),
            web.get("/telemetry", self._on_telemetry),
        ]
        app[PLACES] = ", ".join(f"{route.method} {route.path}" for route in routes)
        app.add_routes(routes)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host or None, port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise NodeSettingsError((f"--http {host}:{port}: {error.strerror or error}",)) from error
        address = self._runner.addresses[0]
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Stop listening."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _on_healthz(self, _request: web.Request) -> web.Response:
        """The event loop turns, or this would not answer; and the process has not to be another one."""
        reason = self._ends()
        if reason is not None:
            return web.Response(status=503, text=f"{reason}\n")
        return web.Response(text="ok\n")

    async def _on_readyz(self, _request: web.Request) -> web.Response:
        reasons = self._not_ready()
        if reasons:
            return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))
        return web.Response(text="ok\n")

    async def _on_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.write_text(), headers={"Content-Type": TEXT})

    async def _on_explain(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._explain()), content_type="application/json")

    async def _on_telemetry(self, request: web.Request) -> web.Response:
        told = self._telemetry(request.query.get("history", "1") != "0")
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")


@web.middleware
async def _explain_unknown_paths(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say what is served to whoever asks for something else."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        error.text = f"{request.method} {shown(request.raw_path)}; allowed: {request.app[PLACES]}\n"
        raise
