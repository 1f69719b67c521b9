"""What containers are given besides their cards, made as the settings say."""

import asyncio
from collections.abc import Collection, Mapping

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.containers.cdi import CdiNames, refresh_repeatedly
from deviceplugin.containers.device_lists import DeviceListStrategies, needs_cdi_names
from deviceplugin.containers.device_nodes import DEVICES, DRIVERS, DeviceNodes
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.mps_clients import MpsClients
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.settings import DRA, MPS, Settings


class ContainerResponses:
    """The parts of it.

    Args:
        settings: of the daemon.
        source: the cards.
    """

    def __init__(self, settings: Settings, source: GpuSource) -> None:
        self._settings = settings
        self._source = source
        strategies = settings.device_list_strategy
        devices = DEVICES if settings.provider.has_device_nodes else None
        self._cdi = (
            CdiNames(source.vendor, settings.cdi_dirs, devices) if needs_cdi_names(strategies) else None
        )
        self._sharing: MpsClients | None = None
        nodes = DeviceNodes(source.vendor, source.cards, devices, DRIVERS)
        # The CDI file of a claim is all that the runtime reads of it.
        gives_nodes = settings.pass_device_specs or settings.serve == DRA
        self._handover = DeviceListStrategies(
            source.vendor, strategies, self._cdi, nodes if gives_nodes else None
        )

    def describe_cards(self, mib: Mapping[str, int]) -> ContainerGrant:
        """Describe the cards of a container, of which it has so many MiB each, by UUID."""
        return self._handover.describe_cards(list(mib))

    async def prepare(self) -> None:
        """Read what must be known before the first container."""
        if self._cdi is not None:
            await asyncio.to_thread(self._cdi.refresh, self._source.cards())

    def join(self, account: LedgerService, supports: LimitCapability) -> None:
        """Have containers given their cards; MPS where the driver does not limit, else advice if chosen."""
        settings = self._settings
        account.grants.append(self.describe_cards)
        provider = settings.provider
        service = provider.make_mps_control(settings.mps_root, threads=settings.mps_threads)
        if settings.sharing == MPS and service is not None:
            self._sharing = MpsClients(
                account,
                service,
                lambda uuid: supports.get_support(uuid).can_limit,
                unit_mib=settings.unit_mib,
            )
            supports.fallback = self._sharing.get_enforcement
            supports.covers = self._sharing.can_limit

        def advice(mib: Mapping[str, int]) -> ContainerGrant:
            uuid, *others = mib
            if others or supports.get_enforcement(uuid) is not Enforcement.ACCOUNTED:
                return ContainerGrant()
            totals = {card.uuid: card.total_mib for card in self._source.cards()}
            return ContainerGrant(provider.make_framework_envs(mib[uuid], totals.get(uuid, 0)))

        if settings.advise_frameworks:
            account.grants.append(advice)

    def list_helper_pids(self) -> Collection[int]:
        """Pids of processes that only serve the containers of the cards."""
        return self._sharing.list_server_pids() if self._sharing is not None else ()

    async def run(self) -> None:
        """Follow what may change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._cdi is not None:
                group.create_task(refresh_repeatedly(self._cdi, self._source.cards))
            if self._sharing is not None:
                group.create_task(self._sharing.run())
            await asyncio.Event().wait()
