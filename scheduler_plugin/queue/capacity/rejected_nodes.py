"""Nodes that the committer of batch mode did not bind pods to, though their cards fit. Pure.

The queue does not know everything that kube-scheduler's filters check: the number of pods on a node, further
resources, anti-affinity. Without this module it would name the same best nodes again and again. So pods with
equal requirements skip such nodes for a while; once no other node is left, they start with the best one
again.
"""

from collections.abc import Collection, Mapping
from typing import Final

from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.queue.capacity.requirements import PodRequirements

REJECTED_S: Final = 300.0
"""So long other nodes come first, as long as the longest pause of a pod that was refused."""


class RejectedNodes:
    """Remembers, by the pods' requirements, the nodes that rejected them, and until when."""

    def __init__(self) -> None:
        self._until: dict[PodRequirements, dict[str, float]] = {}

    def __contains__(self, requirements: object) -> bool:
        return requirements in self._until

    def add(self, requirements: PodRequirements, nodes: Collection[str], now: float) -> None:
        """Record that pods with these requirements were rejected on some nodes."""
        if nodes:
            self._until.setdefault(requirements, {}).update(dict.fromkeys(nodes, now + REJECTED_S))

    def expire(self, now: float) -> None:
        for requirements, nodes in list(self._until.items()):
            for name in [name for name, until in nodes.items() if until <= now]:
                del nodes[name]
            if not nodes:
                del self._until[requirements]

    def leave_out(
        self, requirements: PodRequirements, fits: BoolArray, rows: Mapping[str, int]
    ) -> tuple[BoolArray, bool]:
        """Leave out the nodes where pods with these requirements were rejected.

        Args:
            fits: bool[R], where it fits.
            rows: Rows by name of the node.

        Returns:
            The remaining rows and True; if none remains, all of `fits` and False.
        """
        rejected = self._until.get(requirements)
        if rejected is None:
            return fits, True
        left = fits.copy()
        left[[rows[name] for name in rejected if name in rows]] = False
        return (left, True) if left.any() else (fits, False)
