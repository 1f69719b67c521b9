"""What containers are given besides their cards, made as the settings say."""

import asyncio
from collections.abc import Sequence

from deviceplugin.gpus.advice import framework_envs
from deviceplugin.gpus.cdi import CdiNames
from deviceplugin.gpus.grant import ContainerGrant
from deviceplugin.gpus.handover import Handover, uses_cdi
from deviceplugin.gpus.limits import Enforcement
from deviceplugin.gpus.nodes import DeviceNodes
from deviceplugin.gpus.source import GpuSource
from deviceplugin.mps.service import MpsService
from deviceplugin.node.account import Account
from deviceplugin.node.sharing import Sharing
from deviceplugin.node.supports import Supports
from deviceplugin.settings import MPS, Settings


async def cdi_names(settings: Settings, source: GpuSource) -> CdiNames | None:
    """Read how CDI names the cards; None where it is not used."""
    if not uses_cdi(settings.device_list_strategy):
        return None
    names = CdiNames(source.vendor, settings.cdi_dirs)
    await asyncio.to_thread(lambda: names.refresh(source.cards()))
    return names


def handover(settings: Settings, source: GpuSource, cdi: CdiNames | None) -> Handover:
    """Make what tells containers their cards."""
    nodes = DeviceNodes(source.vendor, source.cards) if settings.pass_device_specs else None
    return Handover(source.vendor, settings.device_list_strategy, cdi, nodes)


def sharing(settings: Settings, account: Account, supports: Supports) -> Sharing | None:
    """Have MPS hold containers where the driver does not; None where nobody chose that."""
    if settings.sharing != MPS:
        return None
    service = MpsService(settings.mps_root, threads=settings.mps_threads)
    found = Sharing(account, service, lambda uuid: supports.of(uuid).held, unit_mib=settings.unit_mib)
    supports.fallback = found.enforcement
    return found


def advise(settings: Settings, account: Account, supports: Supports, source: GpuSource) -> None:
    """Have frameworks told their share where nothing holds them to it, if that was chosen."""

    def advice(shares: Sequence[tuple[str, int]]) -> ContainerGrant:
        (uuid, units), *others = shares
        if others or supports.enforcement(uuid) is not Enforcement.ACCOUNTED:
            return ContainerGrant()
        totals = {card.uuid: card.total_mib for card in source.cards()}
        return ContainerGrant(framework_envs(units * settings.unit_mib, totals.get(uuid, 0)))

    if settings.advise_frameworks:
        account.extras.append(advice)
