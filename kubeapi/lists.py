"""Reads long lists of the API server in little memory, and those of which the version is not known."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import msgspec

from kubeapi.errors import KubeApiError, NotFound

T = TypeVar("T")


async def read_first_served(paths: Sequence[str], read: Callable[[str], Awaitable[T]]) -> T:
    """Read at the first of some paths that can be read.

    Raises:
        KubeApiError: None can be; that of the first one that exists, NotFound if none does.
    """
    errors: list[KubeApiError] = []
    for path in paths:
        try:
            return await read(path)
        except KubeApiError as error:
            errors.append(error)
    raise next((error for error in errors if not isinstance(error, NotFound)), errors[0])


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
