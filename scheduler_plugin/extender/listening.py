"""Listening sockets, and accepting on them that stays quiet while no file descriptor is left."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

_NOTHING_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


BACKLOG: Final = 128
"""Connections that may wait to be accepted."""

PAUSE_S: Final = 1.0
"""After an accept that failed for want of file descriptors or memory, nothing is accepted for so long."""


class Acceptor:
    """Accepts connections on any event loop in asyncio's way.

    uvloop's own servers close connections for which no file descriptor is left, without a word to anybody.

    Args:
        listener: Bound.
        protocol: Makes the protocol of a connection.
        tls: For its handshakes, None for plain TCP.
    """

    def __init__(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
    ) -> None:
        self.listener = listener
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be listened on.
        """
        self.listener.setblocking(False)
        self.listener.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Accept nothing any more, and give up handshakes under way."""
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
        """Take the connections that wait."""
        for _ in range(BACKLOG):
            try:
                connection, _address = self.listener.accept()
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
            task = self._loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except (OSError, asyncio.CancelledError):
            # The client went away, or does not speak TLS as we do.
            connection.close()


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
