"""A rule taken out of the shipped code: a line of it is changed, and a history that passes must then fail."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import pytest

from .histories import Kind

_PARTS = ("co_code", "co_consts", "co_names", "co_varnames")


@dataclass(frozen=True)
class Mutant:
    """A rule taken out.

    Attributes:
        name: the rule.
        module: where the shipped code has it.
        line: what stands there, once.
        instead: what stands in its place.
        kind: of the histories that break without it.
        seed: of one that does.
        also: the same rule at its second place, where extender and node both keep it: module, line, instead.
    """

    name: str
    module: ModuleType
    line: str
    instead: str
    kind: Kind
    seed: int
    also: tuple[ModuleType, str, str] | None = None

    @property
    def modules(self) -> tuple[ModuleType, ...]:
        """Shipped modules that the mutant changes."""
        return (self.module, self.also[0]) if self.also is not None else (self.module,)

    @property
    def definition(self) -> str:
        """Text that differs whenever the mutant is another one."""
        return repr((self.line, self.instead, self.kind.__name__, self.seed, self.also and self.also[1:]))

    def take_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the rule out of the shipped code."""
        change(monkeypatch, self.module, self.line, self.instead)
        if self.also is not None:
            change(monkeypatch, *self.also)


def plain_source(module: ModuleType) -> str:
    """Return a module's code as `ast.unparse` writes it: without comments, and however it is wrapped."""
    return ast.unparse(ast.parse(inspect.getsource(module)))


def plain(text: str) -> str:
    """Write a part of code with the quotes that `ast.unparse` takes."""
    return text.replace('"', "'")


def change(monkeypatch: pytest.MonkeyPatch, module: ModuleType, line: str, instead: str) -> None:
    """Have the functions of a module run as if its source had other text."""
    source, line, instead = plain_source(module), plain(line), plain(instead)
    assert source.count(line) == 1, f"{source.count(line)} times in {module.__name__}: {line}"
    before = dict(_functions(compile(source, module.__name__, "exec")))
    for name, code in _functions(compile(source.replace(line, instead), module.__name__, "exec")):
        if any(getattr(code, part) != getattr(before[name], part) for part in _PARTS):
            monkeypatch.setattr(_function(module, name), "__code__", code)


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Functions and methods by their qualified names."""
    for each in code.co_consts:
        if isinstance(each, CodeType) and "<" not in each.co_qualname:
            if each.co_flags & inspect.CO_NEWLOCALS and each.co_flags & inspect.CO_OPTIMIZED:
                yield each.co_qualname, each
            else:
                yield from _functions(each)


def _function(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    for inner in ("fget", "func", "__func__"):
        found = getattr(found, inner, found)
    return found
