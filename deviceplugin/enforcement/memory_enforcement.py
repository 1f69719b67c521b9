"""Choose what limits the memory of a card's containers: the driver, else MPS, else nothing. Compute: MPS."""

from collections.abc import Collection

from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.mps_clients import MpsClients
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.mps import LimitedContainer


class MemoryEnforcement:
    """Joins what the driver and MPS limit."""

    def __init__(self, limit_capability: LimitCapability, mps_clients: MpsClients | None = None) -> None:
        self._limit_capability = limit_capability
        self._mps_clients = mps_clients

    def get_enforcement(self, uuid: str) -> Enforcement:
        """Return what limits containers that a card is given to now."""
        if self._limit_capability.get_support(uuid).can_limit:
            return Enforcement.DRIVER
        return Enforcement.ACCOUNTED if self._mps_clients is None else self._mps_clients.get_enforcement(uuid)

    def get_container_enforcement(self, uuid: str, mib: int, cards: int, ids: Collection[str]) -> Enforcement:
        """Return what limits the memory of one container.

        Args:
            mib: what it was given of the card.
            cards: how many cards it has in all.
            ids: its device IDs.
        """
        if self._limit_capability.get_support(uuid).can_limit:
            return Enforcement.DRIVER
        found = self._find_limits(uuid, mib, cards, ids)
        return Enforcement.MPS if any(limits.mib for limits in found) else Enforcement.ACCOUNTED

    def get_compute_enforcement(
        self, uuid: str, mib: int, cards: int, compute: int, ids: Collection[str]
    ) -> Enforcement:
        """Tell what limits the compute of one container on a card, which the driver never does.

        Args:
            mib: as for `get_container_enforcement`, and the others likewise.
            compute: percent that it asks for.
        """
        found = self._find_limits(uuid, mib, cards, ids)
        return (
            Enforcement.MPS if any(limits.percent == compute for limits in found) else Enforcement.ACCOUNTED
        )

    def _find_limits(
        self, uuid: str, mib: int, cards: int, ids: Collection[str]
    ) -> Collection[LimitedContainer]:
        return () if self._mps_clients is None else self._mps_clients.find_limits(uuid, mib, cards, ids)
