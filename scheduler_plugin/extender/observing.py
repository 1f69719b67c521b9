"""A second listener for probes and Prometheus: without TLS, and without a verb that could bind anything."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import structlog
from aiohttp import web

from kubeapi.addresses import split_address
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.extender.listening import Acceptor, open_listeners
from scheduler_plugin.extender.server import ExtenderService, make_open_app

if TYPE_CHECKING:
    import asyncio

SHUTDOWN_S = 2.0
"""The end waits so long for who is slow to read an answer."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serve_open_endpoints(service: ExtenderService, address: str | None) -> AsyncIterator[None]:
    """Serve /healthz, /readyz and /metrics while the context is open.

    Args:
        service: What the handlers work on.
        address: HOST:PORT; None for no such listener.

    Raises:
        SettingsError: the address cannot be had.
    """
    if address is None:
        yield
        return
    runner = web.AppRunner(make_open_app(service), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    protocol = cast("Callable[[], asyncio.Protocol]", runner.server)
    listening: list[Acceptor] = []
    try:
        host, port = split_address(address)
        try:
            for listener in await open_listeners(host or None, port):
                listening.append(Acceptor(listener, protocol, None))
                listening[-1].start()
        except OSError as error:
            raise SettingsError(f"metrics http {address!r}: {error.strerror or error}") from error
        bound_host, bound_port = listening[0].listener.getsockname()[:2]
        log.info("serving metrics", host=bound_host, port=bound_port)
        yield
    finally:
        for each in listening:
            each.close()
        await runner.cleanup()
