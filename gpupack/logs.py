"""Logging set-up of the console command: one event a line, key=value, on stderr."""

import logging
import sys

import structlog


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
