"""Logging set-up of the console command: one event a line, key=value or JSON, on stderr."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO, cast

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from kubeapi.errors import make_printable


@contextmanager
def _hide_modules(name: str) -> Iterator[None]:
    """Let imports of a module fail that was not imported yet."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented: such an import raises
    try:
        yield
    finally:
        del sys.modules[name]


# structlog loads rich where it is installed, for tracebacks in colour, which our logs never have: 4 MiB.
with _hide_modules("rich"):
    import structlog


class _ClientFaults(logging.Filter):
    """Makes one line of a request that is not HTTP, where aiohttp's server would log a traceback.

    Unreadable bodies are logged where they are read.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change or drop a record of aiohttp's server."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg = f"{record.getMessage()}: {' '.join(error.message.split())}"
            record.args = ()
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return not isinstance(error, (RequestPayloadError, ConnectionError))


_CLIENT_FAULTS = _ClientFaults()

_STDERR_FD: Final = 2
_REMIND_S: Final = 60.0
_OUT_OF_FILES: Final = "socket.accept() out of system resource"


class Stderr:
    """Standard error for logs: a pipe nobody reads any more or a full disk loses lines, and does no harm.

    Unbuffered: what could not be written must not come up again with every later line.
    """

    def __init__(self) -> None:
        # Without one, the number belongs to the first file or connection that was opened.
        self._there = sys.stderr is not None

    def write(self, text: str) -> int:
        left = text.encode("utf-8", "backslashreplace") if self._there else b""
        with suppress(OSError):
            while left:
                left = left[os.write(_STDERR_FD, left) :]
        return len(text)

    def flush(self) -> None:
        """Do nothing: no line is kept back."""


_logfmt: Final = structlog.processors.LogfmtRenderer(
    key_order=["timestamp", "level", "event"], bool_as_flag=False
)


def _render_logfmt(logger: Any, name: str, event: structlog.typing.EventDict) -> str:
    """Write a line of key=value; control sequences in what others wrote do not reach a terminal."""
    return make_printable(_logfmt(logger, name, event))


_reminded_s = float("-inf")


def log_loop_trouble(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what an event loop has to say of itself; that no file can be opened it says 100 times a second."""
    global _reminded_s  # noqa: PLW0603 - one process, one limit of files
    if context.get("message") != _OUT_OF_FILES:
        loop.default_exception_handler(context)
        return
    now_s = time.monotonic()
    if now_s - _reminded_s >= _REMIND_S:
        _reminded_s = now_s
        logging.getLogger("asyncio").warning("no connection can be taken: %s", context.get("exception"))


def configure(level: str, form: str = "text") -> None:
    """Set up structlog, and what libraries log, from `level` upwards; both write the same kind of lines."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    stream = Stderr()
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = _render_logfmt
    if form == "json":
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
    )
    handler = logging.StreamHandler(cast("TextIO", stream))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])
    logging.getLogger("aiohttp.server").addFilter(_CLIENT_FAULTS)
