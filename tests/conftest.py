"""What every test starts from."""

import gc
import signal
from collections.abc import Callable, Iterator

import pytest
import structlog

from tests.examples import choose_examples

choose_examples()
# Else the garbage collector walks over thousands of tests again and again.
gc.set_threshold(20_000, 10, 10)
# A shell starts what runs in the background with SIGINT ignored, and our children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """Say what was measured, and its figure, at the end of the run."""
    return lambda what, figure: record_property(what, str(figure))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for each in [each for reports in terminalreporter.stats.values() for each in reports]:
        if getattr(each, "when", None) == "call":
            for what, figure in each.user_properties:
                terminalreporter.write_line(f"{what}: {figure}")


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    """Undo the log set-up of a command run in this process: its stream is gone when the test ends.

    Without one structlog draws tracebacks with rich where that is installed, which takes a second each.
    """
    _log_plainly()
    yield
    _log_plainly()


def _log_plainly() -> None:
    structlog.reset_defaults()
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
