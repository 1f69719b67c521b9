"""Choose what limits the memory of a card's containers: the driver, else MPS, else nothing. Compute: MPS."""

from collections.abc import Collection

from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.mps_clients import MpsClients
from deviceplugin.gpus.api.memory_limits import Enforcement


class MemoryEnforcement:
    """Joins what the driver and MPS limit."""

    def __init__(self, limit_capability: LimitCapability, mps_clients: MpsClients | None = None) -> None:
        self._limit_capability = limit_capability
        self._mps_clients = mps_clients

    def get_enforcement(self, uuid: str) -> Enforcement:
        if self._limit_capability.get_support(uuid).can_limit:
            return Enforcement.DRIVER
        return Enforcement.ACCOUNTED if self._mps_clients is None else self._mps_clients.get_enforcement(uuid)

    def get_container_enforcement(self, uuid: str, mib: int, cards: int) -> Enforcement:
        """Return what limits one container with so many MiB of a card, and so many cards in all."""
        found = self.get_enforcement(uuid)
        if found is Enforcement.MPS and self._mps_clients is not None:
            return found if self._mps_clients.can_limit(uuid, mib, cards) else Enforcement.ACCOUNTED
        return found

    def get_compute_enforcement(
        self, uuid: str, mib: int, cards: int, compute: int, ids: Collection[str]
    ) -> Enforcement:
        """Tell what limits the compute of one container on a card, which the driver never does.

        Args:
            mib: as for `get_container_enforcement`, and `cards` likewise.
            compute: percent that it asks for.
            ids: its device IDs.
        """
        mps = self._mps_clients
        limited = mps is not None and mps.limits_compute(uuid, mib, cards, compute, ids)
        return Enforcement.MPS if limited else Enforcement.ACCOUNTED
