"""The cards' driver: called in a thread of its own, reported where it hangs, and let go while unused."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.host.driver import DriverThread
from deviceplugin.node_events import NodeEvents

log = structlog.get_logger(__name__)

HANGS_S: Final = 10.0
"""A call of the driver that takes longer is logged; usually none takes a second."""

DETACH_AFTER_S: Final = 5.0
"""How long nothing must have needed the driver before it is released."""

Answer = TypeVar("Answer")


class CardDriver:
    """The way to the driver of a node's cards.

    Attributes:
        is_detached: the driver was let go, and all cards are kept free of pods until it is taken up again:
            they may be others by then.
    """

    def __init__(
        self,
        account: LedgerService,
        source: GpuSource,
        notices: NodeEvents,
        thread: DriverThread,
        *,
        is_unused: Callable[[], bool] = lambda: False,
        detach_after_s: float = DETACH_AFTER_S,
        look_s: float = 1.0,
    ) -> None:
        self._account = account
        self._source = source
        self._notices = notices
        self._thread = thread
        self._is_unused = is_unused
        self._detach_after_s = detach_after_s
        self.hangs_after_s = HANGS_S
        self._look_s = look_s
        self._unused_since_s: float | None = None
        self._is_hang_reported = False
        self.is_detached = False

    @property
    def hangs_s(self) -> float:
        """Seconds that the driver has not answered; 0 while it does."""
        busy_s = self._thread.busy_s
        return busy_s if busy_s >= self.hangs_after_s else 0.0

    @property
    def is_needed_again(self) -> bool:
        """Whether the driver was let go, and the cards are used again."""
        return self.is_detached and not self._is_unused()

    async def call(self, function: Callable[[], Answer], on_hang: Callable[[], None]) -> Answer:
        """Call a function in the driver's thread, and `on_hang` again and again while it does not answer."""
        call = asyncio.ensure_future(self._thread.call(function))
        try:
            while not (await asyncio.wait({call}, timeout=self._look_s))[0]:
                if self.hangs_s:
                    self._report_hang()
                    on_hang()
            return call.result()
        finally:
            call.cancel()

    def _report_hang(self) -> None:
        if not self._is_hang_reported:
            self._is_hang_reported = True
            log.error("the cards' driver does not answer", seconds=round(self.hangs_s, 1))
            self._notices.record_driver_hangs()

    def record_answer(self) -> None:
        """Report that a driver that did not answer does again."""
        if self._is_hang_reported:
            self._is_hang_reported = False
            log.info("the cards' driver answers again")
            self._notices.record_driver_answers()

    async def detach_if_unused(self, on_hang: Callable[[], None]) -> bool:
        """Let the driver go once the cards are unused; return True if it is let go."""
        now_s = self._account.now_s()
        if not self._is_unused():
            self._unused_since_s = None
            return False
        since_s = self._unused_since_s = now_s if self._unused_since_s is None else self._unused_since_s
        if now_s - since_s < self._detach_after_s:
            return False
        if not self.is_detached:
            await self.call(self._source.detach, on_hang)
            self.is_detached = True
            ledger = self._account.ledger
            ledger.set_unavailable("detached", [card.uuid for card in ledger.installed])
            log.info("the cards' driver is let go: all cards are cordoned and empty")
            self._notices.record_driver_detached()
            self._account.notify_subscribers()
        return True

    def record_attached(self) -> None:
        """Offer the cards again, once they were measured by a driver that was taken up again."""
        if self.is_detached:
            self.is_detached = False
            self._account.ledger.set_unavailable("detached", ())
            log.info("the cards' driver is taken up again")
            self._notices.record_driver_attached()
            self._account.notify_subscribers()
