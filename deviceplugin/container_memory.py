"""Containers' memory in one place: limits, real use, over-use, and what is written about them."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.container_memory_metrics import ContainerMemoryMetrics
from deviceplugin.enforcement.enforcer import Enforcer
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.monitoring.container_use import ContainerUse, ContainerUseReader
from deviceplugin.monitoring.overuse import LOOK_S, OverUseWatcher
from deviceplugin.monitoring.sampling import CardSampler
from deviceplugin.publishing.published_use import PublishedUse
from deviceplugin.settings import Settings
from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder
from kubeapi.eviction import evict_pod


class ContainerMemoryService:
    """Builds the parts, runs them, and reports their state.

    Args:
        on_use_changed: Called when a pod's use is worth a write.
    """

    def __init__(
        self,
        settings: Settings,
        account: LedgerService,
        limit_capability: LimitCapability,
        enforcement: MemoryEnforcement,
        published_use: PublishedUse,
        pods: OwnPods,
        sampler: CardSampler,
        client: KubeClient,
        recorder: EventRecorder,
        on_use_changed: Callable[[], None],
    ) -> None:
        self._account = account
        self._sampler = sampler
        self._limit_capability = limit_capability
        self._enforcement = enforcement
        self._published_use = published_use
        self._on_use_changed = on_use_changed
        self._over_use = OverUseWatcher(
            pods.find_pod,
            recorder.event,
            partial(evict_pod, client),
            tolerance_mib=settings.over_use_mib,
            evict_after_s=settings.evict_over_use_after_s,
            clock=account.now_s,
        )
        granted_memory = GrantedMemory(account, settings.unit_mib, pods.find_claims)
        self._enforcer = Enforcer(
            account,
            self._limit_capability,
            granted_memory,
            pods.container_names,
            cgroup_root=settings.cgroup_root,
            container_logs=settings.container_logs,
            tell=self._over_use.record_not_limited,
        )
        self._memory = ContainerUseReader(
            granted_memory,
            self._enforcement,
            self._enforcer,
            pods,
            sampler,
            account.now_s,
        )
        self._rows: Sequence[ContainerUse] = ()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._enforcer.run())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.read_use()
            await self._over_use.check_rows(self._rows)
            await asyncio.sleep(0)
            if self._published_use.apply_use(self._rows):
                self._on_use_changed()

    async def read_use(self) -> None:
        self._rows = await self._memory.read_rows_in_turns()

    @property
    def cgroup_problem(self) -> str | None:
        """Why new cgroups are not seen at once; None while they are."""
        return self._enforcer.problem

    def explain(self) -> dict[str, Any]:
        """Explain how cards are held, and what every container has and uses."""
        return {
            "cards": {
                card.uuid: {
                    "held": self._enforcement.get_enforcement(card.uuid).value,
                    "driver": str(self._limit_capability.get_support(card.uuid)),
                    "residue_mib": self._sampler.residue_mib.get(card.uuid),
                }
                for card in self._account.ledger.installed
            },
            "containers": [
                {
                    "pod": f"{row.namespace}/{row.pod}",
                    "uid": row.uid,
                    "container": row.container,
                    "card": row.uuid,
                    "promised_mib": row.promised_mib,
                    "used_mib": row.used_mib,
                    "limit_mib": row.limit_mib,
                    "compute": row.compute,
                    "used_compute": row.used_compute,
                    "held": row.enforcement.value,
                    "compute_held": row.compute_enforcement.value if row.compute else None,
                    "problem": row.problem,
                }
                for row in self._memory.read_rows()
            ],
        }

    def make_metrics(self) -> ContainerMemoryMetrics:
        return ContainerMemoryMetrics(
            lambda: self._rows, self._over_use.is_over_use, self._map_enforcement, self._forbidden
        )

    def list_counters(self) -> dict[str, tuple[str, Callable[[], int]]]:
        return {
            "memory_limit_faults": (
                "Failed attempts to set a memory limit.",
                lambda: self._enforcer.faults,
            ),
            "memory_limits_repaired": (
                "Memory limits that somebody had changed.",
                lambda: self._enforcer.repaired,
            ),
            "over_uses": (
                "Times that a container began to use more than is tolerated.",
                lambda: self._over_use.found,
            ),
            "evictions": ("Pods evicted for over-use.", lambda: self._over_use.evictions),
            "eviction_errors": ("Evictions that were refused.", lambda: self._over_use.errors),
        }

    def _map_enforcement(self) -> dict[str, Enforcement]:
        cards: Sequence[str] = [card.uuid for card in self._account.ledger.installed]
        return {uuid: self._enforcement.get_enforcement(uuid) for uuid in cards}

    def _forbidden(self) -> dict[str, bool]:
        cards: Sequence[str] = [card.uuid for card in self._account.ledger.installed]
        return {uuid: self._limit_capability.get_support(uuid).is_forbidden for uuid in cards}
