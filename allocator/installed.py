"""Policies of other packages, found through entry points.

The only module here that reads files: a registry calls it when it looks, and nothing happens at import.
"""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from allocator.errors import shown
from allocator.registry import Entry, Registry, one_line, shown_line


def installed(registry: Registry[Any]) -> Iterator[Entry[Any] | Exception]:
    """Give what the packages of this Python offer, by name and package.

    Yields:
        Entries; an error of the registry's kind, with one line, for an entry point that cannot be imported or
        is no function.
    """
    for point in sorted(entry_points(group=registry.group), key=lambda point: (point.name, _package(point))):
        try:
            yield _entry(registry, point)
        except registry.error as error:
            yield error


def _entry(registry: Registry[Any], point: EntryPoint) -> Entry[Any]:
    called = f"{registry.kind} {shown(point.name)} of {_package(point)}: {shown(point.value)}"
    try:
        make = point.load()
    except (Exception, SystemExit) as error:
        raise registry.error(f"{called} cannot be imported: {one_line(error)}") from error
    if not callable(make):
        raise registry.error(f"{called} is a {type(make).__name__}; allowed: a function of the parameters")
    parameters = getattr(make, "parameters", None)
    return Entry(
        name=point.name,
        make=make,
        summary=shown_line((make.__doc__ or "").strip().partition("\n")[0]),
        parameters=None if parameters is None else tuple(parameters),
        package=_package(point),
    )


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
