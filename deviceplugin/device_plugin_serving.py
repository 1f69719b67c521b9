"""Puts together the parts that serve a node's pods through the kubelet's device plugins."""

import asyncio
from collections.abc import AsyncIterator, Callable

from allocator.names import PERCENT_RESOURCE
from deviceplugin.allocation.allocation_service import AllocationService, MakeGrant
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.allocation.reconciler import CgroupProber
from deviceplugin.dra.serving import check_no_claims
from deviceplugin.kubelet.call_runner import Observe
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.pod_resources import PodResources
from deviceplugin.kubelet.registrars import Registrars
from deviceplugin.kubelet.registration import KUBELET_SOCKET, Registrar
from deviceplugin.kubelet.sockets import clear_left_over, name_of_our_own
from deviceplugin.settings import Settings


class DevicePluginServing:
    """The parts of a node daemon whose pods get their cards by device plugins.

    Like `ClaimServing`, which a daemon has instead with `--serve dra`.

    Attributes:
        registrars: Keep a plugin of units and one of percent registered with the kubelet.
        problem: None: what may be wrong with these parts is told by `registrars` and `PodResources`.
    """

    problem: None = None

    def __init__(
        self,
        settings: Settings,
        account: LedgerService,
        pods: OwnPods,
        checkpoint_reader: CheckpointReader,
        pod_resources: PodResources,
        make_grant: MakeGrant,
        observe: Observe,
        on_registered: Callable[[], None],
        on_kubelet_restart: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._checkpoint_reader = checkpoint_reader
        self._pod_resources = pod_resources

        def make(*, percent: bool) -> DevicePlugin:
            service = AllocationService(
                account,
                settings.unit_mib,
                percent=percent,
                request_list=pods.request_list,
                list_admitted_pods=pod_resources.list_admitted_pods,
                make_grant=make_grant,
            )
            plugin = DevicePlugin(service, observe=observe)
            account.subscribe_devices(plugin.send_devices)
            return plugin

        def keep_registered(plugin: DevicePlugin, endpoint: str, resource: str) -> Registrar:
            return Registrar(
                plugin,
                settings.device_plugin_dir,
                name_of_our_own(endpoint),
                resource,
                on_registered=on_registered,
                on_kubelet_restart=on_kubelet_restart,
            )

        self.plugin = make(percent=False)
        self.registrars = Registrars(
            [
                keep_registered(self.plugin, settings.endpoint, settings.resource),
                keep_registered(make(percent=True), settings.percent_endpoint, PERCENT_RESOURCE),
            ],
            f"listen on {settings.device_plugin_dir / KUBELET_SOCKET}",
        )

    async def begin(self, cgroups: CgroupProber) -> None:
        """Take over from an earlier daemon.

        Raises:
            KindInUseError: containers run that have their cards by claims.
        """
        await asyncio.to_thread(check_no_claims, self._settings, cgroups)
        for endpoint in (self._settings.endpoint, self._settings.percent_endpoint):
            clear_left_over(self._settings.device_plugin_dir, endpoint)

    def watch_changes(self) -> AsyncIterator[None]:
        return self._checkpoint_reader.watch_changes()

    async def purge(self) -> None:
        """Have the kubelet drop pods that are gone; it writes its checkpoint after any list of devices."""
        await self._pod_resources.purge_checkpoint(self.plugin.send_devices)

    async def run(self) -> None:
        """Do nothing: `registrars` runs by itself."""
