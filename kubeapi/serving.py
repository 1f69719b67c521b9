"""Serves pages over HTTP for as long as a process runs."""

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack

from aiohttp import web

from kubeapi.addresses import split_address


async def start_serving(
    stack: AsyncExitStack,
    runner: web.AppRunner,
    address: str,
    make_error: Callable[[str], Exception],
    tls: ssl.SSLContext | None = None,
) -> tuple[str, int]:
    """Listen until a stack ends.

    Args:
        stack: Its end stops the runner.
        runner: Not set up yet.
        address: HOST:PORT that was checked; port 0 is any free one.
        make_error: Makes the error for an address that cannot be had.
        tls: None for plain HTTP.

    Returns:
        The address, an IPv6 one in brackets, and the port.
    """
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, port = split_address(address)
    try:
        await web.TCPSite(runner, host or None, port, ssl_context=tls).start()
    except OSError as error:
        raise make_error(f"http {address!r}: {error.strerror or error}") from error
    host, port = runner.addresses[0][:2]
    return (f"[{host}]" if ":" in host else host), port
