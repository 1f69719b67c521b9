"""Options of a command, made of the fields of its process' settings."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from kubeapi.options import Option, name_option, read_option

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(settings: type, first: str, last: str) -> Callable[[Command], Command]:
    """Make the options of consecutive fields.

    Args:
        settings: The dataclass.
        first: Name of the first field.
        last: Name of the last one.
    """
    names = [each.name for each in fields(settings)]
    chosen = fields(settings)[names.index(first) : names.index(last) + 1]
    hints = get_type_hints(settings)
    made = [_make(each, hints[each.name], known) for each in chosen if (known := read_option(each))]

    def add(command: Command) -> Command:
        for decorate in reversed(made):
            command = decorate(command)
        return command

    return add


def _make(each: Field[Any], kind: Any, known: Option) -> Callable[[Command], Command]:
    name = name_option(each.name)
    default = None if each.default is MISSING else each.default
    more: dict[str, Any] = {"help": known.help or None}
    if known.env:
        more["envvar"] = known.env
    if kind is bool:
        return click.option(f"{name}/--no-{name[2:]}", default=default, **more)
    if known.metavar or known.allowed:
        more["metavar"] = known.metavar or "|".join(known.allowed)
    if default is not None:
        more["show_default"] = True
    if isinstance(default, tuple | frozenset):
        entries = default if isinstance(default, tuple) else sorted(default)
        return click.option(
            name, each.name, default=",".join(map(str, entries)), callback=_reader(kind, known), **more
        )
    types = {int: int, float: float, Path: click.Path(path_type=Path)}
    if kind in types:
        more["type"] = types[kind]
    return click.option(name, each.name, default=default, **more)


def _reader(kind: Any, known: Option) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Make what reads the text of a list; of a comma list blanks and repetitions are left out."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> Any:
        if known.parse is not None:
            try:
                return known.parse(text)
            except ValueError as error:
                raise click.BadParameter(str(error)) from error
        entries = dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip())
        return tuple(map(Path, entries)) if kind == tuple[Path, ...] else tuple(entries)

    return read
