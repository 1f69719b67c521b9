"""Listening sockets that stay quiet while the process has no file descriptors left."""

import asyncio
import errno
import socket
from typing import Any, Final

_NOTHING_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener(socket.socket):
    """A listening socket whose `accept` fails once, not once for every place in its queue.

    asyncio accepts until nobody waits, or as often as the queue is long. Without file descriptors left it
    pauses for a second, but goes on trying first: 128 errors, each logged with its trace, every second. After
    the first one this socket says that nobody waits.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next connection.

        Raises:
            BlockingIOError: nobody waits, or the call before failed for want of file descriptors or memory.
            OSError: as of `socket.socket.accept`.
        """
        if self._failed:
            self._failed = False
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            self._failed = error.errno in _NOTHING_LEFT
            raise


async def listeners(host: str | None, port: int) -> list[Listener]:
    """Bind a socket for each address of a host, None for all of the machine's.

    Raises:
        OSError: the host has no address, or none of them can be used.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[Listener] = []
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


def _listener(family: int, kind: int, protocol: int, address: Any) -> Listener:
    listener = Listener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
