"""Logging set-up of the console command: one event a line, key=value, on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError


@contextmanager
def _hidden(name: str) -> Iterator[None]:
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
with _hidden("rich"):
    import structlog


class _ClientFaults(logging.Filter):
    """Makes one line of a request that is not HTTP, where aiohttp's server would log a traceback.

    Bodies that cannot be read are left to those who read them.
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


def configure(level: str) -> None:
    """Set up structlog, and what libraries log, from `level` upwards.

    Args:
        level: debug, info, warning or error; anything else counts as info, for the settings' check tells.
    """
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(
                key_order=["timestamp", "level", "event"], bool_as_flag=False
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(number, logging.WARNING), format="level=%(levelname)s %(message)s"
    )
    logging.getLogger("aiohttp.server").addFilter(_CLIENT_FAULTS)
