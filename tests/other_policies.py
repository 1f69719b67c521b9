"""Policies of other packages, without the packages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from allocator.registry import Entry, Registry


@contextmanager
def offered(registry: Registry[Any], **makes: Callable[[Any], Any]) -> Iterator[None]:
    """Let the registry know these policies for a while; `_` in names stands for `-`."""
    entries = [
        Entry(name.replace("_", "-"), make, "of a test", None, "others 1.0") for name, make in makes.items()
    ]
    try:
        registry.adopt(entries)
        yield
    finally:
        registry.adopt(())
