"""Waits for events of the NVIDIA driver: XID errors, and cards that were repartitioned."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import pynvml
import structlog

from deviceplugin.gpus.api.provable import FAULTS, MIG_CHANGES
from deviceplugin.gpus.nvidia.nvml_calls import call_optional

log = structlog.get_logger(__name__)

EVENT_WAIT_MS: Final = 500

_XID: Final = pynvml.nvmlEventTypeXidCriticalError
_MIG: Final = pynvml.nvmlEventMigConfigChange
KINDS: Final = {FAULTS: _XID, MIG_CHANGES: _MIG}


class NvmlEvents:
    """A thread that waits from `start` to `stop`. A driver without events has none."""

    def __init__(self, on_xid: Callable[[Any], None], on_mig: Callable[[], None]) -> None:
        self._on_xid = on_xid
        self._on_mig = on_mig
        self._stop = threading.Event()
        self._set: Any = None
        self._thread: threading.Thread | None = None
        self._reported = False

    def start(self, handles: Iterable[Any]) -> None:
        """Watch these cards; without events health rests on the samples alone."""
        self._stop.clear()
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._report(error)
            return
        if sum(self._register(handle) for handle in handles):
            self._thread = threading.Thread(target=self._wait, name="nvml-events", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop watching; twice is allowed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._set is not None:
            call_optional(lambda: pynvml.nvmlEventSetFree(self._set))
            self._set = None

    def _register(self, handle: Any) -> bool:
        """Ask for a card's events; a driver that does not know both kinds is asked for XIDs alone."""
        for kinds in (_XID | _MIG, _XID):
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
            except pynvml.NVMLError as error:
                failed = error
            else:
                return True
        self._report(failed)
        return False

    def _report(self, error: Any) -> None:
        if not self._reported:
            log.warning(
                "driver tells no errors of cards by itself: measurements must show them", error=str(error)
            )
            self._reported = True

    def _wait(self) -> None:
        while not self._stop.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, EVENT_WAIT_MS)
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                # A lost card makes the wait fail for all; the samples say which one it is.
                self._stop.wait(EVENT_WAIT_MS / 1000)
                continue
            if event.eventType == _XID:
                self._on_xid(event)
            elif event.eventType == _MIG:
                self._on_mig()
