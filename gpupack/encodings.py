"""Reads text as people's shells write it."""

import codecs


def to_utf8(raw: bytes) -> bytes:
    """Return text in UTF-8 without a byte order mark.

    PowerShell 5 writes UTF-16 with `>`, and a byte order mark with `Out-File -Encoding utf8`.

    Raises:
        UnicodeDecodeError: the mark says UTF-16, and the rest is something else.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16").encode()
    return raw.removeprefix(codecs.BOM_UTF8)
