"""Makes what containers are given besides their cards, as the settings say."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from deviceplugin.containers.cdi import CdiNames, refresh_repeatedly
from deviceplugin.containers.device_lists import DeviceListStrategies, needs_cdi_names
from deviceplugin.containers.device_nodes import DEVICES, DRIVERS, DeviceNodes
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.enforcement.mps_clients import MpsClients
from deviceplugin.gpus.api.container_grant import ContainerGrant, Mount
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.option_values import DRA
from deviceplugin.settings import Settings

log = structlog.get_logger(__name__)

NAMES_LOOK_S: Final = 1.0
"""Time between two searches for the specification that names the cards, while nothing can be served."""


class ContainerResponses:
    """Makes what a container is given besides the IDs of its devices."""

    def __init__(
        self,
        settings: Settings,
        source: GpuSource,
        limit_capability: LimitCapability,
        mps_clients: MpsClients | None,
        enforcement: MemoryEnforcement,
    ) -> None:
        self._settings = settings
        self._source = source
        self._limit_capability = limit_capability
        self._mps_clients = mps_clients
        self._enforcement = enforcement
        strategies = settings.device_list_strategy
        devices = DEVICES if settings.provider.has_device_nodes else None
        self._cdi = (
            CdiNames(source.vendor, settings.cdi_dirs, devices) if needs_cdi_names(strategies) else None
        )
        nodes = DeviceNodes(source.vendor, source.cards, devices, DRIVERS)
        # The CDI file of a claim is all that the runtime reads of it.
        gives_nodes = settings.pass_device_specs or settings.serve == DRA
        self._strategies = DeviceListStrategies(
            source.vendor, strategies, self._cdi, nodes if gives_nodes else None
        )

    async def prepare(self) -> None:
        if self._cdi is not None:
            await asyncio.to_thread(self._cdi.refresh, self._source.cards())

    @property
    def waiting(self) -> str | None:
        """What the first container has to wait for; None for nothing."""
        if self._cdi is None or not self._cdi.is_waiting:
            return None
        folders = ", ".join(map(str, self._settings.cdi_dirs))
        return f"no CDI specification in {folders} has the cards yet, the vendor's toolkit may be writing one"

    async def wait_for_names(self) -> None:
        """Wait until the cards have CDI names, if containers need them."""
        if self.waiting is not None:
            log.info("waiting", reason=self.waiting)
        while self.waiting is not None:
            await asyncio.sleep(NAMES_LOOK_S)
            await self.prepare()

    async def make_grant(
        self, mib: Mapping[str, int], compute: int = 0, ids: Collection[str] = ()
    ) -> ContainerGrant:
        """Describe a container's cards to it. Where parts have the same variable, the later part's counts.

        Args:
            compute: percent that it asks for of each card's compute; 0 if for none.
            ids: its device IDs.

        Raises:
            AllocationRefusedError: a limit that is required is missing.
        """
        grant = ContainerGrant(self._limit_capability.container_envs(mib))
        grant += self._strategies.describe_cards(list(mib))
        if self._settings.driver_dir is not None and (folder := self._source.vendor.driver_folder):
            grant += ContainerGrant(mounts=(Mount(folder, str(self._settings.driver_dir), read_only=True),))
        if self._mps_clients is not None:
            grant += await self._mps_clients.make_grant(mib, compute, ids)
        if self._settings.advise_frameworks:
            grant += self._advise_frameworks(mib)
        return grant

    def _advise_frameworks(self, mib: Mapping[str, int]) -> ContainerGrant:
        uuid, *others = mib
        if others or self._enforcement.get_enforcement(uuid) is not Enforcement.ACCOUNTED:
            return ContainerGrant()
        totals = {card.uuid: card.total_mib for card in self._source.cards()}
        return ContainerGrant(self._settings.provider.make_framework_envs(mib[uuid], totals.get(uuid, 0)))

    def list_helper_pids(self) -> Collection[int]:
        """List the pids of processes that only serve the containers of the cards."""
        return self._mps_clients.list_server_pids() if self._mps_clients is not None else ()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._cdi is not None:
                group.create_task(refresh_repeatedly(self._cdi, self._source.cards))
            if self._mps_clients is not None:
                group.create_task(self._mps_clients.run())
