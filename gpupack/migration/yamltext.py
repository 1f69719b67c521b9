"""YAML that is written back as it was read: comments, order, quotes, anchors and the text of every scalar.

ruamel.yaml keeps comments. Its own loading turns `0644` into 644, so a scalar that is no text stays the text
that it was, with its tag. A document in which nothing changed is not written anew at all.
"""

import json
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final, Self

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import ScalarString, SingleQuotedScalarString
from ruamel.yaml.tokens import CommentToken

from gpupack.errors import InputError

MAX_VALUES: Final = 200_000
"""Most values of a text, aliases written out; more would fill the memory."""

_MARKER: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_TAIL: Final = re.compile(r"^#[^\n]*(?:\n(?:#[^\n]*)?)*\Z", re.MULTILINE)
"""Comments at the end of a document, from one at the beginning of a line on: no value goes on after that."""

_LINE: Final = re.compile(r"^( *)(- )?(?=[^\s#])[^\n]*?(:[ \t]*(?:#[^\n]*)?)?$", re.MULTILINE)
_TAG: Final = "tag:yaml.org,2002:"
_NULL: Final = f"{_TAG}null"
_TEXT: Final = f"{_TAG}str"
_RESOLVER: Final[Any] = yaml.resolver.Resolver()


class Scalar(ScalarString):
    """A scalar that is no text as it was written: its text and its YAML tag."""

    __slots__ = ("tag",)
    tag: str

    @classmethod
    def of(cls, text: str, tag: str, anchor: str | None = None) -> Self:
        scalar: Self = cls.__new__(cls, text, anchor=anchor)
        scalar.tag = tag
        return scalar

    @property
    def is_null(self) -> bool:
        return self.tag == _NULL


@dataclass
class YamlDocument:
    """A document of a text.

    Attributes:
        before: The text in front of it: its line `---`, directives, and comments where it has nothing else.
        offset: Number of the lines in front of it.
        after: Comments at its end.
    """

    before: str
    text: str
    content: Any
    offset: int = 0
    after: str = ""

    def dump(self, before: str) -> str:
        """Write it again, unchanged where its content is still `before`, the result of `format_content`."""
        now = self.format_content()
        return self.before + (self.text if now == before and not _is_json(self.text) else now) + self.after

    def format_content(self) -> str:
        """Write what it holds now; empty for nothing."""
        if self.content is None:
            return ""
        stream = StringIO()
        _make_yaml(self.text).dump(self.content, stream)
        return stream.getvalue()


def load(text: str, name: str) -> list[YamlDocument]:
    """Read every document.

    Raises:
        InputError: not YAML, or more than MAX_VALUES values.
    """
    hint = "; a Helm template has to be rendered first (helm template)" if "{{" in text else ""
    try:
        if text.lstrip().startswith("{"):
            try:
                return [YamlDocument("", text, _load_json(text))]
            except ValueError:
                pass  # YAML in braces
        found = list(_split(text))
        for document in found:
            document.content = _load_yaml(document, name, hint)
            _check(document.content, name, hint)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply to be a manifest") from error
    return found


def rename_key(mapping: Any, old: str, new: str, value: Any) -> None:
    """Put another key and value where a key stands; its comments stay."""
    position = list(mapping).index(old)
    comment = mapping.ca.items.get(old)
    del mapping[old]
    mapping.insert(position, new, value)
    if comment is not None:
        mapping.ca.items.pop(old, None)
        mapping.ca.items[new] = comment


def remove_key(mapping: Any, key: str) -> None:
    """Remove a key; its comments stay with the key before it."""
    names = list(mapping)
    position = names.index(key)
    token = (mapping.ca.items.get(key) or [None] * 4)[2]
    mapping.ca.items.pop(key, None)
    del mapping[key]
    if token is None or len(names) == 1:
        return
    if position == 0:
        lines = [
            line.strip().removeprefix("#").removeprefix(" ") for line in token.value.strip().splitlines()
        ]
        mapping.yaml_set_comment_before_after_key(names[1], before="\n".join(lines), indent=mapping.lc.col)
        return
    there = mapping.ca.items.setdefault(names[position - 1], [None, None, None, None])
    text = token.value if token.value.startswith("\n") else f"\n{' ' * mapping.lc.col}{token.value}"
    if there[2] is None:
        there[2] = CommentToken(text, token.start_mark, None)
    else:
        there[2].value = there[2].value.rstrip("\n") + text


def write_out_aliases(content: Any) -> Any:
    """Copy nodes that several places share, so that each place can be changed independently."""
    if isinstance(content, CommentedMap):
        for key, value in list(content.items()):
            content[key] = write_out_aliases(deepcopy(value))
        if hasattr(content, "_yaml_merge"):
            del content._yaml_merge  # noqa: SLF001 (what was merged are its own keys now)
    elif isinstance(content, CommentedSeq):
        for index, value in enumerate(list(content)):
            content[index] = write_out_aliases(deepcopy(value))
    if isinstance(content, CommentedMap | CommentedSeq):
        content.yaml_set_anchor(None)
    return content


def list_shared(content: Any) -> Iterator[Any]:
    """List the mappings and lists that stand in several places, by alias or by merge."""
    seen: set[int] = set()

    def walk(value: Any) -> Iterator[Any]:
        if not isinstance(value, dict | list):
            return
        if id(value) in seen:
            yield value
            return
        seen.add(id(value))
        yield from getattr(value, "merge", None) or ()
        for each in value.values() if isinstance(value, dict) else value:
            yield from walk(each)

    return walk(content)


def _split(text: str) -> Iterator[YamlDocument]:
    """Split a text at its lines `---`; a line that begins so is no part of any value."""
    starts = [found.start() for found in _MARKER.finditer(text)]
    ends = [*starts, len(text)]
    if not starts or text[: starts[0]].strip():
        yield _make_document("", text[: ends[0]], 0)
    else:
        yield YamlDocument(text[: starts[0]], "", None)
    for start, end in zip(starts, ends[1:], strict=True):
        yield _make_document("---", text[start + 3 : end], text.count("\n", 0, start))


def _make_document(marker: str, text: str, offset: int) -> YamlDocument:
    """Make a document; what its marker line has besides content is kept unchanged."""
    before = marker
    line, newline, rest = text.partition("\n")
    if marker and (not line.strip() or line.strip().startswith("#")):
        before, text, offset = marker + line + newline, rest, offset + 1
    tail = _TAIL.search(text)
    if tail is not None:
        return YamlDocument(before, text[: tail.start()], None, offset, tail[0])
    return YamlDocument(before, text, None, offset)


def _load_yaml(document: YamlDocument, name: str, hint: str) -> Any:
    try:
        content = _make_yaml(document.text).load(document.text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1 + document.offset}" if mark is not None else ""
        said = str(error.problem or error.context).split("\n")[0]
        raise InputError(f"{name}{where} is not YAML: {said}{hint}") from error
    except YAMLError as error:
        raise InputError(f"{name} is not YAML: {str(error).splitlines()[0]}") from error
    return None if isinstance(content, Scalar) and content.is_null else content


def _check(content: Any, name: str, hint: str) -> None:
    """Refuse documents that are no manifests: too many values, or keys that are not text."""
    count = 0

    def walk(value: Any) -> None:
        nonlocal count
        count += 1
        if count > MAX_VALUES:
            raise InputError(f"{name} holds more than {MAX_VALUES} values; allowed: manifests")
        if isinstance(value, dict):
            for key, each in value.items():
                if not isinstance(key, str):
                    raise InputError(f"{name}: a key is a mapping or a list; allowed: a text{hint}")
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(content)


def _make_yaml(text: str) -> YAML:
    """Make what reads and writes a text, with its indentation of lists."""
    made = YAML(typ="rt", pure=True)
    made.Constructor, made.Representer = _Constructor, _Representer
    made.preserve_quotes = True
    made.width = sys.maxsize
    mapping, offset = _find_indents(text)
    made.indent(mapping=mapping, sequence=2 + offset, offset=offset)
    return made


def _find_indents(text: str) -> tuple[int, int]:
    """Find by how much the first mapping inside another and the first list in one are indented."""
    mapping: int | None = None
    offset: int | None = None
    before: int | None = None
    for found in _LINE.finditer(text):
        indent, is_item = len(found[1]), found[2] is not None
        if before is not None and is_item and offset is None and indent >= before:
            offset = indent - before
        elif before is not None and not is_item and mapping is None and indent > before:
            mapping = indent - before
        before = indent if found[3] is not None and not is_item else None
    return mapping or 2, offset or 0


class _Constructor(RoundTripConstructor):
    """Keeps the written form of scalars that are not strings."""


class _Representer(RoundTripRepresenter):
    """Writes such a text as it was."""


def _keep(_constructor: _Constructor, node: Any) -> Scalar:
    # To Kubernetes a time is a text, and its tag must not be written.
    return Scalar.of(node.value, node.tag, node.anchor)


def _write(representer: _Representer, scalar: Scalar) -> Any:
    return representer.represent_scalar(scalar.tag, str(scalar), anchor=scalar.yaml_anchor())


for _kind in ("int", "float", "bool", "timestamp", "null"):
    _Constructor.add_constructor(f"{_TAG}{_kind}", _keep)
_Representer.add_representer(Scalar, _write)


def _load_json(text: str) -> Any:
    """Read JSON by its own rules: YAML knows no tabs between values, and other escapes."""
    return _convert_json(
        json.loads(
            text,
            parse_int=lambda number: Scalar.of(number, f"{_TAG}int"),
            parse_float=lambda number: Scalar.of(repr(float(number)), f"{_TAG}float"),
        )
    )


def _convert_json(value: Any) -> Any:
    """Turn JSON into what YAML is read as; texts that Kubernetes would take for something else get quotes."""
    if isinstance(value, dict):
        return CommentedMap((_convert_json(key), _convert_json(each)) for key, each in value.items())
    if isinstance(value, list):
        return CommentedSeq(_convert_json(each) for each in value)
    if value is None or isinstance(value, bool):
        return Scalar.of(json.dumps(value), _NULL if value is None else f"{_TAG}bool")
    if isinstance(value, Scalar):
        return value
    tag = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))
    return value if tag == _TEXT else SingleQuotedScalarString(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
