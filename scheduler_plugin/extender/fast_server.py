"""Connections that carry kube-scheduler's calls, answered without a web framework in between.

A framework spends more time on a call than the verb itself: objects for the request, its headers, its body,
the route and the answer. kube-scheduler always sends the same few headers and a body of known length. Calls
of exactly that form are read here. On anything else, from GET /metrics to garbage, the connection is handed
to aiohttp's server, with the bytes read so far, and stays there.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, cast

from kubeapi.listening import Connection

LONGEST_HEAD: Final = 4096
"""Longest headers that are read here."""

READ_AHEAD: Final = 2**16
"""Bytes kept of the calls after the one under way; a client that sends more has to wait."""

_HEAD: Final = re.compile(
    rb"POST (/filter|/prioritize|/bind|/preempt) HTTP/1\.1\r\n"
    rb"((?:(?i:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Content-Length):[ \t]*[\x20-\x7e]*\r\n)*)"
    rb"\r\n"
)
"""None of these headers but the length changes how the body is read or what becomes of the connection."""
_NAMES: Final = re.compile(rb"^([^:]+):", re.MULTILINE)
_LENGTH: Final = re.compile(rb"^(?i:Content-Length):[ \t]*([0-9]{1,12})[ \t]*\r\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """The answer to a call.

    Attributes:
        took_s: Seconds that handling took, None if not measured.
        is_last: Whether the connection is closed afterwards, so that the next call may reach another process.
    """

    body: bytes
    took_s: float | None = None
    status: int = 200
    content_type: str = "application/json"
    is_last: bool = False

    @property
    def timing(self) -> str:
        return "" if self.took_s is None else f"handled;dur={self.took_s * 1000:.3f}"

    def wire(self) -> bytes:
        status = "200 OK" if self.status == 200 else f"{self.status} {HTTPStatus(self.status).phrase}"  # noqa: PLR2004
        timing = f"Server-Timing: {self.timing}\r\n" if self.took_s is not None else ""
        last = "Connection: close\r\n" if self.is_last else ""
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
            f"Date: {_date(int(time.time()))}\r\n{timing}{last}\r\n"
        )
        return head.encode() + self.body


Call = Callable[[str, bytes], Awaitable[VerbAnswer]]
"""Answers a verb: its path and the body."""


@dataclass(frozen=True, slots=True)
class _RequestHead:
    path: str
    size: int
    body_size: int


class FastServer:
    """Reads connections first; see `kubeapi.serving.FrontServer`.

    Args:
        most: Largest body in bytes; a larger one is left to the other server.
        only_known_clients: Leave connections of clients without a certificate to the other server.
    """

    def __init__(
        self,
        call: Call,
        cut_off: Callable[[str], None],
        most: int,
        *,
        only_known_clients: bool,
    ) -> None:
        self.call = call
        self.cut_off = cut_off
        self.most = most
        self.only_known_clients = only_known_clients
        self._answering: set[asyncio.Task[None]] = set()

    def make_protocol(
        self, connection: Connection, other: Callable[[], asyncio.Protocol]
    ) -> asyncio.Protocol:
        """Make the protocol of a new connection; `other` makes the one that takes over anything else."""
        return _CallReader(self, connection, other)

    def begin(self, work: Awaitable[None]) -> None:
        """Finish a call even if its client disconnects, because a Binding may be under way."""
        task = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)


class _CallReader(asyncio.Protocol):
    """Reads a connection, and answers one call at a time, in the order in which they come."""

    def __init__(
        self, server: FastServer, connection: Connection, other: Callable[[], asyncio.Protocol]
    ) -> None:
        self._server = server
        self._connection = connection
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._have = 0
        self._head: _RequestHead | None = None
        self._answering = False
        self._unread_answers = False
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin reading; the other server refuses clients that lack a required certificate."""
        self._transport = cast("asyncio.Transport", transport)
        if self._server.only_known_clients and not transport.get_extra_info("peercert"):
            self._hand_over(self._transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection; a call under way goes on."""
        if self._transport is None:
            return
        self._transport = None
        self._parts.clear()
        if self._head is not None and not self._answering and not self._connection.is_last:
            self._server.cut_off(self._head.path)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._have += len(data)
        self._next()

    def pause_writing(self) -> None:
        """Stop reading calls while the client does not read the answers."""
        self._unread_answers = True
        self._pace()

    def resume_writing(self) -> None:
        self._unread_answers = False
        self._pace()

    def _next(self) -> None:
        """Start the next call, if it has arrived completely."""
        transport = self._transport
        if transport is None:
            return
        if not self._answering and self._have:
            if self._head is None:
                self._head = _read_head(self._all(), self._server.most)
                if self._head is None:
                    self._hand_over(transport)
                    return
            size = self._head.size + self._head.body_size
            if self._have >= size:
                data = self._all()
                body, rest = data[self._head.size : size], data[size:]
                self._parts, self._have = [rest] if rest else [], len(rest)
                self._answering = True
                self._connection.begin_answer()
                self._server.begin(self._answer(self._head.path, body))
        self._pace()

    async def _answer(self, path: str, body: bytes) -> None:
        try:
            answer = await self._server.call(path, body)
        except BaseException:
            self._connection.end()
            raise
        finally:
            self._connection.end_answer()
        self._answering, self._head = False, None
        if self._transport is None:
            return
        self._transport.write(answer.wire())
        if answer.is_last or self._connection.is_last:
            self._transport.close()
        else:
            self._next()

    def _all(self) -> bytes:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def _pace(self) -> None:
        """Pause or resume reading, by how much has arrived and is not answered."""
        transport = self._transport
        stop = self._unread_answers or (self._answering and self._have > READ_AHEAD)
        if transport is None or stop == self._paused or transport.is_closing():
            return
        self._paused = stop
        if stop:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _hand_over(self, transport: asyncio.Transport) -> None:
        """Hand the connection to the other server, with what has arrived of its next message."""
        self._transport = None
        if self._paused:
            transport.resume_reading()
        other = self._other()
        self._connection.switch_to(other)
        if self._parts:
            other.data_received(self._all())


def _read_head(data: bytes, most: int) -> _RequestHead | None:
    """Read the headers of a call of the usual form; None for another form, or incomplete headers."""
    found = _HEAD.match(data, 0, LONGEST_HEAD)
    if found is None:
        return None
    fields = found[2]
    names = [name.lower() for name in _NAMES.findall(fields)]
    length = _LENGTH.search(fields)
    if length is None or len(set(names)) < len(names) or int(length[1]) > most:
        return None
    return _RequestHead(found[1].decode(), found.end(), int(length[1]))


_dated: tuple[int, str] = (-1, "")


def _date(now_s: int) -> str:
    global _dated  # noqa: PLW0603 - one clock
    if _dated[0] != now_s:
        _dated = (now_s, formatdate(now_s, usegmt=True))
    return _dated[1]
