"""Dominant share of a queue: its largest part of any resource of the cluster. Pure.

Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.
"""

from typing import NamedTuple


class QueueResources(NamedTuple):
    """Resources of pods, or of the whole cluster.

    Attributes:
        units: Units of GPU memory.
        cpu_milli: Thousandths of a core.
        memory_bytes: Bytes of host memory.
    """

    units: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def plus(self, other: "QueueResources", times: int = 1) -> "QueueResources":
        """Add `times` times another amount; -1 subtracts it."""
        return QueueResources(*(own + times * theirs for own, theirs in zip(self, other, strict=True)))


def find_dominant(has: QueueResources, total: QueueResources) -> tuple[str, float]:
    """Find the resource of which a queue has the largest fraction, and that fraction.

    Of equal fractions the first in the order of `QueueResources` counts. A resource that the cluster lacks
    does not count.

    Returns:
        `gpu-memory`, `cpu` or `memory`, and a fraction; an empty name and 0 if the queue uses nothing.
    """
    parts = {
        name: own / all_of_it
        for name, own, all_of_it in zip(("gpu-memory", "cpu", "memory"), has, total, strict=True)
        if all_of_it > 0
    }
    name = max(parts, key=parts.__getitem__, default="")
    return (name, parts[name]) if name and parts[name] else ("", 0.0)
