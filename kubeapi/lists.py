"""Reads long lists of the API server in little memory, and what each has beside its items."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import msgspec

T = TypeVar("T")


class CompactList(Sequence[T], Generic[T]):
    """A list whose pages are JSON of the fields that are read; each loop decodes them anew.

    A cache copies little of each object. Where all objects of a list are in memory at once, these copies lie
    scattered among them. The allocator can then return hardly any of that memory once the list is gone.
    """

    def __init__(self, kind: type[T]) -> None:
        self._decode: Callable[[bytes], list[T]] = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]
        self._pages: list[bytes] = []
        self._length = 0

    def add_page(self, items: Sequence[T]) -> None:
        self._pages.append(msgspec.json.encode(items))
        self._length += len(items)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for page in self._pages:
            yield from self._decode(page)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        """Decode the whole list: meant for short ones."""
        return list(self)[index]
