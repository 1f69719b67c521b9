"""What every test starts from."""

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# No test asserts how long something takes, and a busy machine is no fault of the code. The examples are the
# same each time, so that a change is judged by what it does; GPUPACK_RANDOM_EXAMPLES=1 looks for others.
settings.register_profile(
    "gpupack",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("GPUPACK_RANDOM_EXAMPLES") != "1",
)
settings.load_profile("gpupack")


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
