"""Policies of other packages, found through entry points.

The only module here that reads files: commands call it when they start, and nothing happens at import.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from allocator.errors import shown
from allocator.registry import Entry, Registry, one_line, shown_line


def adopt_installed(*registries: Registry[Any]) -> None:
    """Register what the packages of this Python offer, in place of what was found before.

    Raises:
        Exception: of the registry's kind, with one line: a name that is taken, an entry point that cannot
            be imported, or one that makes something that is no policy.
    """
    for registry in registries:
        points = sorted(entry_points(group=registry.group), key=lambda point: (point.name, _package(point)))
        registry.adopt([_entry(registry, point) for point in points])


def _entry(registry: Registry[Any], point: EntryPoint) -> Entry[Any]:
    called = f"{registry.kind} {shown(point.name)} of {_package(point)}: {shown(point.value)}"
    try:
        make = point.load()
    except Exception as error:
        raise registry.error(f"{called} cannot be imported: {one_line(error)}") from error
    if not callable(make):
        raise registry.error(f"{called} is a {type(make).__name__}; allowed is a function of the parameters")
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
