"""Keeps the ledger in step with the kubelet's checkpoint and with the cgroups of pods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.host.cgroups import CgroupProbe
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReconcileIntervals:
    """How often the checkpoint and the cgroups are read, in seconds.

    Attributes:
        soon_s: after something happened; doubles while it is not settled.
        unsettled_s: at most, while a pod that ended is still charged.
        slow_s: when nothing happens.
    """

    soon_s: float = 0.1
    unsettled_s: float = 1.0
    slow_s: float = 5.0


PACE: Final = ReconcileIntervals()


class CgroupProber(Protocol):
    """Finds out which pods still run containers. Every call blocks."""

    def probe(self, uids: Collection[str]) -> CgroupProbe: ...


class Reconciler:
    """Reads the checkpoint when it is written, and probes the cgroups of pods that end.

    Args:
        changes: yields after each write of the kubelet's checkpoint.
        clean: makes the kubelet clean its checkpoint and write it.

    Attributes:
        can_register: set once the checkpoint has been read for the first time, or is torn. Then the kubelet,
            which believes it no more than we do, writes it anew when it has our list of devices.
        cgroup_problem: why cgroups could not be read at the last look, None if they could.
    """

    def __init__(
        self,
        account: LedgerService,
        pods: OwnPods,
        changes: Callable[[], AsyncIterator[None]],
        cgroups: CgroupProber,
        clean: Callable[[], Awaitable[None]],
        *,
        pace: ReconcileIntervals = PACE,
    ) -> None:
        self._account = account
        self._pods = pods
        self._changes = changes
        self._cgroups = cgroups
        self._clean = clean
        self._pace = pace
        # Several events cause one pass, and a burst of them a few passes a second at most.
        self._stepper = Stepper(self._step, pace.soon_s)
        self._delay_s = pace.soon_s
        self._lists = 0
        self.can_register = asyncio.Event()
        self.cgroup_problem: str | None = None
        account.subscribe(self._on_change)

    def apply_kubelet_restart(self) -> None:
        """Probe at once which pods run: a kubelet that lost its checkpoint asks for the others again."""
        before = self._account.change_key()
        self._account.ledger.apply_kubelet_restart()
        if self._account.change_key() != before:
            self._account.notify_subscribers()
        self._wake()

    async def run(self) -> None:
        """Reconcile until cancelled.

        Raises:
            UnitInUseError: containers hold IDs of another unit's resource.
        """
        await self._stepper.run()

    async def _step(self) -> float:
        await self._once()
        pace = self._pace
        self._delay_s = min(pace.unsettled_s, self._delay_s * 2) if self._unsettled() else pace.slow_s
        return self._delay_s

    def _wake(self) -> None:
        self._delay_s = self._pace.soon_s
        self._stepper.wake()

    async def follow_checkpoint(self) -> None:
        async for _ in self._changes():
            self._refresh()

    async def _once(self) -> None:
        ledger = self._account.ledger
        self._refresh()
        others = frozenset(self._account.other_unit_pods.resource_by_pod)
        if others:
            probe = await self._probe(others)
            self._account.other_unit_pods.check_ended(
                others - probe.unknown, probe.alive, self._pods.living_uids
            )
            self._refresh()
        if ledger.accounts.has_unlisted_pods:
            self._pods.request_list()
        uids, self._lists = ledger.pods_to_probe(), ledger.accounts.list_count
        if uids:
            began_s = self._account.now_s()
            probe = await self._probe(uids)
            # Entries that were written before a container started must be known before it counts as running.
            self._refresh()
            before = self._account.change_key()
            # While the checkpoint cannot be read, what else it has is unknown: nothing is released.
            known = uids - probe.unknown if self._account.checkpoint_problem is None else probe.alive
            ledger.record_cgroup_probe(known, probe.alive, began_s)
            if self._account.change_key() != before:
                self._account.notify_subscribers()
        if ledger.needs_checkpoint_purge():
            await self._clean()
            self._refresh()

    async def _probe(self, uids: Collection[str]) -> CgroupProbe:
        probe = await asyncio.to_thread(self._cgroups.probe, uids)
        before, self.cgroup_problem = self.cgroup_problem, probe.problem
        if probe.problem is not None and before is None:
            log.warning("cgroups cannot be read, charges of their pods do not end", error=probe.problem)
        elif probe.problem is None and before is not None:
            log.info("cgroups can be read again")
        return probe

    def _refresh(self) -> None:
        self._account.read_checkpoint()
        legible = self._account.checkpoint_problem is None or self._account.is_checkpoint_torn
        if legible and not self._account.other_unit_pods.resource_by_pod:
            self.can_register.set()

    def _unsettled(self) -> bool:
        return (
            bool(self._account.other_unit_pods.resource_by_pod) or self._account.ledger.has_unsettled_pods()
        )

    def _on_change(self) -> None:
        # A new list may show pods that run already: those do not ask for devices.
        if self._unsettled() or self._lists != self._account.ledger.accounts.list_count:
            self._wake()
