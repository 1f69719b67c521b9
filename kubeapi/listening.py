"""Listening sockets with bounded connections, so that one peer cannot crowd out the others."""

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

_NOTHING_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


BACKLOG: Final = 128
"""Connections that may wait to be accepted."""

ACCEPTED_AT_ONCE: Final = 16
"""Connections accepted in one go, before those closed for them have given their files back."""

PAUSE_S: Final = 1.0
"""After an accept that failed for want of file descriptors or memory, nothing is accepted for so long."""

MOST_CONNECTIONS: Final = 256
FEWEST_CONNECTIONS: Final = 8
PART_OF_FILES: Final = 4
"""A listening server takes one part in so many of the files that the process may open. The rest is for the
API server, the kubelet and the disk."""

NEW_PART: Final = 0.25
"""Part of all connections that is left to clients that were never answered, where others want all of them."""

REQUEST_S: Final = 30.0
"""A client has so long to shake hands and to send a whole request, from its first byte on."""
KEEP_ALIVE_S: Final = 120.0
"""A connection that was answered may be idle for so long. Go's clients close theirs after 90 s, so a request
seldom meets a connection that is being closed."""
MOST_UNANSWERED_BYTES: Final = 64 * 2**20
"""Bytes that all clients of a server together may have sent of requests that are not answered yet."""
SWEEP_S: Final = 5.0
"""How often connections are checked for `REQUEST_S` and `KEEP_ALIVE_S`."""


def limit_connections(wanted: int = MOST_CONNECTIONS) -> int:
    """Return how many of the wanted connections a listening server of this process may have."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(FEWEST_CONNECTIONS, min(wanted, files // PART_OF_FILES))


class Connection(asyncio.Protocol):
    """A connection, whose bytes another protocol reads.

    A connection is answering while a request that came whole is handled, else it waits for its client. Only
    one that waits is ended from here.

    Attributes:
        since: When it began to wait, seconds of the loop's clock.
        unanswered_bytes: What it sent since then.
    """

    def __init__(self, server: "Connections") -> None:
        self._server = server
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._answering = 0
        self._limit_s = REQUEST_S
        self.beginning: asyncio.Task[None] | None = None
        self.since = server.clock()
        self.was_answered = False
        self.unanswered_bytes = 0

    @property
    def is_last(self) -> bool:
        """Whether the server is closing: the answer under way is the last one."""
        return self._server.is_ending

    @property
    def is_answering(self) -> bool:
        return self._answering > 0

    @property
    def is_overdue(self) -> bool:
        return not self._answering and self._server.clock() - self.since > self._limit_s

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Handle a request: the connection is not ended meanwhile."""
        self.begin_answer()
        try:
            yield
        finally:
            self.end_answer()

    def begin_answer(self) -> None:
        self._answering += 1

    def end_answer(self) -> None:
        self._answering -= 1
        self.since, self._limit_s, self.was_answered = self._server.clock(), KEEP_ALIVE_S, True
        self._server.count_bytes(self, -self.unanswered_bytes)
        self._server.wake()

    def switch_to(self, protocol: asyncio.Protocol) -> None:
        if self._inner is not None:
            self._server.by_protocol.pop(self._inner, None)
        self._inner = protocol
        self._server.by_protocol[protocol] = self
        if self._transport is not None:
            protocol.connection_made(self._transport)

    def end(self) -> None:
        """Close it at once; what was not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()
        elif self.beginning is not None:
            self.beginning.cancel()
        self._server.forget(self)

    def end_once_read(self) -> None:
        """Close it; first the client may read what was sent."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.switch_to(self._server.make_protocol(self))

    def data_received(self, data: bytes) -> None:
        if not self._answering and self._limit_s != REQUEST_S:
            self.since, self._limit_s = self._server.clock(), REQUEST_S
        self._server.count_bytes(self, len(data))
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.forget(self)
        if self._inner is not None:
            self._inner.connection_lost(error)
            self._server.by_protocol.pop(self._inner, None)


class Connections:
    """The connections of one server.

    There are at most `most`. For one more, a connection that waits for its client is ended: the one that has
    waited longest of those that were never answered, where these are more than a quarter of `most`, else of
    those that were answered. So idle and slow clients keep nobody out, and clients that come at the same time
    do not end each other.
    """

    def __init__(
        self,
        make_protocol: Callable[[Connection], asyncio.Protocol],
        most: int = MOST_CONNECTIONS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.make_protocol = make_protocol
        self.most = most
        self.clock = clock or loop.time
        self.by_protocol: dict[asyncio.BaseProtocol, Connection] = {}
        self._loop = loop
        self._open: set[Connection] = set()
        self._unanswered_bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        self.is_ending = False

    def admit(self) -> Connection | None:
        """Make room for a client; None if all connections are answering."""
        if len(self._open) >= self.most:
            waiting = [connection for connection in self._open if not connection.is_answering]
            if not waiting:
                return None
            new = [connection for connection in waiting if not connection.was_answered]
            end_answered = len(new) <= self.most * NEW_PART
            min(waiting, key=lambda each: (each.was_answered != end_answered, each.since)).end()
        connection = Connection(self)
        self._open.add(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self.end_overdue)
        return connection

    def count_bytes(self, connection: Connection, count: int) -> None:
        """Count the bytes of a client; if all clients sent too much, end the waiting one that sent most."""
        connection.unanswered_bytes += count
        self._unanswered_bytes += count
        if self._unanswered_bytes > MOST_UNANSWERED_BYTES:
            waiting = (each for each in self._open if not each.is_answering)
            largest = max(waiting, key=lambda each: each.unanswered_bytes, default=None)
            if largest is not None:
                largest.end()

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._unanswered_bytes -= connection.unanswered_bytes
        connection.unanswered_bytes = 0
        self.wake()

    def wake(self) -> None:
        """Check again whether `close` still has to wait."""
        self._answered.set()

    def end_overdue(self) -> None:
        """End the connections whose clients took too long, now and from time to time."""
        for connection in list(self._open):
            if connection.is_overdue:
                connection.end()
        self._sweep = self._loop.call_later(SWEEP_S, self.end_overdue) if self._open else None

    async def close(self, grace_s: float) -> None:
        """End all: those that are answering, or have an answer to read, after `grace_s` at the latest."""
        self.is_ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._open:
                    self._answered.clear()
                    for connection in list(self._open):
                        if not connection.is_answering:
                            connection.end_once_read()
                    if self._open:
                        await self._answered.wait()
        for connection in list(self._open):
            connection.end()
        if self._sweep is not None:
            self._sweep.cancel()


class Acceptor:
    """Accepts connections on any event loop in asyncio's way, and stays quiet while no file is left.

    uvloop's own servers close connections for which no file descriptor is left, without a word to anybody.
    """

    def __init__(self, listener: socket.socket, connections: Connections, tls: ssl.SSLContext | None) -> None:
        self.listener = listener
        self._connections = connections
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.listener.setblocking(False)
        self.listener.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Stop accepting, and give up handshakes under way."""
        if self.listener.fileno() >= 0:
            self._loop.remove_reader(self.listener.fileno())
        if self._pause is not None:
            self._pause.cancel()
        for task in self._beginning:
            task.cancel()
        self.listener.close()

    def _watch(self) -> None:
        self._loop.add_reader(self.listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NOTHING_LEFT:
                    raise
                self._loop.call_exception_handler(
                    {"message": "socket.accept() out of system resource", "exception": error}
                )
                self._loop.remove_reader(self.listener.fileno())
                self._pause = self._loop.call_later(PAUSE_S, self._watch)
                return
            connection = self._connections.admit()
            if connection is None:
                accepted.close()
                continue
            task = self._loop.create_task(self._begin(accepted, connection))
            connection.beginning = task
            self._beginning.add(task)
            task.add_done_callback(partial(self._note_begun, accepted))

    async def _begin(self, accepted: socket.socket, connection: Connection) -> None:
        accepted.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._tls)
        except OSError:
            # The client went away, or does not speak TLS as we do.
            accepted.close()
            self._connections.forget(connection)

    def _note_begun(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        if task.cancelled():
            # A task that is cancelled before it ran keeps the socket open until garbage is collected.
            accepted.close()


async def open_listeners(host: str | None, port: int) -> list[socket.socket]:
    """Bind a socket for each address of a host, None for all of the machine's.

    Raises:
        OSError: the host has no address, or none of them can be used.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            made.append(_listener(family, kind, protocol, address))
        except OSError as error:
            if error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL} and len(found) > 1:
                # A machine without IPv6 has its addresses all the same.
                continue
            for each in made:
                each.close()
            raise
    if not made:
        raise OSError(errno.EADDRNOTAVAIL, f"no address of {host or 'this machine'} can be used")
    return made


def _listener(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
