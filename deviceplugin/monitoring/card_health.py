"""Decides by faults and measurements which cards are fit for pods, and tells the ledger and people."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from allocator.ledger import Pod
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.health import HealthTracker
from deviceplugin.gpus.api.source import GpuCard, GpuSample, HealthEvent
from deviceplugin.node_events import NodeEvents

log = structlog.get_logger(__name__)

TELL_FAULT_S: Final = 10.0
"""How often a fault that a card repeats is logged and written as an Event; all are counted."""


class CardHealth:
    """Keeps the ledger's health of cards.

    Attributes:
        faults: how many numbered errors there were, by UUID and code; ignored ones too.
        changes: how often a card became healthy (True) or unhealthy, by UUID.
    """

    def __init__(
        self,
        account: LedgerService,
        tracker: HealthTracker,
        notices: NodeEvents,
        on_change: Callable[[], None],
    ) -> None:
        self._account = account
        self._tracker = tracker
        self._notices = notices
        self._on_change = on_change
        self._unmeasured: dict[str, str] = {}
        self._unusable: set[str] = set()
        self._reported_s: dict[tuple[str, int], float] = {}
        self.faults: Counter[tuple[str, int]] = Counter()
        self.changes: Counter[tuple[str, bool]] = Counter()

    def is_healthy(self, uuid: str) -> bool:
        return self._tracker.find_trouble(uuid) is None

    @property
    def problem(self) -> str | None:
        """Why cards are out of use that could not be measured; None if there are none."""
        return next(iter(self._unmeasured.values()), None)

    def apply_events(self, events: Sequence[HealthEvent]) -> None:
        now_s = self._account.now_s()
        self._publish([event.uuid for event in events if self._tracker.on_event(event, now_s)])

    def apply_samples(self, samples: Sequence[GpuSample]) -> None:
        now_s = self._account.now_s()
        self._publish([sample.uuid for sample in samples if self._tracker.on_sample(sample, now_s)])

    def take_out_unmeasured(self, reason: str) -> None:
        """Take cards out of use that cannot be measured, those that are not already."""
        out = [card.uuid for card in self._account.ledger.installed if self.is_healthy(card.uuid)]
        self._unmeasured.update(dict.fromkeys(out, reason))
        self.apply_events([HealthEvent(uuid, healthy=False, reason=reason) for uuid in out])

    def restore_measured(self, samples: Sequence[GpuSample]) -> None:
        """Let cards recover that were out of use only because they could not be measured."""
        mended = [
            HealthEvent(sample.uuid, healthy=True, reason="measured again")
            for sample in samples
            if sample.uuid in self._unmeasured
            and self._tracker.find_trouble(sample.uuid) == self._unmeasured[sample.uuid]
        ]
        self._unmeasured.clear()
        self.apply_events(mended)

    def restore_usable(self, gpus: Sequence[GpuCard]) -> None:
        """Let cards recover that could not be used at all, and now can: they have nothing to prove."""
        for gpu in gpus:
            if gpu.error is None and gpu.uuid in self._unusable:
                self._tracker.on_event(HealthEvent(gpu.uuid, True, "can be used"), self._account.now_s())
        self._unusable = {gpu.uuid for gpu in gpus if gpu.error is not None}

    def count_fault(self, event: HealthEvent) -> None:
        """Count a numbered error, and report it, but not each repetition."""
        if event.code is None:
            return
        key, now_s = (event.uuid, event.code), self._account.now_s()
        self.faults[key] += event.count
        if now_s - self._reported_s.get(key, float("-inf")) < TELL_FAULT_S:
            return
        self._reported_s[key] = now_s
        if event.healthy is None:
            log.info("an application's fault", card=event.uuid, reason=event.reason, so_far=self.faults[key])
        else:
            self._notices.record_fault(event.uuid, event.reason)

    def _publish(self, uuids: Sequence[str]) -> None:
        """Report the health of cards to all parts, and write Events about it."""
        ledger = self._account.ledger
        known = {card.uuid for card in ledger.installed}
        changed = [uuid for uuid in dict.fromkeys(uuids) if uuid in known]
        if not changed:
            return
        live = ledger.live_pods_by_card()
        for uuid in changed:
            self._log_health(uuid, sorted(live[uuid], key=lambda pod: (pod.namespace, pod.name)))
            ledger.set_healthy(uuid, self.is_healthy(uuid))
        self._on_change()
        self._account.notify_subscribers()

    def _log_health(self, uuid: str, pods: Sequence[Pod]) -> None:
        trouble = self._tracker.find_trouble(uuid)
        if trouble is None:
            log.info("card is healthy", card=uuid, pods=len(pods))
            self._notices.record_recovered(uuid, pods)
        else:
            log.error("card is unhealthy", card=uuid, reason=trouble, pods=len(pods))
            self._notices.record_unhealthy(uuid, trouble or "no reason given", pods)
        self.changes[uuid, trouble is None] += 1
