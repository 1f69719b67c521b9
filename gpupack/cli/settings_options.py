"""Options of a command, made of the fields of its process' settings."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import click

from gpupack.cli.common import Command, join_options, name_values
from kubeapi.options import Option, name_option, read_option


def settings_options(settings: type, first: str = "", last: str = "") -> Callable[[Command], Command]:
    """Make the options of consecutive fields, from `first` to `last` or from end to end of the dataclass."""
    names = [each.name for each in fields(settings)]
    end = names.index(last) + 1 if last else len(names)
    chosen = fields(settings)[names.index(first) if first else 0 : end]
    hints = get_type_hints(settings)
    return join_options(
        *(_make(each, hints[each.name], known) for each in chosen if (known := read_option(each)))
    )


def _make(field: Field[Any], kind: Any, known: Option) -> Callable[[Command], Command]:
    name = name_option(field)
    kind = _strip_none(kind)
    default = None if field.default is MISSING else field.default
    more: dict[str, Any] = {"help": known.help or None}
    if known.env:
        more["envvar"] = known.env
    if kind is bool:
        more["show_default"] = known.shown
        negative = known.negative or f"no-{name[2:]}"
        return click.option(f"{name}/--{negative}", field.name, default=default, **more)
    if known.metavar or known.allowed:
        more["metavar"] = known.metavar or "|".join(known.allowed)
    if known.repeat:
        callback = name_values if get_origin(kind) is Mapping else None
        return click.option(name, field.name, multiple=True, callback=callback, **more)
    if default is not None:
        more["show_default"] = True
    if isinstance(default, tuple | frozenset):
        entries = default if isinstance(default, tuple) else sorted(default)
        return click.option(
            name, field.name, default=",".join(map(str, entries)), callback=_reader(kind, known), **more
        )
    types = {int: int, float: float, Path: click.Path(path_type=Path)}
    if kind in types:
        more["type"] = types[kind]
    names = (known.short, name) if known.short else (name,)
    return click.option(*names, field.name, default=default, **more)


def _strip_none(kind: Any) -> Any:
    """Take None out of a type that also allows it."""
    given = [each for each in get_args(kind) if each is not NoneType]
    return given[0] if NoneType in get_args(kind) else kind


def _reader(kind: Any, known: Option) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Make the reader of a list; from a comma list blanks and repetitions are left out."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> Any:
        if known.parse is not None:
            try:
                return known.parse(text)
            except ValueError as error:
                raise click.BadParameter(str(error)) from error
        entries = dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip())
        return tuple(map(Path, entries)) if kind == tuple[Path, ...] else tuple(entries)

    return read
