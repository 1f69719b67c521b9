"""What a daemon with some settings gives its containers."""

from allocator.ledger import Ledger
from deviceplugin.allocation.inventory import cards_in_units
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.container_responses import ContainerResponses
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.settings import Settings


def container_responses_of(settings: Settings, source: GpuSource) -> ContainerResponses:
    """What containers are given of cards whose driver was not asked for limits."""
    account = LedgerService(
        Ledger(cards_in_units(tuple(source.cards()), settings.unit_mib)), lambda: None, settings.resource
    )
    limits = LimitCapability(account, None)
    return ContainerResponses(settings, source, limits, None, MemoryEnforcement(limits))
