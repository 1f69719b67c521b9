"""Reads YAML from untrusted sources: the work is bounded by the length of the text.

Aliases are refused, because a few lines of them stand for a billion values. So are deep nesting and long
numbers: they take far more time than their length suggests, and `[[[[...` overflows the stack of the loader
that libyaml brings.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml
from yaml.composer import Composer

MOST_BYTES: Final = 1 << 20
"""Longest text; a ConfigMap cannot be longer."""

MOST_LEVELS: Final = 64

MOST_DIGITS: Final = 1024
"""Characters of a value that is no text: the time to read `1:1:1:...` grows with the square of its length."""

SHOWN: Final = 64
"""Characters of a value that a message shows."""

_TEXT: Final = "tag:yaml.org,2002:str"


def load_yaml(text: str) -> tuple[Any, list[str]]:
    """Read a document, and find keys that stand twice: of those the last one would win in silence.

    Returns:
        The document, None if there is none, and a fault for each key that stands twice, with its path.

    Raises:
        ValueError: the text is not YAML, or more than this module reads; the message is one line.
    """
    nodes, documents = _load(text)
    if len(nodes) > 1:
        raise ValueError(f"line {nodes[1].start_mark.line + 1}: another document; allowed: one")
    return (documents[0], list(_find_repeated_keys(nodes[0], ""))) if nodes else (None, [])


def load_yaml_documents(text: str) -> list[Any]:
    """Read every document of a text.

    Raises:
        ValueError: as `load_yaml`.
    """
    return _load(text)[1]


def _load(text: str) -> tuple[list[yaml.Node], list[Any]]:
    size = len(text.encode("utf-8", "replace"))
    if size > MOST_BYTES:
        raise ValueError(f"{size} bytes; allowed: {MOST_BYTES}")
    try:
        loader = _BoundedLoader(text)
        try:
            nodes: list[yaml.Node] = []
            while loader.check_node() and (node := loader.get_node()) is not None:
                nodes.append(node)
            return nodes, [loader.construct_document(node) for node in nodes]
        finally:
            loader.dispose()
    except _RefusedValueError:
        raise
    except Exception as error:  # PyYAML lets KeyError, IndexError, OverflowError and more through
        line = " ".join((str(error) or type(error).__name__).split())
        raise ValueError(f"not YAML: {line[:256]}") from error


class _RefusedValueError(ValueError):
    """A value that is YAML, and more than this module reads."""


class _BoundedLoader(Composer, yaml.CSafeLoader):
    """Parses with libyaml, and checks each node while the tree is made."""

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        line = event.start_mark.line + 1
        if self.check_event(yaml.AliasEvent):
            alias = f"*{event.anchor[:SHOWN]}"
            raise _RefusedValueError(f"line {line}: alias {alias}; allowed: the values written out")
        if self._levels == MOST_LEVELS:
            raise _RefusedValueError(f"line {line}: nested deeper than {MOST_LEVELS} levels")
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > MOST_DIGITS:
            raise _RefusedValueError(
                f"line {line}: a number of {len(node.value)} characters; allowed: {MOST_DIGITS}"
            )
        return node


def _find_repeated_keys(node: yaml.Node, path: str) -> Iterator[str]:
    if isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            yield from _find_repeated_keys(item, f"{path}[{at}]")
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value)[:SHOWN] if isinstance(key, yaml.ScalarNode) else "?"
            place = f"{path}.{name}".lstrip(".")
            if name in keys:
                again = f" with {value.value[:SHOWN]!r}" if isinstance(value, yaml.ScalarNode) else ""
                yield f"{place}: stands again{again}; allowed: once"
            keys.add(name)
            yield from _find_repeated_keys(value, place)
