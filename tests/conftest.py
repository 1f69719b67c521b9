"""What every test starts from."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    """Undo the log set-up of a command run in this process: its stream is gone when the test ends."""
    yield
    structlog.reset_defaults()
