"""Measures the cards and follows their health; the driver is only ever called from threads of their own."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.errors import DriverGoneError, GpuError
from deviceplugin.gpus.api.source import GpuCard, GpuSample, GpuSource
from deviceplugin.host.cgroups import ProcessPlace
from deviceplugin.host.driver import DriverThread
from deviceplugin.monitoring.card_driver import CardDriver
from deviceplugin.monitoring.card_health import CardHealth
from deviceplugin.monitoring.telemetry import TelemetryHistory, is_fresh
from deviceplugin.monitoring.unaccounted_use import PublishedUnits, UnaccountedUse, measure_unaccounted_use
from deviceplugin.node_events import NodeEvents, make_silent_events
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

SAMPLE_S: Final = 5.0
EVENT_WAIT_S: Final = 30.0

SOON_S: Final = 0.5
"""Shortest time between two measurements after news of a card."""

EVENT_GAP_S: Final = 0.1
"""How long news are gathered: in a storm of them, cards are checked ten times a second."""

UNMEASURED_S: Final = 75.0
"""Cards that could not be measured for so long are given to no pod."""

CLOSE_S: Final = 2.0

CardListHandler = Callable[[Sequence[GpuCard], Callable[[str], bool]], None]
"""Applies the source's list of cards after each measurement, and asks which of them are healthy."""


class ProcessOwnerLookup(Protocol):
    """Finds the pods of processes, as `cgroups.ProcessOwners` does. Blocking."""

    def find_places(self, pids: Iterable[int]) -> Mapping[int, ProcessPlace | None]: ...


class CardSampler:
    """Turns measurements into unaccounted use, and trouble into unhealthy cards.

    Args:
        list_helper_pids: lists the processes that only serve containers. What little they use is nobody's: it
            counts as what no process uses. Called where the cards are measured; may block.

    Attributes:
        sampled_s: when it was begun, by the ledger's clock.
        places: where its processes run, None for those of no pod; unknown ones are left out.
        uses: newest judgement of each card.
        telemetry: what the cards did during the last minutes.
        driver_gone_reason: why the driver does not come back to this process, which ends; None while it may.
    """

    def __init__(
        self,
        account: LedgerService,
        source: GpuSource,
        owners: ProcessOwnerLookup,
        driver: CardDriver,
        health: CardHealth,
        *,
        unit_mib: int,
        on_cards: CardListHandler = lambda _gpus, _healthy: None,
        list_helper_pids: Callable[[], Collection[int]] = lambda: (),
        notices: NodeEvents | None = None,
        every_s: float = SAMPLE_S,
    ) -> None:
        self._account = account
        self._source = source
        self._owners = owners
        self.driver = driver
        self.health = health
        self._unit_mib = unit_mib
        self._published_units = PublishedUnits(unit_mib, account.now_s)
        self._on_cards = on_cards
        self._list_helper_pids = list_helper_pids
        self._notices = notices or make_silent_events()
        self._every_s = every_s
        self._unmeasured_s = UNMEASURED_S
        self._news = DriverThread("gpu-news")
        self._stepper = Stepper(self._step)
        self._measured_s = account.now_s()
        self.samples: Sequence[GpuSample] = ()
        self.sampled_s = float("-inf")
        self.places: Mapping[int, ProcessPlace | None] = {}
        self.uses: dict[str, UnaccountedUse] = {}
        self.memory_errors: dict[str, Mapping[str, int]] = {}
        self.telemetry = TelemetryHistory(every_s, account.now_s)
        self.errors = 0
        self.driver_gone_reason: str | None = None
        account.subscribe(self._on_account)

    def _on_account(self) -> None:
        if self.driver.is_needed_again:
            self._stepper.wake()

    @property
    def fresh_uses(self) -> dict[str, UnaccountedUse]:
        """Those of `uses` that are true now. The others, old or of cards that fail, are only charged on."""
        if not is_fresh(self.sampled_s, self._account.now_s()):
            return {}
        return {sample.uuid: self.uses[sample.uuid] for sample in self.samples if sample.error is None}

    @property
    def residue_mib(self) -> dict[str, int]:
        """MiB by card that no process uses and that do not count, for cards whose driver keeps such pages."""
        uses = self.fresh_uses
        return {
            sample.uuid: uses[sample.uuid].residue_mib
            for sample in self.samples
            if sample.keeps_pages and sample.uuid in uses
        }

    @property
    def problem(self) -> str | None:
        """Why the cards are not measured; None while they are."""
        if self.driver_gone_reason is not None:
            return self.driver_gone_reason
        if hangs_s := self.driver.hangs_s:
            return f"the cards' driver has not answered for {hangs_s:.0f} s"
        return self.health.problem

    async def run(self) -> None:
        """Measure until cancelled.

        Raises:
            DriverGoneError: the driver does not come back to this process.
            DeviceListError: the cards have changed, and no kubelet could take their devices.
        """
        await self._stepper.run()

    async def _step(self) -> float:
        await self._once()
        await asyncio.sleep(min(SOON_S, self._every_s))
        return max(0.0, self._every_s - SOON_S)

    async def follow_events(self) -> None:
        try:
            while True:
                events = await self._news.call(lambda: self._source.events(EVENT_WAIT_S))
                for event in events:
                    self.health.count_fault(event)
                self.health.apply_events(events)
                self._stepper.wake()
                await asyncio.sleep(EVENT_GAP_S)
        finally:
            self._news.end()

    async def _once(self) -> None:
        if await self.driver.detach_if_unused(self._take_out_hanging):
            self._measured_s = self._account.now_s()
            return
        before, began_s = self._promises(), self._account.now_s()
        try:
            samples, gpus = await self.driver.call(self._sample_cards, self._take_out_hanging)
        except DriverGoneError as error:
            self.driver_gone_reason = str(error)
            log.error("the cards' driver is gone", error=self.driver_gone_reason)  # noqa: TRY400 - the reason is all there is
            self._notices.record_driver_gone(self.driver_gone_reason)
            raise
        except GpuError as error:
            self.errors += 1
            log.warning("cards cannot be measured", error=str(error))
            self._take_out_unmeasured(str(error))
            return
        pids = {process.pid for sample in samples for process in sample.processes or ()}
        places = await asyncio.to_thread(self._owners.find_places, pids)
        self._measured_s = self._account.now_s()
        self.driver.record_answer()
        self.health.restore_measured(samples)
        # The list first: the samples are of these cards.
        self._on_cards(gpus, self.health.is_healthy)
        self.health.restore_usable(gpus)
        known = {card.uuid for card in self._account.ledger.installed}
        samples = [sample for sample in samples if sample.uuid in known]
        self.samples, self.sampled_s = samples, began_s
        self.places = places
        owners = {pid: place.uid if place is not None else None for pid, place in places.items()}
        self._apply_samples(samples, owners, _larger(before, self._promises()))
        self.memory_errors = {sample.uuid: sample.memory_errors for sample in samples}
        self.telemetry.add(gpus, samples)
        self.health.apply_samples(samples)
        self.driver.record_attached()

    def _sample_cards(self) -> tuple[Sequence[GpuSample], Sequence[GpuCard]]:
        try:
            samples, helpers = self._source.sample(), self._list_helper_pids()
            return [_leave_out(helpers, sample) for sample in samples], tuple(self._source.cards())
        except GpuError:
            raise
        except Exception as error:
            log.exception("measuring the cards failed")
            raise GpuError(f"measuring the cards failed: {type(error).__name__}: {error}") from error

    def _take_out_hanging(self) -> None:
        self._take_out_unmeasured("the driver does not answer")

    def _take_out_unmeasured(self, why: str) -> None:
        if self._account.now_s() - self._measured_s >= self._unmeasured_s:
            self.health.take_out_unmeasured(f"not measured for more than {self._unmeasured_s:.0f} s: {why}")

    def _apply_samples(
        self,
        samples: Sequence[GpuSample],
        owners: Mapping[int, str | None],
        promises: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.uses = {
            sample.uuid: measure_unaccounted_use(
                sample, owners, promises.get(sample.uuid, {}), self.uses.get(sample.uuid)
            )
            for sample in samples
        }
        unaccounted = self._published_units.round_up(self.uses.values())
        if self._account.ledger.set_unaccounted_use(unaccounted):
            log.info(
                "use beyond promise", units={uuid: units for uuid, units in unaccounted.items() if units}
            )
            self._account.notify_subscribers()

    def _promises(self) -> dict[str, dict[str, int]]:
        """Compute MiB by card and the UID that a pod has in cgroups."""
        return {
            uuid: {uid: units * self._unit_mib for uid, units in shares.items()}
            for uuid, shares in self._account.ledger.allocated_units_by_pod().items()
        }


def _leave_out(helpers: Collection[int], sample: GpuSample) -> GpuSample:
    if sample.processes is None or not helpers:
        return sample
    others = tuple(process for process in sample.processes if process.pid not in helpers)
    return replace(sample, processes=others)


def _larger(
    first: Mapping[str, Mapping[str, int]], second: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Take the larger of the promises before and after a measurement, which lies between them."""
    return {
        card: {
            uid: max(first.get(card, {}).get(uid, 0), second.get(card, {}).get(uid, 0))
            for uid in first.get(card, {}).keys() | second.get(card, {}).keys()
        }
        for card in first.keys() | second.keys()
    }
