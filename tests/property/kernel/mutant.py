"""A rule taken out of a shipped function: some of its code is changed, and a history must then fail."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import pytest

Kind = Callable[[int], object]
"""Runs a history, given its seed."""


@dataclass(frozen=True)
class Mutant:
    """A rule taken out.

    Attributes:
        name: the rule.
        function: the shipped function or property that has it.
        code: what stands in it, once, as `ast.unparse` writes it.
        instead: what stands in its place.
        kind: of the histories that break without it; the model's record has the seed of one that does.
        also: function, code, instead at the second place, where extender and node both keep the rule.
    """

    name: str
    function: Any
    code: str
    instead: str
    kind: Kind
    also: tuple[Any, str, str] | None = None

    @property
    def modules(self) -> tuple[ModuleType, ...]:
        functions = (self.function, self.also[0]) if self.also is not None else (self.function,)
        return tuple(sys.modules[_unwrap(function).__module__] for function in functions)

    @property
    def definition(self) -> str:
        """Text that differs whenever the mutant is another one."""
        return repr((self.code, self.instead, self.kind.__name__, self.also and self.also[1:]))

    def take_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the rule out of the shipped code."""
        change(monkeypatch, self.function, self.code, self.instead)
        if self.also is not None:
            change(monkeypatch, *self.also)


def plain_source(module: ModuleType) -> str:
    """Return a module's code as `ast.unparse` writes it: without comments, and however it is wrapped."""
    return ast.unparse(ast.parse(inspect.getsource(module)))


def plain(text: str) -> str:
    """Write a part of code with the quotes that `ast.unparse` takes."""
    return text.replace('"', "'")


def change(monkeypatch: pytest.MonkeyPatch, function: Any, code: str, instead: str) -> None:
    """Have a function run as if its source had other text."""
    function, code, instead = _unwrap(function), plain(code), plain(instead)
    name = function.__qualname__
    lines = plain_source(sys.modules[function.__module__]).splitlines(keepends=True)
    node = dict(_definitions(ast.parse("".join(lines))))[name]
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    source = "".join(lines[node.lineno - 1 : node.end_lineno])
    assert source.count(code) == 1, f"{source.count(code)} times in {function.__module__}.{name}: {code}"
    changed = compile(f"{before}{source.replace(code, instead)}{after}", function.__module__, "exec")
    monkeypatch.setattr(function, "__code__", dict(_functions(changed))[name])


def _definitions(node: ast.AST, *within: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods in a module's code by their qualified names."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join((*within, each.name)), each
        else:
            yield from _definitions(each, *within, *([each.name] if isinstance(each, ast.ClassDef) else []))


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Functions and methods by their qualified names."""
    for each in code.co_consts:
        if isinstance(each, CodeType) and "<" not in each.co_qualname:
            if each.co_flags & inspect.CO_NEWLOCALS and each.co_flags & inspect.CO_OPTIMIZED:
                yield each.co_qualname, each
            else:
                yield from _functions(each)


def _unwrap(function: Any) -> Any:
    """Return the plain function of a property, a cached property or a method."""
    for inner in ("fget", "func", "__func__", "__wrapped__"):
        function = getattr(function, inner, function)
    return function
