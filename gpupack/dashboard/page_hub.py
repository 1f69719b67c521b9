"""Tells every open page what has changed: a page that is slow gets less often more, never a longer queue."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec

from gpupack.dashboard.trend import Trend

MAX_PAGES: Final = 64
"""Pages that may be open at a time."""


class TileSource(Protocol):
    """Has the records of nodes; attributes and methods as of `ClusterBoard`."""

    encoded: dict[str, msgspec.Raw]

    def refresh(self) -> set[str]: ...


class TooManyPagesError(Exception):
    """There are too many open pages."""


class PageState:
    """What one open page does not know yet. Its size is bounded by the number of nodes.

    Attributes:
        points: points of the trend that it has not seen.
    """

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.parts: set[str] = set()
        self.points = 0
        self.has_changes = asyncio.Event()


class PageHub:
    """Keeps what all pages show, by name, and which of them knows what."""

    def __init__(self, board: TileSource, trend: Trend, parts: Mapping[str, Any]) -> None:
        self._board = board
        self.trend = trend
        self._parts = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in parts.items()}
        self._pages: set[PageState] = set()
        self.opened: Callable[[], None] = lambda: None

    @contextmanager
    def open_page(self) -> Iterator[PageState]:
        if len(self._pages) >= MAX_PAGES:
            raise TooManyPagesError(f"{MAX_PAGES} pages are open; allowed: no more; close one")
        page = PageState()
        self._pages.add(page)
        self.opened()
        try:
            yield page
        finally:
            self._pages.discard(page)

    @property
    def is_watched(self) -> bool:
        return bool(self._pages)

    def flush_nodes(self) -> None:
        names = self._board.refresh()
        if names:
            for page in self._pages:
                page.nodes |= names
                page.has_changes.set()

    def set_part(self, name: str, value: Any) -> None:
        """Change one part, and tell pages if it differs."""
        raw = msgspec.Raw(msgspec.json.encode(value))
        if bytes(self._parts.get(name, b"")) != bytes(raw):
            self._parts[name] = raw
            for page in self._pages:
                page.parts.add(name)
                page.has_changes.set()

    def announce_point(self) -> None:
        for page in self._pages:
            page.points += 1
            page.has_changes.set()

    def encode_everything(self) -> bytes:
        nodes = self._board.encoded
        return msgspec.json.encode(
            {
                "nodes": [nodes[name] for name in sorted(nodes)],
                "trend": self.trend.list_points(),
                **self._parts,
            }
        )

    def encode_changes(self, page: PageState) -> bytes:
        """Encode what the page does not know, as JSON; it counts as known from then on."""
        nodes, parts, points = page.nodes, page.parts, page.points
        page.nodes, page.parts, page.points = set(), set(), 0
        page.has_changes.clear()
        encoded = self._board.encoded
        message: dict[str, Any] = {name: self._parts[name] for name in sorted(parts)}
        if nodes:
            message["nodes"] = _list_encoded(encoded, nodes)
            message["gone"] = sorted(nodes - encoded.keys())
        if points:
            message["points"] = self.trend.list_points()[-points:]
        return msgspec.json.encode(message)


def _list_encoded(encoded: Mapping[str, msgspec.Raw], names: Iterable[str]) -> list[msgspec.Raw]:
    return [encoded[name] for name in sorted(names) if name in encoded]
