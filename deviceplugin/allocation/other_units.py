"""Pods of the time before the unit was changed, which may be done on a drained node only."""

from collections.abc import Collection, Iterable

from allocator.ledger import CheckpointEntry
from allocator.names import unit_of_resource
from deviceplugin.errors import UnitInUseError


class OtherUnitPods:
    """Knows the pods that have devices of another unit, by the kubelet's checkpoint.

    Attributes:
        resource_by_pod: Resource of another unit by UID, of pods in the checkpoint that are not known to have
            ended.
    """

    def __init__(self, resource: str) -> None:
        self.resource_by_pod: dict[str, str] = {}
        self._resource = resource
        self._ended: set[str] = set()

    def apply_entries(self, entries: Iterable[CheckpointEntry]) -> None:
        others = {resource for resource in {entry.resource for entry in entries} if self._is_other(resource)}
        found = {entry.uid: entry.resource for entry in entries if entry.resource in others} if others else {}
        self._ended &= found.keys()
        self.resource_by_pod = {uid: name for uid, name in found.items() if uid not in self._ended}

    def check_ended(
        self, asked: Collection[str], running: Collection[str], living: Collection[str] | None
    ) -> None:
        """Check that the pods with devices of another unit have ended.

        Args:
            asked: their UIDs, of `resource_by_pod`.
            living: UIDs, as the kubelet knows them, of the pods on this node that have not ended by the API
                server. None while it has not been heard.

        Raises:
            UnitInUseError: one of them has not ended.
        """
        for uid in sorted(asked):
            if uid in running or uid in (living or ()):
                raise UnitInUseError(
                    f"pod {uid} holds {self.resource_by_pod.get(uid)}, this daemon offers {self._resource}: "
                    "a unit is changed on a drained node only, drain this one"
                )
        if living is not None:
            self._ended.update(asked)
            self.resource_by_pod = {
                uid: name for uid, name in self.resource_by_pod.items() if uid not in self._ended
            }

    def _is_other(self, resource: str) -> bool:
        return resource != self._resource and unit_of_resource(resource) is not None
