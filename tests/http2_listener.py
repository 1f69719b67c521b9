"""A hand-made HTTP/2 listener on a unix socket: says exactly the frames it is told to, and nothing else."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
# Length 8, type 7, no flags, stream 0; last stream 0, NO_ERROR.
GOAWAY = b"\0\0\x08\x07\0\0\0\0\0" + bytes(8)


def resident_mib() -> float:
    """MiB of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Listener:
    """Greets each connection with the same bytes and keeps it open.

    Attributes:
        connections: how many there have been.
    """

    def __init__(self, greeting: bytes) -> None:
        self._greeting = greeting
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def greet(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a new connection, and keep it open."""
        self.connections += 1
        writer.write(self._greeting)
        self._writers.append(writer)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def listening(path: Path, greeting: bytes) -> AsyncIterator[Listener]:
    """Listen at `path`."""
    listener = Listener(greeting)
    server = await asyncio.start_unix_server(listener.greet, str(path))
    try:
        yield listener
    finally:
        listener.hang_up()
        server.close()
        await server.wait_closed()
