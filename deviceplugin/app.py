"""`gpupack node`: wires everything together, starts it in order, and stops it on a signal."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import structlog

from allocator.cards import Card
from allocator.ledger import Ledger
from deviceplugin.allocation.card_list import CardList
from deviceplugin.allocation.foreign_plugins import ForeignPluginWatcher
from deviceplugin.allocation.inventory import cards_in_units, check_units
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject, PodObject
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.allocation.reconciler import CgroupProber, Reconciler
from deviceplugin.card_source import make_source
from deviceplugin.container_memory import ContainerMemoryService
from deviceplugin.container_responses import ContainerResponses
from deviceplugin.device_plugin_serving import DevicePluginServing
from deviceplugin.dra.node_kind import NodeKindMark
from deviceplugin.dra.prepared_claims import PreparedClaims
from deviceplugin.dra.serving import ClaimServing, make_prepared_claims
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.enforcement.mps_clients import MpsClients
from deviceplugin.garbage_collection import freeze_garbage_collector
from deviceplugin.gpus.api.health import HealthTracker
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuCard, GpuSource
from deviceplugin.host.cgroups import PodCgroups, ProcessOwners
from deviceplugin.host.driver import DriverThread
from deviceplugin.http import HttpServer
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.folder_lock import FolderLock
from deviceplugin.kubelet.pod_resources import PodResources
from deviceplugin.kubelet.registrars import Registers
from deviceplugin.metrics import Metrics, StateCollector
from deviceplugin.monitoring.card_driver import DETACH_AFTER_S, HANGS_S, CardDriver
from deviceplugin.monitoring.card_health import CardHealth
from deviceplugin.monitoring.sampling import CLOSE_S, SAMPLE_S, CardSampler, ProcessOwnerLookup
from deviceplugin.monitoring.telemetry import TelemetryCollector
from deviceplugin.node_events import NodeEvents
from deviceplugin.option_values import DRA, MPS, REQUIRE
from deviceplugin.publishing.annotator import AllocationAnnotator
from deviceplugin.publishing.ownership import NodeOwnership, identify_daemon
from deviceplugin.publishing.published_use import PublishedUse
from deviceplugin.publishing.publisher import NodePublisher
from deviceplugin.publishing.shutdown import ShutdownTimeouts, publish_full_and_wait
from deviceplugin.publishing.startup_taint import StartupTaint
from deviceplugin.settings import Settings
from deviceplugin.status import DaemonStatus
from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder
from kubeapi.paths import NODES_PATH, PODS_PATH
from kubeapi.process import run_until
from kubeapi.reflect import Reflector

log = structlog.get_logger(__name__)

LAST_EVENTS_S: Final = 2.0
"""How long a daemon that ends waits for the Event that says why to be written."""

TURN_S: Final = 0.25
"""How often a daemon that waits for another one of the same kubelet checks whether that has ended."""


class Daemon:
    """The daemon of one node; `run` is its whole life.

    Args:
        source: the cards; by default those that the settings name.
        cgroups: which pods still run something; by default the kernel's.
        owners: which pod a process belongs to; by default the kernel's.
        shutdown_timeouts: how long the end may take.
        detach_after_s: seconds of unused cards after which the daemon releases their driver.

    Attributes:
        ready: set once the kubelet knows our devices and the HTTP server listens.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        source: GpuSource | None = None,
        cgroups: CgroupProber | None = None,
        owners: ProcessOwnerLookup | None = None,
        shutdown_timeouts: ShutdownTimeouts | None = None,
        sample_s: float = SAMPLE_S,
        detach_after_s: float = DETACH_AFTER_S,
    ) -> None:
        self._settings = settings
        self._source = source or make_source(settings)
        self._cgroups = cgroups or PodCgroups(settings.cgroup_root)
        self._owners = owners or ProcessOwners()
        self._shutdown_timeouts = shutdown_timeouts or ShutdownTimeouts()
        self._sample_s = sample_s
        self._detach_after_s = detach_after_s
        self._driver = DriverThread("gpu-driver")
        self._lock = FolderLock(settings.device_plugin_dir)
        self.ready = asyncio.Event()
        self.http_port = 0
        self.account: LedgerService | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            GpuError: no cards; or the driver does not come back to this process.
            DeviceListError: the unit is too small for these cards.
            UnitInUseError: containers hold IDs of another unit.
            SettingsError: the HTTP address cannot be had.
            ConfigError: no usable Kubernetes configuration.
        """
        structlog.contextvars.bind_contextvars(node=self._settings.node_name)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            await run_until(stop, self._open())
            if stop.is_set():
                return
            client = await stack.enter_async_context(
                await KubeClient.connect(self._settings.kubeconfig, user_agent="gpupack-node")
            )
            await self._serve(client, stack, stop)

    async def _open(self) -> None:
        call = asyncio.ensure_future(self._driver.call(self._source.open))
        while not (await asyncio.wait({call}, timeout=HANGS_S))[0]:
            log.warning("the cards' driver does not answer", waited_s=round(self._driver.busy_s))
        call.result()

    async def _close(self) -> None:
        """Let the driver go; one that does not answer is left to the end of the process."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._driver.call(self._source.close)
        except TimeoutError:
            log.warning("the cards' driver does not answer", waited_s=CLOSE_S)
        self._driver.end()

    def _make_own_pods(
        self,
        account: LedgerService,
        own_node: OwnNode,
        relist: Callable[[], None],
        prepared: PreparedClaims | None,
    ) -> OwnPods:
        make = partial(OwnPods, account, self._settings.resource, relist, holds_pod=own_node.holds_pod)
        if prepared is None:
            return make()
        return make(read_claims=prepared.read_request, awaits_claim=prepared.awaits_claim)

    async def _serve(self, client: KubeClient, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        settings = self._settings
        # 1. The cards, and who has what of them.
        gpus = tuple(self._source.cards())
        check_units(gpus, settings.unit_mib)
        cards = cards_in_units(gpus, settings.unit_mib)
        limit = settings.compute_limit_percent
        ledger = Ledger(cards, policy=settings.card_policy, compute_limit=limit)
        checkpoint_reader = CheckpointReader(settings.device_plugin_dir)
        prepared = make_prepared_claims(settings) if settings.serve == DRA else None
        account = self.account = LedgerService(
            ledger, (checkpoint_reader if prepared is None else prepared).read, settings.resource
        )
        # 2. What the API server shows, and what people are told there.
        relist_wanted = asyncio.Event()
        metrics = Metrics()
        recorder = EventRecorder(client, "gpupack-node", settings.node_name)
        models = {card.uuid: card.model for card in cards}
        notices = NodeEvents(recorder.event, settings.node_name, models, self._source.vendor.fault_event)
        own_node = OwnNode(
            account, settings.node_name, settings.unit_mib, notices.record_wrong_cordon, self._parents
        )
        pods = self._make_own_pods(account, own_node, relist_wanted.set, prepared)
        self._pods = pods
        # 3. What a container gets besides its cards: limits, and how it sees them.
        limit_capability = LimitCapability(
            account,
            self._source.limits,
            mode=settings.memory_limits,
            notices=notices,
            on_offer=account.notify_devices_changed,
        )
        enforcement = MemoryEnforcement(
            limit_capability, mps_clients := self._mps_clients(account, limit_capability)
        )
        responses = ContainerResponses(settings, self._source, limit_capability, mps_clients, enforcement)
        await responses.prepare()
        # 4. What serves the kubelet, and what watches the cards and their pods.
        self._pod_resources = PodResources(settings.pod_resources_socket)
        stack.push_async_callback(self._pod_resources.close)
        card_list = self._card_list(account, gpus, notices, own_node, limit_capability, enforcement)
        serving = self._serving = self._make_serving(
            client, prepared, checkpoint_reader, account, pods, own_node, card_list, responses, metrics
        )
        self._reconciler = Reconciler(account, pods, serving.watch_changes, self._cgroups, serving.purge)
        self._sampler = self._make_sampler(account, card_list, responses, notices)

        def find_enforcement(uid: str, container: str, uuid: str, units: int, cards: int) -> Enforcement:
            pod = account.ledger.accounts.pods.get(uid)
            ids = pod.given_ids.get(container, ()) if pod is not None else ()
            return enforcement.get_container_enforcement(uuid, units * settings.unit_mib, cards, ids)

        published_use = PublishedUse(find_enforcement, time.monotonic)
        self._annotator = AllocationAnnotator(client, account, pods, published_use)
        self._memory = ContainerMemoryService(
            settings,
            account,
            limit_capability,
            enforcement,
            published_use,
            pods,
            self._sampler,
            client,
            recorder,
            self._annotator.wake,
        )
        # 5. What is published on the Node.
        self._ownership = NodeOwnership(
            client,
            account,
            own_node,
            identify_daemon(settings.device_plugin_dir),
            node_name=settings.node_name,
            on_conflict=notices.record_other_daemon,
        )
        kind = self._node_kind(client, account, own_node)
        self._publisher = NodePublisher(
            client,
            account,
            own_node,
            pods,
            node_name=settings.node_name,
            unit_mib=settings.unit_mib,
            inventory=card_list.list_records,
            gap_s=settings.publish_gap_s,
            # Not before the kubelet has our devices: a pod that came earlier would fail.
            offers=lambda: self.ready.is_set() and kind.is_right,
            owns=self._owns_node,
            claims=dict if prepared is None else lambda: prepared.published,
            # A kubelet with no device plugin sets what it finds to 0 when it starts, and would fail the pods
            # that run: it lets them be where the Node lacks the resource.
            offers_compute=prepared is None,
        )
        # 6. Say how the daemon is, wait for its turn, and run all of this.
        status = DaemonStatus(
            settings=settings,
            account=account,
            reconciler=self._reconciler,
            serving=serving,
            pod_resources=self._pod_resources,
            sampler=self._sampler,
            own_node=own_node,
            pods=pods,
            ownership=self._ownership,
            publisher=self._publisher,
            annotator=self._annotator,
            memory=self._memory,
            neighbours=ForeignPluginWatcher(account, own_node, notices),
            recorder=recorder,
            why_no_names=lambda: responses.waiting,
        )
        self._fill(metrics, status)
        await self._listen(stack, metrics, status)
        # Not earlier: what the user got wrong is one line, without a log before it.
        self._log_start(cards)
        freeze_garbage_collector()
        stack.push_async_callback(self._end_events, recorder, asyncio.create_task(recorder.run()))
        stack.callback(self._lock.release)
        await run_until(stop, self._wait_to_serve(status, notices, responses))
        if stop.is_set():
            return
        # First: claims that are prepared have their CDI files written again, limits and all.
        await limit_capability.start()
        await serving.begin(self._cgroups)
        await run_until(
            stop,
            self._reconciler,
            self._reconciler.follow_checkpoint(),
            *(self._register(registrar) for registrar in serving.registrars),
            self._memory,
            self._sampler,
            self._sampler.follow_events(),
            self._ownership,
            self._publisher,
            kind,
            self._startup_taint(client, account, own_node),
            self._annotator,
            self._reflect(client, own_node, pods, relist_wanted),
            responses,
            serving,
            drain=self._stop_offering,
        )

    def _make_serving(
        self,
        client: KubeClient,
        prepared: PreparedClaims | None,
        checkpoint_reader: CheckpointReader,
        account: LedgerService,
        pods: OwnPods,
        own_node: OwnNode,
        card_list: CardList,
        responses: ContainerResponses,
        metrics: Metrics,
    ) -> DevicePluginServing | ClaimServing:
        """Make what serves the kubelet: a device plugin, or a DRA driver where claims are prepared."""
        if prepared is None:
            return DevicePluginServing(
                self._settings,
                account,
                pods,
                checkpoint_reader,
                self._pod_resources,
                responses.make_grant,
                metrics.count_call,
                self._on_registered,
                self._on_kubelet_restart,
            )
        return ClaimServing(
            self._settings,
            client,
            prepared,
            account,
            pods,
            own_node,
            card_list,
            self._source,
            checkpoint_reader,
            responses.make_grant,
            metrics.count_call,
            self._on_registered,
            self._owns_node,
        )

    def _make_sampler(
        self,
        account: LedgerService,
        card_list: CardList,
        responses: ContainerResponses,
        notices: NodeEvents,
    ) -> CardSampler:
        ledger = account.ledger
        driver = CardDriver(
            account,
            self._source,
            notices,
            self._driver,
            is_unused=lambda: ledger.is_unavailable("cordoned") and ledger.is_empty,
            detach_after_s=self._detach_after_s,
            look_s=min(self._sample_s, 1.0),
        )
        tracker = HealthTracker(self._settings.quiet_s)
        return CardSampler(
            account,
            self._source,
            self._owners,
            driver,
            CardHealth(account, tracker, notices, account.notify_devices_changed),
            unit_mib=self._settings.unit_mib,
            on_cards=card_list.apply_gpus,
            list_helper_pids=responses.list_helper_pids,
            notices=notices,
            every_s=self._sample_s,
        )

    async def _listen(self, stack: AsyncExitStack, metrics: Metrics, status: DaemonStatus) -> None:
        http = HttpServer(
            metrics,
            status.explain_not_ready,
            status.explain,
            lambda: self._sampler.driver_gone_reason,
            telemetry=lambda history: self._sampler.telemetry.explain(history=history),
        )
        self.http_port = (await http.start(stack, self._settings.http)).port

    def _log_start(self, cards: Sequence[Card]) -> None:
        log.info("gpupack node", **self._settings.shown())
        log.info("cards", cards=[f"{card.uuid} {card.model} {card.size_units}" for card in cards])

    def _fill(self, metrics: Metrics, status: DaemonStatus) -> None:
        metrics.add_collector(
            StateCollector(
                self._settings.unit_mib,
                status.list_card_states,
                status.describe_node,
                status.list_gauges(),
                status.list_counters(),
                self._source.vendor.fault,
            )
        )
        metrics.add_collector(self._memory.make_metrics(), self._memory.read_use)
        metrics.add_collector(TelemetryCollector(self._sampler.telemetry.list_activities))

    def _node_kind(self, client: KubeClient, account: LedgerService, own_node: OwnNode) -> NodeKindMark:
        return NodeKindMark(
            client,
            account,
            own_node,
            node_name=self._settings.node_name,
            resource=self._settings.resource,
            serves_claims=self._settings.serve == DRA,
            owns=self._owns_node,
        )

    def _owns_node(self) -> bool:
        return self._ownership.owns_node

    def _startup_taint(self, client: KubeClient, account: LedgerService, own_node: OwnNode) -> StartupTaint:
        return StartupTaint(
            client,
            account,
            own_node,
            node_name=self._settings.node_name,
            resource=None if self._settings.serve == DRA else self._settings.resource,
            serves=lambda: self._owns_node() and self._publisher.problem is None,
        )

    async def _end_events(self, recorder: EventRecorder, running: asyncio.Task[None]) -> None:
        """Stop writing Events, after the one that says why the daemon ends."""
        if self._sampler.driver_gone_reason is not None:
            await recorder.drain(LAST_EVENTS_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def _mps_clients(self, account: LedgerService, limit_capability: LimitCapability) -> MpsClients | None:
        settings = self._settings
        control = settings.provider.make_mps_control(settings.mps_root)
        if settings.sharing != MPS or control is None:
            return None
        return MpsClients(
            account,
            control,
            lambda uuid: limit_capability.get_support(uuid).can_limit,
            unit_mib=settings.unit_mib,
            threads=settings.mps_threads,
            requires_compute=settings.compute_limits == REQUIRE,
        )

    def _card_list(
        self,
        account: LedgerService,
        gpus: tuple[GpuCard, ...],
        notices: NodeEvents,
        own_node: OwnNode,
        limit_capability: LimitCapability,
        enforcement: MemoryEnforcement,
    ) -> CardList:
        def apply_cards() -> None:
            limit_capability.update_cards()
            account.notify_devices_changed()
            # What people cordoned may be among the new cards.
            if own_node.node is not None:
                own_node.apply_node(own_node.node)

        return CardList(
            account,
            gpus,
            self._settings.unit_mib,
            notices,
            apply_cards,
            enforcement.get_enforcement,
            lambda: account.ledger.is_unavailable("detached"),
        )

    def _parents(self) -> dict[str, str]:
        """Map UUIDs of instances to those of their whole cards."""
        return {card.uuid: card.parent for card in self._source.cards() if card.parent is not None}

    async def _wait_to_serve(
        self, status: DaemonStatus, notices: NodeEvents, responses: ContainerResponses
    ) -> None:
        await self._wait_for_turn(status, notices)
        await responses.wait_for_names()

    async def _wait_for_turn(self, status: DaemonStatus, notices: NodeEvents) -> None:
        """Wait until no other daemon serves our kubelet."""
        while not self._lock.acquire():
            if status.waiting is None:
                holder = self._lock.find_holder_pid()
                process = "" if holder is None else f" (process {holder})"
                status.waiting = (
                    f"another gpupack node daemon{process} serves the kubelet of "
                    f"{self._settings.device_plugin_dir}: this one waits until that one ends; "
                    "one of the two is to be removed"
                )
                log.error("waiting", reason=status.waiting)
                notices.record_other_daemon(status.waiting)
            await asyncio.sleep(TURN_S)
        if status.waiting is not None:
            log.info("the other daemon has ended, going on")
        status.waiting = None

    async def _register(self, registrar: Registers) -> None:
        """Offer our devices once the kubelet's checkpoint shows which ones are in use, and in which unit."""
        await self._reconciler.can_register.wait()
        await registrar.run()

    async def _reflect(
        self, client: KubeClient, own_node: OwnNode, pods: OwnPods, relist_wanted: asyncio.Event
    ) -> None:
        """Follow the own Node, then its pods: the ledger wants to hear first what it published before."""
        name = self._settings.node_name
        node_reflector = Reflector(
            client, NODES_PATH, NodeObject, own_node, params={"fieldSelector": f"metadata.name={name}"}
        )
        pod_reflector = Reflector(
            client,
            PODS_PATH,
            PodObject,
            pods,
            params={"fieldSelector": f"spec.nodeName={name}"},
            relist_wanted=relist_wanted,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(node_reflector.run())
            await own_node.listed.wait()
            group.create_task(pod_reflector.run())

    async def _stop_offering(self) -> None:
        def under_way() -> bool:
            account = self.account
            return (
                account is not None
                and self._serving.registrars.is_registered
                and bool(account.ledger.unpublished_pods())
            )

        await publish_full_and_wait(self._publisher.publish_full, under_way, self._shutdown_timeouts)

    def _on_kubelet_restart(self) -> None:
        self._reconciler.apply_kubelet_restart()

    def _on_registered(self) -> None:
        if self._serving.registrars.is_registered:
            self.ready.set()
        if self.account is not None:
            self.account.notify_subscribers()


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Be the node daemon until `stop` is set.

    Raises:
        SettingsError: lists every fault.
        DevicePluginError: see `Daemon.run`.
        KubeApiError: no usable Kubernetes configuration.
    """
    settings.check()
    await Daemon(settings).run(stop)
    log.info("stopped")
