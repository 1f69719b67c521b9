"""Containers' memory in one place: limits, real use, over-use, and what is written about them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.container_memory_metrics import ContainerMemoryMetrics
from deviceplugin.enforcement.enforcer import Enforcer
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.monitoring.container_use import ContainerUse, ContainerUseReader
from deviceplugin.monitoring.overuse import LOOK_S, OverUseWatcher, PodIdentity
from deviceplugin.monitoring.sampling import CardSampler
from deviceplugin.node_events import NodeEvents
from deviceplugin.publishing.published_use import PublishedUse
from deviceplugin.settings import Settings
from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder
from kubeapi.eviction import evict


class ContainerMemoryService:
    """Makes the parts, runs them, and says what they know.

    Args:
        settings: of the daemon.
        account: the ledger.
        source: the cards.
        pods: the node's pods.
        sampler: measures the cards.
        client: API server.
        recorder: of Events.
        notices: about the Node.
        on_offer: called when other cards are offered than before.

    Attributes:
        limit_capability: how each card's memory is held.
        published_use: what is written of the pods' use.
        on_news: called when something of that is worth a write.
    """

    def __init__(
        self,
        settings: Settings,
        account: LedgerService,
        source: GpuSource,
        pods: OwnPods,
        sampler: CardSampler,
        client: KubeClient,
        recorder: EventRecorder,
        notices: NodeEvents,
        on_offer: Callable[[], None],
    ) -> None:
        self._account = account
        self._pods = pods
        self._sampler = sampler
        self._unit_mib = settings.unit_mib
        self.limit_capability = LimitCapability(
            account, source.limits, mode=settings.memory_limits, notices=notices, on_offer=on_offer
        )
        self._over_use = OverUseWatcher(
            self._names,
            recorder.event,
            partial(evict, client),
            tolerance_mib=settings.over_use_mib,
            evict_after_s=settings.evict_over_use_after_s,
            clock=account.now_s,
        )
        self._enforcer = Enforcer(
            account,
            self.limit_capability,
            pods.container_names,
            unit_mib=settings.unit_mib,
            cgroup_root=settings.cgroup_root,
            container_logs=settings.container_logs,
            tell=self._over_use.record_not_limited,
        )
        shares = GrantedMemory(account, settings.unit_mib)
        self._memory = ContainerUseReader(
            shares,
            self.limit_capability,
            self._enforcer,
            pods,
            sampler,
            account.now_s,
        )
        self._rows: Sequence[ContainerUse] = ()
        self.published_use = PublishedUse(self._holding, time.monotonic)
        self.on_news: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Hold and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._enforcer.run())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.read_use()
            await self._over_use.check_rows(self._rows)
            await asyncio.sleep(0)
            if self.published_use.apply_use(self._rows):
                self.on_news()

    async def read_use(self) -> None:
        """Work out what every container has and uses."""
        self._rows = await self._memory.read_rows_in_turns()

    @property
    def cgroup_problem(self) -> str | None:
        """Why new cgroups are not seen at once; None while they are."""
        return self._enforcer.problem

    def explain(self) -> dict[str, Any]:
        """Say how cards are held, and what every container has and uses."""
        return {
            "cards": {
                card.uuid: {
                    "held": self.limit_capability.get_enforcement(card.uuid).value,
                    "driver": str(self.limit_capability.get_support(card.uuid)),
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
                    "held": row.enforcement.value,
                    "problem": row.problem,
                }
                for row in self._memory.read_rows()
            ],
        }

    def make_metrics(self) -> ContainerMemoryMetrics:
        """Give Prometheus the same."""
        return ContainerMemoryMetrics(
            lambda: self._rows, self._over_use.is_over_use, self._held, self._forbidden
        )

    def list_counters(self) -> dict[str, tuple[str, Callable[[], int]]]:
        """Name the counters that the parts keep."""
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

    def _holding(self, uuid: str, units: int, cards: int) -> Enforcement:
        return self.limit_capability.get_container_enforcement(uuid, units * self._unit_mib, cards)

    def _held(self) -> dict[str, Enforcement]:
        cards: Sequence[str] = [card.uuid for card in self._account.ledger.installed]
        return {uuid: self.limit_capability.get_enforcement(uuid) for uuid in cards}

    def _forbidden(self) -> dict[str, bool]:
        cards: Sequence[str] = [card.uuid for card in self._account.ledger.installed]
        return {uuid: self.limit_capability.get_support(uuid).is_forbidden for uuid in cards}

    def _names(self, uid: str) -> PodIdentity | None:
        pod = self._pods.find_pod(uid)
        if pod is None:
            return None
        of = pod.metadata
        return PodIdentity(of.namespace, of.name, of.uid, static=of.uid != pod.runtime_uid)
