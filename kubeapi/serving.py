"""Serves pages over HTTP for as long as a process runs: the server of all our processes.

Its bounds are in `listening`: connections, and the time that clients may take. Here are those of the work:

- Three quarters as many requests are answered at a time as there may be connections. Further ones get 429,
  but for health, and for what a `FrontServer` reads.
- Expensive answers are made once, as a `SharedAnswer`, for all concurrent requests.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Final, NamedTuple, Protocol, cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from kubeapi.addresses import split_address
from kubeapi.errors import shorten
from kubeapi.listening import (
    MOST_CONNECTIONS,
    Acceptor,
    Connection,
    Connections,
    limit_connections,
    open_listeners,
)

GRACE_S: Final = 2.0
"""How long the end waits for requests under way, and for clients that are slow to read an answer."""

HEALTH: Final = frozenset({"/healthz", "/readyz"})

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SHARED_PARTS: Final = 4
"""Making one shared answer takes at most one part in so many of the time."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FrontServer(Protocol):
    """Reads connections before aiohttp does, and leaves to it what it does not know."""

    def make_protocol(
        self, connection: Connection, other: Callable[[], asyncio.Protocol]
    ) -> asyncio.Protocol: ...

    async def close(self) -> None: ...


class ServedAddress(NamedTuple):
    """Where a server listens; an IPv6 host is in brackets."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


async def start_serving(
    stack: AsyncExitStack,
    app: web.Application,
    address: str,
    make_error: Callable[[str], Exception],
    *,
    option: str = "--http",
    tls: ssl.SSLContext | None = None,
    grace_s: float | None = None,
    front: FrontServer | None = None,
    handler_cancellation: bool = False,
    most_connections: int = MOST_CONNECTIONS,
) -> ServedAddress:
    """Listen until a stack ends.

    Args:
        address: HOST:PORT that was checked; port 0 is any free one.
        make_error: Makes the error for an address that cannot be had.
        option: Whose value the address is.
        front: Reads connections first; None: aiohttp reads all.
        most_connections: Connections at most; fewer if the process may open few files.
    """
    grace_s = GRACE_S if grace_s is None else grace_s

    def make_protocol(connection: Connection) -> asyncio.Protocol:
        return http() if front is None else front.make_protocol(connection, http)

    connections = Connections(make_protocol, limit_connections(most_connections))
    app.middlewares.insert(0, _explain_unknown_paths)
    app.middlewares.append(_make_guard(connections))
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=grace_s,
        handler_cancellation=handler_cancellation,
    )
    await runner.setup()
    http = cast("Callable[[], asyncio.Protocol]", runner.server)
    acceptors: list[Acceptor] = []

    async def stop() -> None:
        for acceptor in acceptors:
            acceptor.close()
        await connections.close(grace_s)
        if front is not None:
            await front.close()
        await runner.cleanup()

    stack.push_async_callback(stop)
    host, port = split_address(address)
    try:
        for listener in await open_listeners(host or None, port):
            acceptors.append(Acceptor(listener, connections, tls))
            acceptors[-1].start()
    except OSError as error:
        raise make_error(f"{option} {address!r}: {error.strerror or error}") from error
    host, port = acceptors[0].listener.getsockname()[:2]
    return ServedAddress(f"[{host}]" if ":" in host else host, port, "http" if tls is None else "https")


def _make_guard(connections: Connections) -> Middleware:
    most = max(1, connections.most * 3 // 4)
    under_way = 0

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request once it is here whole; until then its connection may be ended."""
        nonlocal under_way
        if request.body_exists:
            await _read_body(request)
        connection = connections.by_protocol.get(request.protocol)
        with connection.answering() if connection is not None else nullcontext():
            if request.path not in HEALTH and under_way >= most:
                raise web.HTTPTooManyRequests(
                    text=f"{most} requests are being answered; allowed: no more\n",
                    headers={"Retry-After": "1"},
                )
            # A request counts to its end, also where its client goes away.
            under_way += 1
            try:
                return await handler(request)
            finally:
                under_way -= 1

    return guard


async def _read_body(request: web.Request) -> None:
    try:
        await request.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        allowed = "allowed: a whole one, encoded as its headers say"
        refusal = web.HTTPBadRequest(text=f"body cannot be read: {shorten(str(error))}; {allowed}\n")
        # aiohttp ends the connection when it comes to the rest of such a body, but does not say so.
        refusal.force_close()
        raise refusal from error


@web.middleware
async def _explain_unknown_paths(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer requests for unknown paths with a list of what is served."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        routes = (route for route in request.app.router.routes() if route.method != "HEAD")
        served = ", ".join(f"{each.method} {each.resource.canonical}" for each in routes if each.resource)
        asked = json.dumps(shorten(request.raw_path, 64), ensure_ascii=False)
        error.text = f"{request.method} {asked}; allowed: {served}\n"
        raise


class SharedAnswer:
    """Makes one answer for all concurrent requests, and pauses before it makes the next one.

    An answer is never older than its question.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[bytes]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._make = make
        self._clock = clock
        self._sleep = sleep
        self._rested_at = float("-inf")
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Wait for the next answer; if making it fails, all waiting callers get the error."""
        if self._next is None:
            self._next = asyncio.create_task(self._make_next())
            self._next.add_done_callback(_read_failure)
        return await asyncio.shield(self._next)

    async def _make_next(self) -> bytes:
        async with self._turn:
            if (rest_s := self._rested_at - self._clock()) > 0:
                await self._sleep(rest_s)
            # Whoever asks from here on gets a newer one.
            self._next = None
            began = self._clock()
            try:
                return await self._make()
            finally:
                now = self._clock()
                self._rested_at = now + (SHARED_PARTS - 1) * (now - began)


def _read_failure(task: asyncio.Task[bytes]) -> None:
    """Retrieve a task's exception, in case no caller is left to see it."""
    if not task.cancelled():
        task.exception()


def serve_shared(
    path: str, make: Callable[[], Awaitable[bytes]], content_type: str = "application/json"
) -> web.RouteDef:
    """Serve what costs something to make, at GET of a path."""
    shared = SharedAnswer(make)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=await shared.get(), headers={"Content-Type": content_type})

    return web.get(path, answer)


def serve_health(unready: Callable[[], str], broken: Callable[[], str] = lambda: "") -> list[web.RouteDef]:
    """Serve /healthz and /readyz.

    Args:
        unready: Why the process cannot work now; empty if it can.
        broken: Why it never will again and must be restarted; empty if nothing is wrong.
    """

    def answer_for(why: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            reason = why()
            return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

        return answer

    return [web.get("/healthz", answer_for(broken)), web.get("/readyz", answer_for(unready))]


def make_process_app(
    unready: Callable[[], str],
    write_metrics: Callable[[], Awaitable[bytes]],
    *others: web.RouteDef,
    broken: Callable[[], str] = lambda: "",
) -> web.Application:
    """Make an application with health as in `serve_health`, metrics, and other pages of a process."""
    app = web.Application()
    app.add_routes([*serve_health(unready, broken), serve_metrics(write_metrics), *others])
    return app


def serve_metrics(make: Callable[[], Awaitable[bytes]]) -> web.RouteDef:
    return serve_shared("/metrics", make, METRICS_TYPE)
