"""Sockets that notice a dead peer, and streams cut into lines."""

import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from kubeapi.errors import Malformed

_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
LINE_LIMIT = 32 * 2**20
"""Longest watch event; etcd objects stay below 2 MiB."""


async def split_lines(path: str, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Cut a stream into lines, blank ones left out; the last need not be ended."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > LINE_LIMIT:
                raise Malformed(f"watch {path}: an event above {LINE_LIMIT} bytes")
            continue
        *whole, tail = bytes(rest).split(b"\n")
        rest = bytearray(tail)
        for line in whole:
            if line.strip():
                yield line
    if rest.strip():
        yield bytes(rest)


async def read_at_most(what: str, chunks: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """Read a whole answer.

    Raises:
        Malformed: it has more than `max_bytes`; the rest is not read.
    """
    read = bytearray()
    async for chunk in chunks:
        read += chunk
        if len(read) > max_bytes:
            raise Malformed(f"{what}: an answer above {max_bytes} bytes")
    return bytes(read)


def make_keepalive_socket(info: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """Make a socket that notices within half a minute that the other machine is gone."""
    family, kind, protocol = info[:3]
    made = socket.socket(family, kind, protocol)
    enable_keepalive(made)
    return made


def enable_keepalive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
