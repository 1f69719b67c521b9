"""/healthz, /readyz, /metrics, /explain and /telemetry."""

import ipaddress
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from aiohttp import web

from deviceplugin.errors import NodeSettingsError
from deviceplugin.metrics import Metrics
from kubeapi.serving import ServedAddress, SharedAnswer, make_process_app, start_serving

NOT_EXPLAINED: Final = (
    "/explain names every pod of the node, so it is answered to this machine's own processes alone; "
    "allowed: kubectl port-forward to the daemon's pod, and then localhost\n"
)


class HttpServer:
    """Tells probes, Prometheus and people how the daemon is.

    Args:
        not_ready: why the node cannot serve pods yet; empty when it can.
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
        self._ends = ends

        async def write_explanation() -> bytes:
            return msgspec.json.encode(explain())

        async def write_telemetry() -> bytes:
            return msgspec.json.encode(telemetry(True))

        async def write_newest() -> bytes:
            return msgspec.json.encode(telemetry(False))

        self._explanation = SharedAnswer(write_explanation)
        self._course = SharedAnswer(write_telemetry)
        self._newest = SharedAnswer(write_newest)

    async def start(self, stack: AsyncExitStack, address: str) -> ServedAddress:
        """Listen until a stack ends.

        Raises:
            SettingsError: the address cannot be had.
        """
        app = make_process_app(
            lambda: "\n".join(self._not_ready()),
            self._metrics.write_text,
            web.get("/explain", self._on_explain),
            web.get("/telemetry", self._on_telemetry),
            broken=lambda: self._ends() or "",
        )
        return await start_serving(stack, app, address, lambda text: NodeSettingsError((text,)))

    async def _on_explain(self, request: web.Request) -> web.Response:
        if not _is_of_this_machine(request.remote):
            return web.Response(text=NOT_EXPLAINED, status=403)
        return web.Response(body=await self._explanation.get(), content_type="application/json")

    async def _on_telemetry(self, request: web.Request) -> web.Response:
        shared = self._newest if request.query.get("history", "1") == "0" else self._course
        return web.Response(body=await shared.get(), content_type="application/json")


def _is_of_this_machine(remote: str | None) -> bool:
    """Tell whether a peer came over loopback, which in a pod is its own: `kubectl port-forward` does."""
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
