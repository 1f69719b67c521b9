"""YAML as plain dicts, lists and texts that are written back as they were read.

PyYAML's own loading turns `0644` into 420 and a time stamp into something that Kubernetes refuses. So a
scalar stays the text that it was, with its tag and its quotes. Aliases and merge keys are written out;
comments are lost, and `has_comments` tells whether there were any.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any, Final, Self

import yaml

from gpupack.errors import InputError

MAX_VALUES: Final = 200_000
"""A text that holds more, aliases written out, is refused: it would fill the memory."""

_MERGE: Final = "tag:yaml.org,2002:merge"
_NULL: Final = "tag:yaml.org,2002:null"
_TAGS: Final = {
    str: "tag:yaml.org,2002:str",
    int: "tag:yaml.org,2002:int",
    float: "tag:yaml.org,2002:float",
    bool: "tag:yaml.org,2002:bool",
    list: "tag:yaml.org,2002:seq",
    dict: "tag:yaml.org,2002:map",
}


class Scalar(str):
    """A scalar as it was written: its text, YAML tag and kind of quotes."""

    __slots__ = ("style", "tag")
    tag: str
    style: str | None

    @classmethod
    def of(cls, text: str, tag: str, style: str | None = None) -> Self:
        """Keep a scalar that was read."""
        scalar = cls(text)
        # To Kubernetes a time is a text, and in braces PyYAML could only write it with its tag.
        scalar.tag, scalar.style = tag.replace("timestamp", "str"), style
        return scalar

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing."""
        return self.tag == _NULL


class FlowList(list[Any]):
    """A sequence written in brackets."""


class FlowDict(dict[str, Any]):
    """A mapping written in braces."""


def load(text: str, name: str) -> list[Any]:
    """Read every document that is not empty.

    Args:
        text: one or more YAML documents, or JSON.
        name: of the file, for messages.

    Raises:
        InputError: not YAML, or more than MAX_VALUES values.
    """
    if text.lstrip().startswith("{"):
        try:
            return [_json(text)]
        except ValueError:
            pass  # YAML in braces
        except RecursionError as error:
            raise InputError(f"{name} is nested too deeply to be a manifest") from error
    hint = "; a Helm template has to be rendered first (helm template)" if "{{" in text else ""
    reader = _Reader(name, hint)
    try:
        return [reader.value(node) for node in yaml.compose_all(text, yaml.SafeLoader) if not _empty(node)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{name}{where} is not YAML: {error.problem or error.context}{hint}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{name} is not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply to be a manifest") from error


def dump(documents: Iterable[Any]) -> str:
    """Write documents, each after a line `---` where there are more than one."""
    nodes = [_node(document) for document in documents]
    if not nodes:
        return ""
    return str(
        yaml.serialize_all(
            nodes,
            Dumper=yaml.SafeDumper,
            explicit_start=len(nodes) > 1,
            allow_unicode=True,
            width=sys.maxsize,
        )
    )


def has_comments(text: str) -> bool:
    """Tell whether a text that `load` can read has comments: a `#` between two tokens."""
    position = 0
    if "#" not in text or _is_json(text):
        return False
    for token in yaml.scan(text, yaml.SafeLoader):
        if "#" in text[position : token.start_mark.index]:
            return True
        position = max(position, token.end_mark.index)
    return "#" in text[position:]


def _json(text: str) -> Any:
    """Read JSON by its own rules: YAML knows no tabs between values, and other escapes."""
    return json.loads(
        text,
        parse_int=lambda number: Scalar.of(number, _TAGS[int]),
        parse_float=lambda number: Scalar.of(repr(float(number)), _TAGS[float]),
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL


class _Reader:
    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint
        self._values = 0

    def value(self, node: yaml.Node) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise InputError(f"{self._name} holds more than {MAX_VALUES} values; allowed: manifests")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode):
            values = [self.value(each) for each in node.value]
            return FlowList(values) if node.flow_style else values
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 (there is no fourth kind)
        return Scalar.of(node.value, node.tag, node.style)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = FlowDict() if node.flow_style else {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                found = self.value(value_node)
                # Of several, the first one that has a key counts.
                for each in reversed(found if isinstance(found, list) else [found]):
                    if not isinstance(each, dict):
                        raise InputError(
                            f"{self._name}, line {key_node.start_mark.line + 1}: << merges mappings"
                        )
                    merged |= each
                continue
            key = self.value(key_node)
            if not isinstance(key, Scalar):
                raise InputError(
                    f"{self._name}, line {key_node.start_mark.line + 1}: a key is a mapping or a list; "
                    f"allowed: a text{self._hint}"
                )
            own[key] = self.value(value_node)
        for key, value in merged.items():
            own.setdefault(key, value)
        return own


def _node(value: Any) -> yaml.Node:
    if isinstance(value, Scalar):
        return yaml.ScalarNode(value.tag, str(value), style=value.style)
    if isinstance(value, dict):
        pairs = [(_node(key), _node(each)) for key, each in value.items()]
        return yaml.MappingNode(_TAGS[dict], pairs, flow_style=isinstance(value, FlowDict) or not pairs)
    if isinstance(value, list):
        items = [_node(each) for each in value]
        return yaml.SequenceNode(_TAGS[list], items, flow_style=isinstance(value, FlowList) or not items)
    if value is None or isinstance(value, bool):
        return yaml.ScalarNode(_NULL if value is None else _TAGS[bool], json.dumps(value))
    return yaml.ScalarNode(_TAGS[type(value)], str(value))
