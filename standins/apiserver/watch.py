"""A watch of the API server stand-in, from its first line to its end."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from standins.apiserver.paths import Place
from standins.apiserver.rules import PODS
from standins.apiserver.select import Matcher
from standins.apiserver.status import JsonObject, RefusedError, Resource
from standins.apiserver.store import Kind, Store, StoredEntry, encode


class Watch:
    """An open watch of one client."""

    def __init__(self, store: Store, place: Place, matches: Matcher | None, *, bookmarks: bool) -> None:
        self._store = store
        self.place = place
        self._matches = matches
        self.bookmarks = bookmarks
        self._extra: list[bytes] = []
        self._ended = False

    def say(self, line: bytes) -> None:
        """Send raw bytes, also invalid ones."""
        self._extra.append(line)
        self._store.wake()

    def end(self) -> None:
        """End it as a server does that has had enough: a zero chunk, the connection stays."""
        self._ended = True
        self._store.wake()

    def end_with(self, refused: RefusedError) -> None:
        """Send an ERROR event, then end."""
        self.say(encode({"type": "ERROR", "object": refused.body}) + b"\n")
        self.end()

    async def serve(
        self, response: web.StreamResponse, version: int, timeout_s: float, bookmark_s: Callable[[], float]
    ) -> None:
        """Write what happens until the end or the time-out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        bookmarked_at = loop.time()
        if not version and not self._ended:
            version = self._store.version
            present = self._store.select(self.place.resource, self.place.namespace, self._matches)
            await _write(response, b"".join(self._line("ADDED", entry) for entry in present))
        while True:
            seen = self._store.version
            lines = [] if self._ended else self._lines(version)
            version = max(version, seen)
            extra, self._extra = self._extra, []
            await _write(response, b"".join(lines + extra))
            now = loop.time()
            if self._ended or now >= deadline:
                return
            if self.bookmarks and now >= bookmarked_at + bookmark_s():
                await _write(response, self.bookmark())
                bookmarked_at = now
            if self._store.version == seen and not self._extra:
                due = min(deadline, bookmarked_at + bookmark_s()) if self.bookmarks else deadline
                await self._wait(max(0.0, due - now))

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._store.changed()
        except TimeoutError:
            return

    def _lines(self, after: int) -> list[bytes]:
        changes = self._store.changes(self.place.resource, after, self.place.namespace, self._matches)
        return [self._line(kind, entry) for kind, entry in changes]

    def _line(self, kind: Kind, entry: StoredEntry) -> bytes:
        item = whole(self.place.resource, entry)
        return b'{"type":"' + kind.encode() + b'","object":' + item + b"}\n"

    def bookmark(self) -> bytes:
        """Make a bookmark of now: an object with a version and hardly anything else, null lists included."""
        resource = self.place.resource
        shape: JsonObject = {"spec": {"containers": None}, "status": {}} if resource is PODS else {}
        metadata = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        item = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata, **shape}
        return encode({"type": "BOOKMARK", "object": item}) + b"\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write, but no empty chunk, which would end the answer."""
    if data:
        await response.write(data)


def whole(resource: Resource, entry: StoredEntry) -> bytes:
    """Write an object on its own: lists leave kind and apiVersion out, here they belong."""
    return f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'.encode() + entry.raw[1:]
