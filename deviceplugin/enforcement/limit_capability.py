"""On which cards the driver limits containers' memory, and what `--memory-limits` makes of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.memory_limits import LimitSupport, MemoryLimits
from deviceplugin.host.driver import DriverThread
from deviceplugin.node_events import NodeEvents, make_silent_events
from deviceplugin.option_values import AUTO, OFF, REQUIRE

log = structlog.get_logger(__name__)

BEGIN_S: Final = 3.0

NO_LIMITS: Final = LimitSupport(can_limit=False, reason="the source of cards has no memory limits")
SWITCHED_OFF: Final = LimitSupport(can_limit=False, reason="--memory-limits off")
NOT_ASKED: Final = LimitSupport(can_limit=False, reason="the driver was not asked yet")


class LimitCapability:
    """Knows on which cards the driver sets limits; it belongs to one event loop.

    Args:
        account: the ledger; with `require` it offers no card on which nothing is held.
    """

    def __init__(
        self,
        account: LedgerService,
        driver: MemoryLimits | None,
        *,
        mode: str = AUTO,
        notices: NodeEvents | None = None,
        on_offer: Callable[[], None] = lambda: None,
    ) -> None:
        self._account = account
        self._on_offer = on_offer
        self._mode = mode
        self._notices = notices or make_silent_events()
        self._cards = tuple(card.uuid for card in account.ledger.installed)
        self._found = dict.fromkeys(self._cards, NOT_ASKED)
        self._asking: asyncio.Task[None] | None = None
        self._thread = DriverThread("support of limits")
        self.driver = None if mode == OFF else driver
        self._withhold()

    def get_support(self, uuid: str) -> LimitSupport:
        """Return whether the driver sets limits on a card, and why not."""
        return self._found.get(uuid, NO_LIMITS)

    def container_envs(self, shares_mib: Mapping[str, int]) -> Mapping[str, str]:
        """Name the variables for the vendor's toolkit; none if the driver does not hold all the cards.

        Args:
            shares_mib: MiB by UUID of one container; the toolkit knows one limit for all of them.
        """
        if self.driver is None or not all(self.get_support(uuid).can_limit for uuid in shares_mib):
            return {}
        least_mib = min(shares_mib.values(), default=0)
        return self.driver.container_envs(least_mib) if least_mib > 0 else {}

    async def start(self) -> None:
        """Probe for the first time; a driver that does not answer soon is waited for beside other work."""
        self.probe_in_background()
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=BEGIN_S)

    async def probe_cards(self) -> None:
        """Ask the driver about every card, and log what is new."""
        found = await self._thread.call(lambda: ask_supports(self.driver, self._mode, self._cards))
        # The cards may have changed meanwhile.
        before, self._found = self._found, {**self._found, **found}
        self._found = {uuid: self._found[uuid] for uuid in self._cards}
        if self._found == before:
            return
        by_support: dict[LimitSupport, list[str]] = {}
        for uuid in self._cards:
            if self._found[uuid] != before.get(uuid):
                by_support.setdefault(self._found[uuid], []).append(uuid)
        for support, cards in by_support.items():
            self._log_support(cards, support)
        self._withhold()
        self._account.notify_subscribers()

    def update_cards(self) -> None:
        """Apply the ledger's current cards; new ones are probed, and until then count as not limited."""
        self._cards = tuple(card.uuid for card in self._account.ledger.installed)
        self._found = {uuid: self._found.get(uuid, NOT_ASKED) for uuid in self._cards}
        self._withhold()
        self.probe_in_background()

    def probe_in_background(self) -> None:
        """Probe beside other work. A driver that has not answered yet is not asked again."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self.probe_cards())

    def _withhold(self) -> None:
        if self._mode == REQUIRE:
            supports = {uuid: self.get_support(uuid) for uuid in self._cards}
            self._account.set_not_enforced(
                {uuid: _why_not_offered(each) for uuid, each in supports.items() if not each.can_limit}
            )
            self._on_offer()

    def _log_support(self, cards: Sequence[str], support: LimitSupport) -> None:
        """Log whether the driver limits the memory of these cards and, if not, why."""
        if support.can_limit:
            log.info("memory limits are held by the driver", cards=cards)
        elif self._mode != REQUIRE and support.is_forbidden:
            log.warning("memory is accounted, the driver would limit it", cards=cards, reason=str(support))
            self._notices.record_limits_forbidden(cards, str(support))
        elif self._mode != REQUIRE:
            log.info("memory is accounted, not limited by the driver", cards=cards, reason=str(support))
        else:
            log.error("cards are not offered: --memory-limits require", cards=cards, reason=str(support))
            for uuid in cards:
                self._notices.record_not_offered(uuid, _why_not_offered(support))


def _why_not_offered(support: LimitSupport) -> str:
    return f"--memory-limits require, and {support}"


def ask_supports(driver: MemoryLimits | None, mode: str, uuids: Sequence[str]) -> dict[str, LimitSupport]:
    """Ask the driver on which cards it sets limits. Blocking.

    Args:
        mode: what `--memory-limits` says.
    """
    if mode == OFF:
        return dict.fromkeys(uuids, SWITCHED_OFF)
    if driver is None:
        return dict.fromkeys(uuids, NO_LIMITS)
    return {uuid: _answer(driver, uuid) for uuid in uuids}


def _answer(driver: MemoryLimits, uuid: str) -> LimitSupport:
    """Probe one card; an unexpected error counts as no, until the next probe."""
    try:
        return driver.support(uuid)
    except Exception as error:
        log.exception("a question about memory limits failed", card=uuid)
        return LimitSupport(
            can_limit=False, reason=f"the driver's answer failed: {type(error).__name__}: {error}"
        )
