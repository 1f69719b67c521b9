"""The configuration's file: read at the start, and again whenever it changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from kubeapi.bounded_yaml import MOST_BYTES
from scheduler_plugin.errors import QueueConfigError
from scheduler_plugin.queue.config.queues import PolicyCheck, QueueConfig, parse_config

LOOK_S: Final = 1.0
"""How often the file is read: a ConfigMap's file is replaced by a symbolic link, which is costly to watch."""

log = structlog.get_logger(__name__)


class ConfigFile:
    """A file with a configuration.

    Attributes:
        fault: What is wrong with the newest text, empty for nothing; with a fault the previous text stays in
            force.
    """

    def __init__(self, path: str, check_policies: PolicyCheck = lambda _policy, _given: ()) -> None:
        self._path = Path(path)
        self._check_policies = check_policies
        self._text: str | None = None
        self.fault = self.text = ""

    def load(self) -> QueueConfig:
        """Read it for the first time.

        Raises:
            QueueConfigError: it cannot be read, or has faults.
        """
        self._text = self._read_file()
        config = self._parse_config(self._text)
        self.text = self._text
        return config

    async def follow_changes(self, changed: Callable[[QueueConfig], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.reload(changed)

    async def reload(self, changed: Callable[[QueueConfig], None]) -> None:
        """Read the file again; a text with faults changes nothing.

        A thread reads it: with thousands of queues that takes seconds, and the Lease must be renewed
        meanwhile.
        """
        try:
            config = await asyncio.to_thread(self._read_change)
        except QueueConfigError as error:
            self._record_fault(error)
            return
        except Exception as error:
            # The queues go on, whatever is in the file.
            log.exception("configuration cannot be read", path=str(self._path))
            fault = f"cannot be read: {type(error).__name__}: {error}"
            self._record_fault(QueueConfigError(str(self._path), [fault[:256]]))
            return
        if config is None:
            if self._text == self.text:
                self.fault = ""
            return
        self.fault, self.text = "", self._text or ""
        log.info("configuration read", path=str(self._path), queues=len(config.queues))
        changed(config)

    def _read_change(self) -> QueueConfig | None:
        """Return what the file says; None if that is known already, or in force."""
        # Of a text that could not be read for a moment the faults have to be found again.
        before, self._text = self._text, None
        self._text = text = self._read_file()
        return None if text in {before, self.text} else self._parse_config(text)

    def _parse_config(self, text: str) -> QueueConfig:
        return parse_config(str(self._path), text, self._check_policies)

    def _record_fault(self, error: QueueConfigError) -> None:
        if str(error) != self.fault:
            self.fault = str(error)
            log.warning("configuration refused, the one before stays in force", faults=error.faults)

    def _read_file(self) -> str:
        try:
            with self._path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
            if len(raw) > MOST_BYTES:
                raise QueueConfigError(str(self._path), [f"more than {MOST_BYTES} bytes"])
            return raw.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise QueueConfigError(str(self._path), [f"cannot be read: {reason}"]) from error
