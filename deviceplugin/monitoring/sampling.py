"""Measures the cards and follows their health; the driver is only ever called from threads of their own."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import structlog

from allocator.ledger import Pod
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.errors import DriverGoneError, GpuError
from deviceplugin.gpus.api.health import HealthTracker
from deviceplugin.gpus.api.source import GpuCard, GpuSample, GpuSource, HealthEvent
from deviceplugin.host.cgroups import ProcessPlace
from deviceplugin.host.driver import DriverThread
from deviceplugin.monitoring.telemetry import TelemetryHistory
from deviceplugin.monitoring.unaccounted_use import PublishedUnits, UnaccountedUse, measure_unaccounted_use
from deviceplugin.node_events import NodeEvents, make_silent_events

log = structlog.get_logger(__name__)

SAMPLE_S: Final = 5.0
EVENT_WAIT_S: Final = 30.0

SOON_S: Final = 0.5
"""After news of a card it is measured at once, but not more often than this."""

EVENT_GAP_S: Final = 0.1
"""So long news are gathered: a storm of them is looked at ten times a second."""

TELL_FAULT_S: Final = 10.0
"""A fault that a card repeats is logged, and told to people, once in so many seconds; all are counted."""

HANGS_S: Final = 10.0
"""A call of the driver that takes longer is logged; none takes a second as a rule."""

UNMEASURED_S: Final = 75.0
"""Cards that could not be measured for so long are given to no pod; a minute may pass."""

DETACH_AFTER_S: Final = 5.0
"""The driver is let go where nothing has needed it for so many seconds."""

CLOSE_S: Final = 2.0


Answer = TypeVar("Answer")


class ProcessOwnerLookup(Protocol):
    """ProcessOwnerLookup finds the pod of a process, as `cgroups.ProcessOwners` does. Blocking."""

    def owners(self, pids: Iterable[int]) -> Mapping[int, str | None]:
        """Return pid -> UID of its pod, None if it has none."""

    def place(self, pid: int) -> ProcessPlace | None:
        """Return pod and container of one of the processes that were asked about last."""


class CardListHandler(Protocol):
    """Hears of the list of cards after each measurement."""

    def __call__(self, gpus: Sequence[GpuCard], healthy: Callable[[str], bool]) -> bool:
        """Apply the source's list; return whether it is another one."""


class CardSampler:
    """Turns measurements into unaccounted use, and trouble into unhealthy cards.

    Args:
        owners: the processes' pods.
        on_health: called when a card's health changed.
        on_cards: called with the source's list of cards after each measurement.
        notices: hear of faults and of cards' health.
        every_s: seconds between two measurements.
        unmeasured_s: see `UNMEASURED_S`.
        may_detach: whether the cards are unused: all of them are cordoned, and no pod has any.
        detach_after_s: see `DETACH_AFTER_S`.

    Attributes:
        samples: newest measurement of each card.
        sampled_s: when it was begun, by the ledger's clock.
        places: where its processes run, None for those of no pod; unknown ones are left out.
        uses: newest judgement of each card.
        memory_errors: what each card counts of its memory's errors.
        telemetry: what the cards did during the last minutes.
        errors: measurements that failed as a whole.
        faults: how many numbered errors there were, by UUID and code; ignored ones too.
        health_changes: how often a card became healthy (True) or unhealthy, by UUID.
        is_detached: the driver was let go, and all cards are kept free of pods until it is taken up again.
        driver_gone_reason: why the driver does not come back to this process, which ends; None while it may.
    """

    def __init__(
        self,
        account: LedgerService,
        source: GpuSource,
        owners: ProcessOwnerLookup,
        health: HealthTracker,
        *,
        unit_mib: int,
        on_health: Callable[[], None],
        on_cards: CardListHandler = lambda _gpus, _healthy: False,
        notices: NodeEvents | None = None,
        every_s: float = SAMPLE_S,
        unmeasured_s: float = UNMEASURED_S,
        may_detach: Callable[[], bool] = lambda: False,
        detach_after_s: float = DETACH_AFTER_S,
        driver: DriverThread | None = None,
    ) -> None:
        self._account = account
        self._source = source
        self._owners = owners
        self._health = health
        self._unit_mib = unit_mib
        self._published_units = PublishedUnits(unit_mib, account.now_s)
        self._on_health = on_health
        self._on_cards = on_cards
        self._notices = notices or make_silent_events()
        self._every_s = every_s
        self.samples: Sequence[GpuSample] = ()
        self.sampled_s = float("-inf")
        self.places: Mapping[int, ProcessPlace | None] = {}
        self._unmeasured_s = unmeasured_s
        self._driver = driver or DriverThread("gpu-driver")
        self._news = DriverThread("gpu-news")
        self._wake = asyncio.Event()
        self._is_hang_reported = False
        self._measured_s = account.now_s()
        self._unmeasured: dict[str, str] = {}
        self._unusable: set[str] = set()
        self._reported_s: dict[tuple[str, int], float] = {}
        self.uses: dict[str, UnaccountedUse] = {}
        self.memory_errors: dict[str, Mapping[str, int]] = {}
        self.telemetry = TelemetryHistory(every_s, account.now_s)
        self.errors = 0
        self.faults: Counter[tuple[str, int]] = Counter()
        self.health_changes: Counter[tuple[str, bool]] = Counter()
        self._may_detach = may_detach
        self._detach_after_s = detach_after_s
        self._unneeded_since_s: float | None = None
        self.is_detached = False
        self.driver_gone_reason: str | None = None
        account.subscribe(self._on_account)

    def _on_account(self) -> None:
        if self.is_detached and not self._may_detach():
            self._wake.set()

    @property
    def residue_mib(self) -> dict[str, int]:
        """MiB that no process uses and that do not count, of cards that may have such."""
        return {
            sample.uuid: self.uses[sample.uuid].residue_mib
            for sample in self.samples
            if sample.keeps_pages and sample.uuid in self.uses
        }

    @property
    def hangs_s(self) -> float:
        """Seconds that the driver has not answered; 0 while it does."""
        busy_s = self._driver.busy_s
        return busy_s if busy_s >= min(HANGS_S, self._unmeasured_s) else 0.0

    @property
    def problem(self) -> str | None:
        """Why the cards are not measured; None while they are."""
        if self.driver_gone_reason is not None:
            return self.driver_gone_reason
        if self.hangs_s:
            return f"the cards' driver has not answered for {self.hangs_s:.0f} s"
        return next(iter(self._unmeasured.values()), None)

    async def run(self) -> None:
        """Measure until cancelled.

        Raises:
            DriverGoneError: the driver does not come back to this process.
            DeviceListError: the cards have changed, and no kubelet could take their devices.
        """
        while True:
            self._wake.clear()
            await self._once()
            await asyncio.sleep(min(SOON_S, self._every_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._every_s - SOON_S)):
                    await self._wake.wait()

    async def follow_events(self) -> None:
        try:
            while True:
                events = await self._news.call(lambda: self._source.events(EVENT_WAIT_S))
                for event in events:
                    self._note_fault(event)
                self._take_events(events)
                self._wake.set()
                await asyncio.sleep(EVENT_GAP_S)
        finally:
            self._news.end()

    async def _once(self) -> None:
        if await self._rest():
            return
        before, began_s = self._promises(), self._account.now_s()
        try:
            samples, gpus = await self._call_driver(self._sample_cards)
        except DriverGoneError as error:
            self.driver_gone_reason = str(error)
            log.error("the cards' driver is gone", error=self.driver_gone_reason)  # noqa: TRY400 - the reason is all there is
            self._notices.record_driver_gone(self.driver_gone_reason)
            raise
        except GpuError as error:
            self.errors += 1
            log.warning("cards cannot be measured", error=str(error))
            self._not_measured(str(error))
            return
        pids = {process.pid for sample in samples for process in sample.processes or ()}
        owners = await asyncio.to_thread(self._owners.owners, pids)
        self._measured_again(samples)
        # The list first: the samples are of these cards.
        self._on_cards(gpus, lambda uuid: self._health.get_health(uuid).healthy)
        self._note_mended(gpus)
        known = {card.uuid for card in self._account.ledger.installed}
        samples = [sample for sample in samples if sample.uuid in known]
        self.samples, self.sampled_s = samples, began_s
        self.places = {pid: self._owners.place(pid) for pid in owners}
        self._apply_samples(samples, owners, _larger(before, self._promises()))
        self.memory_errors = {sample.uuid: sample.memory_errors for sample in samples}
        self.telemetry.add(gpus, samples)
        now_s = self._account.now_s()
        self._apply([sample.uuid for sample in samples if self._health.on_sample(sample, now_s)])
        self._attached()

    # --- a driver that is let go --------------------------------------------------------------------

    async def _rest(self) -> bool:
        """Release the driver once it is unused; return True if it is released.

        Until it is taken up again all cards are kept free: they may be others by then.
        """
        now_s = self._account.now_s()
        if not self._may_detach():
            self._unneeded_since_s = None
            return False
        since_s = self._unneeded_since_s = now_s if self._unneeded_since_s is None else self._unneeded_since_s
        if now_s - since_s < self._detach_after_s:
            return False
        if not self.is_detached:
            await self._call_driver(self._source.detach)
            self.is_detached = True
            ledger = self._account.ledger
            ledger.set_unavailable("detached", [card.uuid for card in ledger.installed])
            log.info("the cards' driver is let go: all cards are cordoned and empty")
            self._notices.record_driver_detached()
            self._account.notify_subscribers()
        self._measured_s = now_s
        return True

    def _attached(self) -> None:
        if self.is_detached:
            self.is_detached = False
            self._account.ledger.set_unavailable("detached", ())
            log.info("the cards' driver is taken up again")
            self._notices.record_driver_attached()
            self._account.notify_subscribers()

    # --- a driver that does not answer --------------------------------------------------------------

    async def _call_driver(self, function: Callable[[], Answer]) -> Answer:
        """Call a function in the driver's thread, and report while the driver does not answer.

        Raises:
            GpuError: as the function.
        """
        call = asyncio.ensure_future(self._driver.call(function))
        try:
            while not (await asyncio.wait({call}, timeout=min(self._every_s, 1.0)))[0]:
                self._say_hanging()
            return call.result()
        finally:
            call.cancel()

    def _sample_cards(self) -> tuple[Sequence[GpuSample], Sequence[GpuCard]]:
        """Sample in the driver's thread."""
        try:
            samples = self._source.sample()
            return samples, tuple(self._source.cards())
        except GpuError:
            raise
        except Exception as error:
            log.exception("measuring the cards failed")
            raise GpuError(f"measuring the cards failed: {type(error).__name__}: {error}") from error

    def _say_hanging(self) -> None:
        if self.hangs_s and not self._is_hang_reported:
            self._is_hang_reported = True
            log.error("the cards' driver does not answer", seconds=round(self.hangs_s, 1))
            self._notices.record_driver_hangs("the cards' driver does not answer: look at dmesg")
        if self.hangs_s:
            self._not_measured("the driver does not answer")

    def _not_measured(self, why: str) -> None:
        """Take cards out of use that could not be measured for long, those that are not already."""
        if self._account.now_s() - self._measured_s < self._unmeasured_s:
            return
        reason = f"not measured for more than {self._unmeasured_s:.0f} s: {why}"
        newly_out = [
            card.uuid for card in self._account.ledger.installed if self._health.get_health(card.uuid).healthy
        ]
        self._unmeasured.update(dict.fromkeys(newly_out, reason))
        self._take_events([HealthEvent(uuid, healthy=False, reason=reason) for uuid in newly_out])

    def _measured_again(self, samples: Sequence[GpuSample]) -> None:
        """Let cards recover that were out of use only because they could not be measured."""
        self._measured_s = self._account.now_s()
        if self._is_hang_reported:
            self._is_hang_reported = False
            log.info("the cards' driver answers again")
            self._notices.record_driver_answers()
        mended = [
            HealthEvent(sample.uuid, healthy=True, reason="measured again")
            for sample in samples
            if self._health.get_health(sample.uuid).reason == self._unmeasured.get(sample.uuid, "")
        ]
        self._unmeasured.clear()
        self._take_events(mended)

    def _note_mended(self, gpus: Sequence[GpuCard]) -> None:
        """A card that could not be used at all, and now can, has nothing to prove."""
        for gpu in gpus:
            if gpu.error is None and gpu.uuid in self._unusable:
                self._health.on_event(HealthEvent(gpu.uuid, True, "can be used"), self._account.now_s())
        self._unusable = {gpu.uuid for gpu in gpus if gpu.error is not None}

    # --- use and health -----------------------------------------------------------------------------

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
        """MiB by card and the UID that a pod has in cgroups."""
        return {
            uuid: {uid: units * self._unit_mib for uid, units in shares.items()}
            for uuid, shares in self._account.ledger.allocated_units_by_pod().items()
        }

    def _note_fault(self, event: HealthEvent) -> None:
        if event.code is not None:
            key, now_s = (event.uuid, event.code), self._account.now_s()
            self.faults[key] += event.count
            if now_s - self._reported_s.get(key, float("-inf")) < TELL_FAULT_S:
                return
            self._reported_s[key] = now_s
            if event.healthy is None:
                log.info(
                    "an application's fault", card=event.uuid, reason=event.reason, so_far=self.faults[key]
                )
            else:
                self._notices.record_fault(event.uuid, event.reason)

    def _take_events(self, events: Sequence[HealthEvent]) -> None:
        now_s = self._account.now_s()
        self._apply([event.uuid for event in events if self._health.on_event(event, now_s)])

    def _apply(self, uuids: Sequence[str]) -> None:
        """Report the health of cards to all parts, and write Events about it."""
        ledger = self._account.ledger
        known = {card.uuid for card in ledger.installed}
        changed = [uuid for uuid in dict.fromkeys(uuids) if uuid in known]
        if not changed:
            return
        promises, pods = ledger.allocated_units_by_pod(), ledger.accounts.pods
        for uuid in changed:
            on_it = [pods[uid].pod for uid in promises[uuid] if pods[uid].bound]
            self._log_health(uuid, sorted(on_it, key=lambda pod: (pod.namespace, pod.name)))
            ledger.set_healthy(uuid, self._health.get_health(uuid).healthy)
        self._on_health()
        self._account.notify_subscribers()

    def _log_health(self, uuid: str, pods: Sequence[Pod]) -> None:
        state = self._health.get_health(uuid)
        note = log.info if state.healthy else log.error
        what = "card is healthy" if state.healthy else "card is unhealthy"
        note(what, card=uuid, reason=state.reason, pods=len(pods))
        if state.healthy:
            self._notices.record_recovered(uuid, pods)
        else:
            self._notices.record_unhealthy(uuid, state.reason or "no reason given", pods)
        self.health_changes[uuid, state.healthy] += 1


def _larger(
    first: Mapping[str, Mapping[str, int]], second: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """The larger promise of two moments: the measurement lies between them."""
    return {
        card: {
            uid: max(first.get(card, {}).get(uid, 0), second.get(card, {}).get(uid, 0))
            for uid in first.get(card, {}).keys() | second.get(card, {}).keys()
        }
        for card in first.keys() | second.keys()
    }
