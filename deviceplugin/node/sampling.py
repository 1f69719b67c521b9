"""Measures the cards and follows their health; the driver is only ever called from threads."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from deviceplugin.errors import GpuError
from deviceplugin.gpus.health import HealthTracker
from deviceplugin.gpus.source import GpuCard, GpuSample, GpuSource, HealthEvent
from deviceplugin.gpus.usage import CardUse, card_use
from deviceplugin.node.account import Account
from deviceplugin.node.notices import Notices, silent

log = structlog.get_logger(__name__)

SAMPLE_S: Final = 5.0
EVENT_WAIT_S: Final = 30.0


class Owners(Protocol):
    """Which pod a process belongs to, as `cgroups.ProcessOwners` tells. Blocking."""

    def owners(self, pids: Iterable[int]) -> Mapping[int, str | None]:
        """Return pid -> UID of its pod, None where it has none."""


class Sampler:
    """Turns measurements into pressure, and trouble into unhealthy cards.

    Args:
        account: the ledger.
        source: the cards.
        owners: the processes' pods.
        health: the cards' health.
        unit_mib: MiB a unit.
        on_health: called when a card's health changed.
        notices: told of faults and of cards' health.
        every_s: seconds between two measurements.

    Attributes:
        uses: newest judgement of each card.
        errors: measurements that failed as a whole.
        faults: how many numbered errors there were, by UUID and code; ignored ones too.
    """

    def __init__(
        self,
        account: Account,
        source: GpuSource,
        owners: Owners,
        health: HealthTracker,
        *,
        unit_mib: int,
        on_health: Callable[[], None],
        notices: Notices | None = None,
        every_s: float = SAMPLE_S,
    ) -> None:
        self._account = account
        self._source = source
        self._owners = owners
        self._health = health
        self._unit_mib = unit_mib
        self._on_health = on_health
        self._notices = notices or silent()
        self._every_s = every_s
        self._inventory: tuple[GpuCard, ...] | None = None
        self.uses: dict[str, CardUse] = {}
        self.errors = 0
        self.faults: Counter[tuple[str, int]] = Counter()

    async def run(self) -> None:
        """Measure until cancelled.

        Raises:
            GpuError: a card that could not be read at the start can be now. Sizes and IDs are fixed while the
                daemon runs, so it must start over to take the card in.
        """
        while True:
            await self._once()
            await asyncio.sleep(self._every_s)

    async def follow_events(self) -> None:
        """Take health events as they come, until cancelled."""
        while True:
            events = await asyncio.to_thread(self._source.events, EVENT_WAIT_S)
            for event in events:
                self._on_event(event)

    async def _once(self) -> None:
        before = self._promises()
        try:
            samples = await asyncio.to_thread(self._source.sample)
            pids = {process.pid for sample in samples for process in sample.processes or ()}
            owners = await asyncio.to_thread(self._owners.owners, pids)
        except GpuError as error:
            self.errors += 1
            log.warning("cards cannot be measured", error=str(error))
            return
        self._judge(samples, owners, _larger(before, self._promises()))
        for sample in samples:
            if self._health.on_sample(sample, self._account.now_s()):
                self._apply(sample.uuid)
        self._check_inventory(tuple(self._source.cards()))

    def _check_inventory(self, inventory: tuple[GpuCard, ...]) -> None:
        if self._inventory not in {None, inventory}:
            raise GpuError(
                "a card that could not be read at the start can be now: starting over to take it in"
            )
        self._inventory = inventory

    def _judge(
        self,
        samples: Sequence[GpuSample],
        owners: Mapping[int, str | None],
        promises: Mapping[str, Mapping[str, int]],
    ) -> None:
        pressure = {}
        for sample in samples:
            use = card_use(sample, owners, promises.get(sample.uuid, {}), self.uses.get(sample.uuid))
            self.uses[sample.uuid] = use
            pressure[sample.uuid] = use.extra_units(self._unit_mib)
        if self._account.ledger.set_pressure(pressure):
            log.info("use beyond promise", units={uuid: units for uuid, units in pressure.items() if units})
            self._account.changed()

    def _promises(self) -> dict[str, dict[str, int]]:
        """MiB by card and the UID that a pod has in cgroups."""
        return {
            uuid: {uid: units * self._unit_mib for uid, units in shares.items()}
            for uuid, shares in self._account.ledger.promises().items()
        }

    def _on_event(self, event: HealthEvent) -> None:
        if event.code is not None:
            self.faults[event.uuid, event.code] += event.count
            if event.healthy is None:
                log.info("an application's fault", card=event.uuid, reason=event.reason, count=event.count)
            else:
                self._notices.fault(event.uuid, event.reason)
        if self._health.on_event(event, self._account.now_s()):
            self._apply(event.uuid)

    def _apply(self, uuid: str) -> None:
        state = self._health.state(uuid)
        note = log.info if state.healthy else log.error
        note("card is healthy" if state.healthy else "card is unhealthy", card=uuid, reason=state.reason)
        if state.healthy:
            self._notices.recovered(uuid)
        else:
            self._notices.unhealthy(uuid, state.reason or "no reason given")
        self._account.ledger.set_healthy(uuid, state.healthy)
        self._account.health_changed()
        self._on_health()
        self._account.changed()


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
