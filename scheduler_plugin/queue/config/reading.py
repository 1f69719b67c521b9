"""Reads a part of a configuration; every fault names its path, the value, and what is allowed. Pure."""

import types
from collections.abc import Iterator
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, inspect

from kubeapi.bounded_yaml import SHOWN

Form = TypeVar("Form", bound=Struct)


def read_form(raw: Any, form: type[Form], path: str, faults: list[str]) -> Form | None:
    """Read one part, at a path that is empty for the document; None if it has a fault."""
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        faults += list(_find_faults(raw, form, path)) or [f"{path or 'document'}: {error}"]
        return None


def list_sound_values(raw: Any, form: type[Form]) -> dict[str, Any]:
    """List the values of known fields that have no fault, by the field's name."""
    if not isinstance(raw, dict):
        return {}
    return {
        field.name: raw[field.encode_name]
        for field in msgspec.structs.fields(form)
        if field.encode_name in raw and not any(_find_faults(raw[field.encode_name], field.type, ""))
    }


def format_value(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case []:
            return "an empty list"
        case list():
            return "a list"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _find_faults(raw: Any, kind: Any, path: str) -> Iterator[str]:
    may_miss, kind = _split_optional(kind)
    if raw is None and may_miss:
        return
    item = _get_item_type(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield from _find_mapping_faults(raw, kind, path)
    elif item is not None and isinstance(raw, list):
        for at, each in enumerate(raw):
            yield from _find_faults(each, item, f"{path}[{at}]")
    elif get_origin(kind) is dict and isinstance(raw, dict):
        for key, each in raw.items():
            yield from _find_faults(each, get_args(kind)[1], f"{path}.{key}")
    else:
        try:
            msgspec.convert(raw, kind)
        except msgspec.ValidationError:
            yield f"{path}: {format_value(raw)}; allowed: {_describe_allowed(inspect.type_info(kind))}"


def _find_mapping_faults(raw: Any, form: type[Struct], path: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(form)}
    keys = ", ".join(fields)
    if not isinstance(raw, dict):
        yield f"{path or 'document'}: {format_value(raw)}; allowed: a mapping of {keys}"
        return
    for key, value in raw.items():
        place = f"{path}.{str(key)[:SHOWN]}".lstrip(".")
        if key in fields:
            yield from _find_faults(value, fields[key].type, place)
        else:
            yield f"{place}: {format_value(value)}; there is no such key; allowed: {keys}"
    for name, field in fields.items():
        if field.required and name not in raw:
            allowed = _describe_allowed(inspect.type_info(field.type))
            yield f"{path}.{name}: missing; allowed: {allowed}".lstrip(".")


def _split_optional(kind: Any) -> tuple[bool, Any]:
    """Split a type into the type without None, and whether it takes None."""
    if get_origin(kind) not in {Union, types.UnionType}:
        return False, kind
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return len(kinds) < len(get_args(kind)), kinds[0]


def _get_item_type(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) in {tuple, list} else None


def _describe_allowed(info: inspect.Type) -> str:  # noqa: C901, PLR0911 - a line for each type
    match info:
        case inspect.Metadata(extra_json_schema={"description": text}):
            return f"{text}"
        case inspect.Metadata(type=inner):
            return _describe_allowed(inner)
        case inspect.LiteralType(values=values):
            return f"{', '.join(map(str, values))}"
        case inspect.BoolType():
            return "true, false"
        case inspect.IntType(ge=least, le=most):
            return f"whole numbers from {least} to {most}"
        case inspect.FloatType(ge=least, le=most):
            return f"numbers from {least:f} to {most:.0f}"
        case inspect.StrType(min_length=least, max_length=most) if most is not None:
            return f"a text of {least or 0} to {most} characters"
        case inspect.StrType():
            return "a text"
        case inspect.ListType(min_length=least) | inspect.VarTupleType(min_length=least):
            return f"a list of {least or 0} or more"
        case inspect.DictType():
            return "a mapping of texts"
    return "another type"
