"""Reads the output of `kubectl get ... -o json`: the one place that takes it apart and says what is wrong."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from allocator.errors import shown
from gpupack.encodings import to_utf8
from gpupack.errors import InputError

T = TypeVar("T")

ALL_ALLOWED: Final = "allowed: the output of `kubectl get nodes,pods -A -o json`"
NODES_ALLOWED: Final = "allowed: the output of `kubectl get nodes -o json`"


class _ItemMetadata(msgspec.Struct):
    name: str = ""


class _Item(msgspec.Struct):
    kind: str = "Node"
    metadata: _ItemMetadata = msgspec.field(default_factory=_ItemMetadata)


class _Input(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


class _EmptyList(msgspec.Struct):
    kind: str
    items: None


class _OtherContentError(Exception):
    """The input is JSON, but of something else."""


def read_items(
    text: str | bytes,
    kinds: Mapping[str, type[Any] | None],
    *,
    content: Literal["nodes", "nodes and pods"],
    allowed: str,
    single: bool = False,
) -> dict[str, list[Any]]:
    """Read the items of a list by kind; an item without a kind is a node.

    Args:
        kinds: The type of each kind that may be in it; None: items of that kind are left out.

    Raises:
        InputError: not JSON, an item of another kind, or nothing but items that are left out. The message
            names the place.
    """
    try:
        text = to_utf8(text) if isinstance(text, bytes) else text
        if not text.strip():
            raise InputError(f"the input is empty; {allowed}")
        return _read_sound(text, tuple(kinds.items())) or _read(text, kinds, single=single)
    except _OtherContentError as error:
        raise InputError(f"{error}; {allowed}") from error
    except msgspec.ValidationError as error:
        # It may end in rubbish all the same, which is the worse news.
        _check_json(text, allowed)
        raise InputError(f"the input does not hold {content} ({error}); {allowed}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the input is not JSON ({error}); {allowed}") from error


def _read_sound(
    text: str | bytes, kinds: tuple[tuple[str, type[Any] | None], ...]
) -> dict[str, list[Any]] | None:
    """Decode in one pass a list of which `_read` would say nothing wrong; None where that is not clear."""
    list_type, names = _make_list_type(kinds)
    try:
        items = msgspec.json.decode(text, type=list_type).items
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    by_kind: dict[str, list[Any]] = {kind: [] for kind, _ in kinds}
    for item in items:
        if type(item) in names:
            by_kind[names[type(item)]].append(item)
    if not any(by_kind.values()) or not all(node.metadata.name for node in by_kind["Node"]):
        return None
    return by_kind


@cache
def _make_list_type(
    kinds: tuple[tuple[str, type[Any] | None], ...],
) -> tuple[type[Any], dict[type[Any], str]]:
    """Make the type of a list with items of these kinds, and the kind of each type that is not left out."""
    types = {
        msgspec.defstruct(kind, (), bases=(found or msgspec.Struct,), tag_field="kind", tag=kind): kind
        for kind, found in kinds
    }
    names = {made: kind for made, kind in types.items() if dict(kinds)[kind] is not None}
    return msgspec.defstruct("Items", [("items", list[reduce(or_, types)])]), names  # type: ignore[misc]


def _read(text: str | bytes, kinds: Mapping[str, type[Any] | None], *, single: bool) -> dict[str, list[Any]]:
    items, places = _split(text, single=single)
    by_kind: dict[str, list[Any]] = {kind: [] for kind in kinds}
    left_out: _Item | None = None
    for number, raw in enumerate(items):
        place = places.format(number)
        item = _decode(raw, _Item, place)
        kind = kinds.get(item.kind)
        if kind is not None:
            by_kind[item.kind].append(_decode(raw, kind, place))
            if item.kind == "Node" and not item.metadata.name:
                raise _OtherContentError("the input holds a node without a name")
        elif item.kind in kinds:
            left_out = left_out or item
        else:
            raise _make_other_kind_error(item)
    if left_out is not None and not any(by_kind.values()):
        raise _make_other_kind_error(left_out)
    return by_kind


def _split(text: str | bytes, *, single: bool) -> tuple[list[msgspec.Raw], str]:
    """Split a list into its items, with the form of their places in it."""
    try:
        document = msgspec.json.decode(text, type=_Input)
    except msgspec.ValidationError:
        with suppress(msgspec.ValidationError):
            kind = msgspec.json.decode(text, type=_EmptyList).kind
            raise _OtherContentError(f"the input is a {shown(kind)} without items") from None
        raise
    if document.items is not UNSET:
        return document.items, "$.items[{}]"
    if document.metadata is not UNSET and single:
        return [msgspec.Raw(text)], "$"
    if document.kind.endswith("List"):
        raise _OtherContentError(f"the input is a {shown(document.kind)} without items")
    if document.kind and not single:
        raise _OtherContentError(f"the input is a {shown(document.kind)}, not a list")
    return msgspec.json.decode(text, type=_List).items, "$.items[{}]"  # says that there are none


def _make_other_kind_error(item: _Item) -> _OtherContentError:
    return _OtherContentError(f"the input holds a {shown(item.kind or 'thing')}, {shown(item.metadata.name)}")


def _check_json(text: str | bytes, allowed: str) -> None:
    try:
        msgspec.json.decode(text)
    except msgspec.ValidationError:  # a number that is too large for any type
        return
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the input is not JSON ({error}); {allowed}") from error


def _decode(item: msgspec.Raw, kind: type[T], place: str) -> T:
    """Decode one item; an error message says its position in the whole."""
    try:
        return msgspec.json.decode(item, type=kind)
    except msgspec.ValidationError as error:
        said, at, path = str(error).partition("`$")
        message = f"{said}`{place}{path}" if at else f"{error} - at `{place}`"
        raise msgspec.ValidationError(message) from error
