"""Reads text as people's shells write it, and writes answers for scripts."""

import codecs
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpupack.errors import InputError

T = TypeVar("T")


def to_utf8(raw: bytes) -> bytes:
    """Return text in UTF-8 without a byte order mark.

    PowerShell 5 writes UTF-16 with `>`, and a byte order mark with `Out-File -Encoding utf8`.

    Raises:
        UnicodeDecodeError: the mark says UTF-16, and the rest is something else.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16").encode()
    return raw.removeprefix(codecs.BOM_UTF8)


def read_input(filename: str, parse: Callable[[bytes], T]) -> T:
    """Read a file, or standard input for `-`.

    Raises:
        InputError: that of `parse`, with the name of the file.
        OSError: the file cannot be read.
    """
    if filename == "-":
        return parse(sys.stdin.buffer.read())
    raw = Path(filename).read_bytes()
    try:
        return parse(raw)
    except InputError as error:
        raise InputError(f"{filename}: {error}") from error


def as_json(answer: Any) -> str:
    """Write an answer for scripts."""
    import msgspec  # noqa: PLC0415

    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
