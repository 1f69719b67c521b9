"""Endless list and watch of one kind of objects.

Three scopes of failure, one method each: `run` (endless) > `_list` or `_watch` (one request) > `_line` (one
event). Whatever fails inside ends its own scope only; `run` itself ends by cancellation alone.

An API server restored from an older state accepts a watch from a version that it has not reached. Then it is
silent until it gets there. So after an interruption its newest version is asked for before a watch resumes.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Generic, Literal, Protocol, TypeVar, cast

import msgspec
import structlog

from kubeapi.backoff import Backoff
from kubeapi.client import WATCH_TIMEOUT_S, KubeClient
from kubeapi.errors import (
    UNREADABLE,
    ApiStatus,
    Gone,
    KubeApiError,
    Malformed,
    decode_answer,
    make_error,
    shorten_body,
)
from kubeapi.lists import CompactList
from kubeapi.objects import ListMeta, make_list_decoder

T = TypeVar("T")
S_contra = TypeVar("S_contra", contravariant=True)
Kind = Literal["ADDED", "MODIFIED", "DELETED"]

SHORT_WATCH_S = 1.0
"""A watch that ends sooner and brought nothing is a failure, else a broken server is asked in a hot loop."""

log = structlog.get_logger(__name__)


class Sink(Protocol[S_contra]):
    """Receives the objects; every method is synchronous and quick.

    A class that derives from it need not define `bookmark` and `disconnected`.
    """

    def replace(self, items: Sequence[S_contra], resource_version: str) -> None:
        """Take a complete list; whatever is not in it is gone.

        A version may be lower than one that this sink was given before. Then the API server was restored from
        an older state: the list is the truth, and versions of before mean nothing any more.
        """

    def event(self, kind: Kind, item: S_contra, resource_version: str) -> None:
        """Take one change; `resource_version` is the object's own."""

    def bookmark(self, resource_version: str) -> None:
        """Record that everything up to this version has been seen."""
        del resource_version

    def disconnected(self, error: KubeApiError) -> None:
        """The view may be stale from now on, until the next call of another method."""
        del error


class _Object(msgspec.Struct):
    metadata: ListMeta


_decode_object: Final = msgspec.json.Decoder(_Object).decode
_decode_raw_page: Final = make_list_decoder(msgspec.Raw)


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class SinkFailedError(KubeApiError):
    """The sink raised, so its view is listed again."""


class Reflector(Generic[T]):
    """Keeps a sink up to date with one collection.

    Attributes:
        last_contact: `clock()` at the last answer or event of the API server, None before the first. On a
            quiet cluster it moves when a watch ends and is resumed, every `watch_s` at the latest.
        synced: True once a list has been delivered.
        resource_version: newest version delivered, "" before the first list.
        skipped: objects that could not be decoded, since the start.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        item: type[T],
        sink: Sink[T],
        *,
        params: Mapping[str, str] | None = None,
        relist_wanted: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        base_s: float = 0.5,
        cap_s: float = 15.0,
        page_size: int = 500,
        watch_s: int = WATCH_TIMEOUT_S,
        idle_s: float | None = None,
    ) -> None:
        """Prepare; nothing is sent before `run`.

        Args:
            item: msgspec.Struct with the fields to read, named (or renamed) as in the API.
            params: selectors, the same for list and watch.
            relist_wanted: Set by whoever wants a complete list now, as `relist` does.
            watch_s: the server is asked to end a watch after 80 to 100 % of this; on a quiet cluster
                `last_contact` gets as old as that.
            idle_s: a watch silent for so long is given up and resumed; None for watch_s and some grace.
        """
        self._client = client
        self._path = path
        self._sink = sink
        self._params = params or {}
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._backoff = Backoff(base_s, cap_s, uniform)
        self._page_size = page_size
        self._watch_s = watch_s
        self._idle_s = idle_s
        self._item = item
        self._decode_item = msgspec.json.Decoder(item).decode
        self._decode_page = make_list_decoder(item)
        self._list_due = True
        self._interrupted = False
        self._wanted = relist_wanted or asyncio.Event()
        self.last_contact: float | None = None
        self.synced = False
        self.resource_version = ""
        self.lists = 0
        self.skipped = 0

    def relist(self) -> None:
        """List again now: interrupts the watch or the back-off under way."""
        self._wanted.set()

    async def run(self) -> None:
        """List and watch for ever; ends only by cancellation."""
        while True:
            if self._wanted.is_set():
                self._wanted.clear()
                self._list_due = True
            try:
                await self._until_wanted(self._list() if self._list_due else self._resume())
            except Exception as error:  # noqa: BLE001  (the endless scope: nothing below may end it)
                await self._failed(error)

    async def _failed(self, error: Exception) -> None:
        """Report a failure to the sink, then wait; after a 410 the watch cannot go on without a new list."""
        if not isinstance(error, KubeApiError):
            log.error("reflector failed", path=self._path, error=repr(error), exc_info=error)
            error = SinkFailedError(f"{self._path}: {error!r}")
            self._list_due = True
        if isinstance(error, (Gone, Malformed)):
            self._list_due = True
        self._interrupted = True
        delay_s = self._backoff.log_failure(log, "API server view interrupted", error, path=self._path)
        self._sink.disconnected(error)
        await self._until_wanted(self._sleep(delay_s))

    async def _until_wanted(self, work: Awaitable[None]) -> None:
        """Do the work, but drop it when `relist` is called."""
        task = asyncio.ensure_future(work)
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait((task, wanted), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            for each in (task, wanted):
                each.cancel()
            await asyncio.gather(task, wanted, return_exceptions=True)

    async def _list(self) -> None:
        """Fetch a complete list, delivered whole or not at all.

        The first list fills the sink, and is compact. The sink copies little of a later list, and may go
        through that one several times while others wait.
        """
        compact = CompactList(self._item)
        known: list[T] = []
        add_page = known.extend if self.synced else compact.add_page
        version = ""
        listing = self._client.pages(self._path, self._page_size, **self._params)  # type: ignore[arg-type]
        async with aclosing(listing) as pages:
            async for page in pages:
                self.last_contact = self._clock()
                version, items = self._read_page(page)
                add_page(items)
        if not version:
            raise Malformed(f"{self._path}: a list without resourceVersion")
        if has_gone_back(self.resource_version, version):
            log.warning(
                "the API server was restored from an older state",
                path=self._path,
                seen=self.resource_version,
                resource_version=version,
            )
        listed = known if self.synced else compact
        self._sink.replace(listed, version)
        self.resource_version = version
        self._list_due = self._interrupted = False
        self.synced = True
        self.lists += 1
        log.debug("listed", path=self._path, items=len(listed), resource_version=version)

    def _read_page(self, page: bytes) -> tuple[str, list[T]]:
        """Read a page's version and items; an item that does not decode is logged and skipped."""
        try:
            typed = self._decode_page(page)
        except UNREADABLE:
            return self._read_page_one_by_one(page)
        return typed.metadata.resource_version, typed.items or []

    def _read_page_one_by_one(self, page: bytes) -> tuple[str, list[T]]:
        items: list[T] = []
        raw = decode_answer(page, _decode_raw_page, f"{self._path}: a list page")
        for each in raw.items or ():
            try:
                items.append(self._decode_item(each))
            except UNREADABLE as error:
                self.skipped += 1
                shown = shorten_body(bytes(each))
                log.error("object skipped", path=self._path, error=str(error), object=shown)  # noqa: TRY400
        return raw.metadata.resource_version, items

    async def _resume(self) -> None:
        """Resume the watch, unless the API server has gone back behind the last version delivered."""
        if self._interrupted:
            if has_gone_back(self.resource_version, await self._newest_version()):
                self._list_due = True
                return
            self._interrupted = False
        await self._watch()

    async def _newest_version(self) -> str:
        """Ask for the version that a list has now, with one object at most."""
        listing = self._client.pages(self._path, 1, **self._params)  # type: ignore[arg-type]
        async with aclosing(listing) as pages:
            page = await anext(pages)
        self.last_contact = self._clock()
        return decode_answer(page, _decode_object, f"{self._path}: a list page").metadata.resource_version

    async def _watch(self) -> None:
        """Run a watch, from the last version delivered to its end."""
        opened_at = self._clock()
        before = self.resource_version
        lines = 0
        watch = self._client.watch(
            self._path,
            self.resource_version,
            timeout_s=max(1, round(self._uniform(0.8 * self._watch_s, self._watch_s))),
            idle_s=self._idle_s,
            opened=self._opened,
            **self._params,
        )
        async with aclosing(watch) as events:
            async for line in events:
                self.last_contact = self._clock()
                self._line(line)
                lines += 1
                if self._backoff.failures:
                    log.info("API server view restored", path=self._path)
                    self._backoff.reset()
        if lines or self._clock() - opened_at >= SHORT_WATCH_S:
            self._backoff.reset()
            return
        raise KubeApiError(f"{self._path}: the watch from version {before} ended at once with nothing")

    def _opened(self) -> None:
        self.last_contact = self._clock()

    def _line(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_WatchEvent)
            if event.type == "ERROR":
                self._error_event(event.object)
            version = msgspec.json.decode(event.object, type=_Object).metadata.resource_version
            if event.type == "BOOKMARK":
                self._sink.bookmark(version)
            elif event.type in {"ADDED", "MODIFIED", "DELETED"}:
                self._sink.event(cast("Kind", event.type), self._decode_item(event.object), version)
            else:
                raise Malformed(f"watch {self._path}: unknown event type {event.type!r}")
        except UNREADABLE as error:
            shown = shorten_body(line)
            raise Malformed(f"watch {self._path}: {error} in {shown}") from error
        if version:
            self.resource_version = version

    def _error_event(self, body: msgspec.Raw) -> None:
        code = msgspec.json.decode(body, type=ApiStatus).code or 500
        raise make_error(code, bytes(body), what=f"watch {self._path}")


def has_gone_back(seen: str, version: str) -> bool:
    """Tell whether a consistent list is older than what the same server has shown; see `Sink.replace`."""
    return seen.isdecimal() and version.isdecimal() and int(version) < int(seen)
