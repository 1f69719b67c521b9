"""NVML's shared library as C callbacks that the methods of one object answer, for the real pynvml to call.

It stands where pynvml keeps the library that it loaded, so tests of the NVML source run all of pynvml: which
symbol a call asks for, symbols that are missing, the layout and version of structs, lists that are asked for
twice, and the numbers that calls return in place of exceptions.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pynvml
from pytest_mock import MockerFixture

HANDLE: Final = object()
"""A parameter or answer that stands for an object; its C value is the object's address."""
TEXT: Final = object()
"""An answer that is written into a buffer of the caller's, whose size is the last parameter."""


@dataclass(frozen=True)
class At:
    """A parameter that points to a number or a struct, which the method reads or writes.

    Attributes:
        version: The version that the struct must name in its first word, beside its size; 0 for any.
    """

    kind: Any
    version: int = 0

    def read(self, address: int) -> Any:
        """Refuse a struct of another layout, as the driver does."""
        thing = self.kind.from_address(address)
        if self.version and thing.version != self.version << 24 | ctypes.sizeof(self.kind):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return thing


@dataclass(frozen=True)
class Many:
    """An answer that is a list, of numbers or of structs whose fields come as tuples."""

    kind: Any


@dataclass(frozen=True)
class Symbol:
    """A function of the library.

    Attributes:
        name: Without `nvml`.
        method: The method that answers it, which may answer several versions.
        takes: Its parameters: a C type, HANDLE or `At`.
        gives: What the method returns and the parameters that follow are for: a C type of a number, HANDLE,
            TEXT, `Many`, or None.
    """

    name: str
    method: str
    takes: tuple[Any, ...]
    gives: Any

    def c_types(self) -> list[Any]:
        outs = [c_void_p, c_void_p if isinstance(self.gives, Many) else c_uint]
        count = 0 if self.gives is None else 2 if self.gives is TEXT or isinstance(self.gives, Many) else 1
        takes = [c_void_p if each is HANDLE or isinstance(each, At) else each for each in self.takes]
        return [*takes, *outs[:count]]


SYMBOLS: dict[str, Symbol] = {}


F = TypeVar("F", bound=Callable[..., Any])


def symbol(*takes: Any, gives: Any = None, name: str | None = None) -> Callable[[F], F]:
    """Let a method answer a symbol of the library, by default the one of its name."""

    def register(function: F) -> F:
        full = name or f"nvml{function.__name__}"
        SYMBOLS[full] = Symbol(full.removeprefix("nvml"), function.__name__, takes, gives)
        return function

    return register


class Answers(Protocol):
    """The object behind a library.

    Attributes:
        missing: Symbols that the library lacks.
        objects: What handles were given for.
    """

    missing: set[str]
    objects: dict[int, Any]

    def call(self, symbol: Symbol, *args: Any) -> Any:
        """Answer a symbol by its method; raises NVMLError where it fails."""


def install(mocker: MockerFixture, answers: Answers) -> None:
    """Let pynvml find the library loaded, as after its first call."""
    mocker.patch.object(pynvml, "nvmlLib", Library(answers))
    mocker.patch.object(pynvml, "_nvmlGetFunctionPointer_cache", {})
    mocker.patch.object(pynvml, "_nvmlLib_refcount", 0)


class Library:
    """A library whose symbols are C functions."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name not in SYMBOLS or name in self._answers.missing:
            raise AttributeError(name)
        symbol = SYMBOLS[name]

        def call(*args: Any) -> int:
            try:
                self._call(symbol, args)
            except pynvml.NVMLError as error:
                return int(error.value)
            return int(pynvml.NVML_SUCCESS)

        return ctypes.CFUNCTYPE(c_uint, *symbol.c_types())(call)

    def _call(self, symbol: Symbol, args: tuple[Any, ...]) -> None:
        taken = [self._take(kind, value) for kind, value in zip(symbol.takes, args, strict=False)]
        told = self._answers.call(symbol, *taken)
        outs = args[len(taken) :]
        if symbol.gives is HANDLE:
            give_handle(self._answers, told, *outs)
        elif symbol.gives is TEXT:
            _write_text(told, *outs)
        elif isinstance(symbol.gives, Many):
            write_list(symbol.gives.kind, told, *outs)
        elif symbol.gives is not None:
            symbol.gives.from_address(*outs).value = told

    def _take(self, kind: Any, value: Any) -> Any:
        if kind is HANDLE:
            if value not in self._answers.objects:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return self._answers.objects[value]
        if isinstance(kind, At):
            return kind.read(value)
        return value.decode() if kind is c_char_p else value


def give_handle(answers: Answers, thing: Any, out: int) -> None:
    answers.objects[id(thing)] = thing
    c_void_p.from_address(out).value = id(thing)


def _write_text(text: str, out: int, size: int) -> None:
    raw = text.encode() + b"\0"
    if len(raw) > size:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    ctypes.memmove(out, raw, len(raw))


def write_list(kind: Any, items: Sequence[Any], count: int, out: int | None) -> None:
    """Answer as NVML answers with lists: how many there are, or as many as there is room for."""
    room = c_uint.from_address(count)
    asked, room.value = (0 if out is None else room.value), len(items)
    if len(items) > asked:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    if out is not None and items:
        (kind * asked).from_address(out)[: len(items)] = [
            kind(*item) if isinstance(item, tuple) else kind(item) for item in items
        ]
