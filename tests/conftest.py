"""What every test starts from."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# No test asserts how long something takes, and a busy machine is no fault of the code.
settings.register_profile("gpupack", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpupack")


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    """Undo the log set-up of a command run in this process: its stream is gone when the test ends."""
    yield
    structlog.reset_defaults()
