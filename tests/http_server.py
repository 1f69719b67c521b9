"""An HTTP server of a test: one handler for all requests, on loopback."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web


@asynccontextmanager
async def serving(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[str]:
    """Serve, and yield the address; `options` are those of aiohttp's runner."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context of a server that shows a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
