"""POST and PATCH requests on their own connections, for processes that write once for every pod.

Through aiohttp such a request costs several times what it does: URL, headers, timers and streams are objects
made for it alone. Here it is one write, and httptools reads the answer. No proxy is spoken to.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import httptools
from yarl import URL

from kubeapi.credentials import Credentials, RequestCredentials
from kubeapi.errors import TimedOut, Unreachable, describe_unreachable, make_error
from kubeapi.impersonation import Headers
from kubeapi.streams import enable_keepalive

if TYPE_CHECKING:
    from socket import socket

CLOSE_UNUSED_AFTER_S: Final = 15.0
"""A connection that was not used for so long is closed: the other side may be about to do so."""


@dataclass(frozen=True, slots=True)
class PostTarget:
    """Where connections go to; targets that differ in anything have connections of their own."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None


@dataclass(frozen=True, slots=True)
class PostReply:
    """An answer.

    Attributes:
        retry_after: Value of the header of that name, None if there is none.
    """

    status: int
    body: bytes
    retry_after: str | None


class NotSentError(Exception):
    """Raised where there was no connection for a request."""


class PostClient:
    """Sends POST and PATCH requests with a body to one API server.

    Attributes:
        methods: What it sends.
    """

    methods: Final = frozenset({"POST", "PATCH"})

    def __init__(self, credentials: Credentials, headers: Headers, most: int, connect_s: float) -> None:
        self._credentials = credentials
        self._url = URL(credentials.server)
        # An IPv6 address keeps its brackets.
        headers = (("Host", self._url.raw_authority), *headers)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._connections = ConnectionPool(most, connect_s)

    async def send(
        self,
        method: str,
        path: str,
        data: bytes,
        content_type: str,
        proof: RequestCredentials,
        *,
        within_s: float,
        ends: float,
    ) -> bytes:
        """Send one request.

        Args:
            path: From the root, with the query, encoded.
            ends: When it has to be over, on the event loop's clock.

        Raises:
            KubeApiError: as of `KubeClient`.
        """
        what = f"{method} {path}"
        token = f"Authorization: {proof.authorization}\r\n" if proof.authorization else ""
        request = (
            f"{method} {self._url.raw_path.rstrip('/')}{path} HTTP/1.1\r\n{self._headers}{token}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode()
        target = PostTarget(
            self._url.host or "",
            self._url.port or 0,
            proof.tls,
            self._credentials.tls_server_name,
        )
        try:
            reply = await self._connections.send(target, request + data, ends)
        except NotSentError as error:
            raise Unreachable(f"{what}: {self._credentials.server} {error}") from error
        except TimeoutError as error:
            raise TimedOut(f"{what}: no answer within {within_s:g} s") from error
        except OSError as error:
            raise Unreachable(f"{what}: {error or type(error).__name__}", maybe_done=True) from error
        if not 200 <= reply.status < 300:  # noqa: PLR2004
            raise make_error(reply.status, reply.body, what=what, retry_after=reply.retry_after)
        return reply.body

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._connections.close()


def make_post_client(
    credentials: Credentials, headers: Headers, most: int, connect_s: float
) -> PostClient | None:
    """Make a `PostClient`, None if a proxy or a password in the URL is left to aiohttp."""
    if credentials.proxy is not None or URL(credentials.server).user is not None:
        return None
    return PostClient(credentials, headers, most, connect_s)


MakePosts = Callable[[Credentials, Headers, int, float], PostClient | None]


class ConnectionPool:
    """Sends requests on kept connections, each by itself on one of them.

    Args:
        most: Requests under way at most; others wait, for a connection costs both sides a TLS handshake.
    """

    def __init__(self, most: int, connect_s: float) -> None:
        self._turn = asyncio.Semaphore(most)
        self._connect_s = connect_s
        self._target: PostTarget | None = None
        self._idle: list[tuple[float, _PooledConnection]] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(self, target: PostTarget, request: bytes, ends: float) -> PostReply:
        """Send a request, and read its answer until `ends` on the event loop's clock.

        Raises:
            NotSentError: nothing was sent.
            TimeoutError: it was sent, and no answer came in time.
            OSError: it was sent, and the connection was lost before the answer.
        """
        try:
            async with asyncio.timeout_at(ends) if self._turn.locked() else _NO_LIMIT:
                await self._turn.acquire()
        except TimeoutError as error:
            raise NotSentError("had answers to give to all connections") from error
        try:
            connection = self._pick(target) or await self._connect(target, ends)
            try:
                reply = await connection.ask(request, ends)
            finally:
                if not connection.reusable:
                    connection.abort()
            if connection.reusable:
                self._keep(target, connection)
            return reply
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the connections that are not in use; no other is kept from now on."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._drop_idle()

    def _pick(self, target: PostTarget) -> "_PooledConnection | None":
        """Pick the connection that was used last, so that unneeded ones become idle."""
        if target != self._target:
            self._drop_idle()
            self._target = target
        while self._idle:
            _, connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self, target: PostTarget, ends: float) -> "_PooledConnection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(ends, loop.time() + self._connect_s)):
                transport, connection = await loop.create_connection(
                    _PooledConnection,
                    target.host,
                    target.port,
                    ssl=target.tls,
                    server_hostname=(target.server_name or target.host) if target.tls else None,
                )
        except TimeoutError as error:
            raise NotSentError("did not accept a connection in time") from error
        except (OSError, ValueError) as error:
            raise NotSentError(f"cannot be reached: {describe_unreachable(error)}") from error
        enable_keepalive(cast("socket", transport.get_extra_info("socket")))
        return connection

    def _keep(self, target: PostTarget, connection: "_PooledConnection") -> None:
        if self._closed or target != self._target:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._sweeping is None:
            self._sweeping = loop.call_later(CLOSE_UNUSED_AFTER_S, self._sweep)

    def _sweep(self) -> None:
        """Close what was not used for long, and check again while anything is left."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0][0] <= loop.time() - CLOSE_UNUSED_AFTER_S:
            self._idle.pop(0)[1].abort()
        self._sweeping = (
            loop.call_at(self._idle[0][0] + CLOSE_UNUSED_AFTER_S, self._sweep) if self._idle else None
        )

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop()[1].abort()


class _NoLimit:
    async def __aenter__(self) -> None:
        """Begin at once."""

    async def __aexit__(self, *_: object) -> None:
        """End at once."""


_NO_LIMIT: Final = _NoLimit()


class _PooledConnection(asyncio.Protocol):
    """A connection with one request under way at most."""

    def __init__(self) -> None:
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[PostReply] | None = None
        self._parts: list[bytes] = []
        self._retry_after: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.reusable = True

    def connection_lost(self, error: Exception | None) -> None:
        """End; a request under way may have been carried out."""
        self.reusable = False
        self._transport = None
        self._fail(
            ConnectionError(f"the connection was lost: {error}" if error else "the connection was closed")
        )

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, ends: float) -> PostReply:
        if self._transport is None:
            raise NotSentError("has closed the connection")
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        # Until the answer is complete nothing else can be sent.
        self.reusable = False
        timer = loop.call_at(ends, self._fail, TimeoutError())
        try:
            self._transport.write(request)
            return await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            # Nobody asked.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the answer is not HTTP: {error}"))
            self.abort()

    def on_message_begin(self) -> None:
        """Forget the answer of before; called by the parser, as are the next three."""
        self._parts = []
        self._retry_after = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Hand out the answer, unless it only says that another one follows."""
        status = self._parser.get_status_code()
        if status < 200:  # noqa: PLR2004 - informational
            return
        if self._waiting is None or self._waiting.done():
            self.abort()
            return
        self.reusable = self._parser.should_keep_alive() and self._transport is not None
        self._waiting.set_result(PostReply(status, b"".join(self._parts), self._retry_after))

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
