"""A dict that keeps its newest entries only."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dict of at most `most` entries: whoever sets one makes it the newest, and the oldest goes.

    The oldest entry of a plain dict costs more to find the more were deleted before it.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        before = len(self)
        super().__setitem__(key, value)
        if len(self) == before:
            self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)

    def recall(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made where there is none, as the newest entry."""
        value = self.get(key)
        if value is None:
            value = self[key] = make()
        else:
            self.move_to_end(key)
        return value
