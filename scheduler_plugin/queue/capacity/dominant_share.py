"""Dominant share of a queue: its largest part of any resource of the cluster. Pure.

Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.
"""

from scheduler_plugin.cache.amounts import Amounts


def find_dominant(has: Amounts, total: Amounts) -> tuple[str, float]:
    """Find the resource of which a queue has the largest fraction, and that fraction.

    Of equal fractions the first in the order of the names below counts. A resource that the cluster lacks
    does not count.

    Returns:
        `gpu-memory`, `cpu` or `memory`, and a fraction; an empty name and 0 if the queue uses nothing.
    """
    parts = {
        name: own / all_of_it
        for name, own, all_of_it in (
            ("gpu-memory", has.units, total.units),
            ("cpu", has.cpu_milli, total.cpu_milli),
            ("memory", has.memory_bytes, total.memory_bytes),
        )
        if all_of_it > 0
    }
    name = max(parts, key=parts.__getitem__, default="")
    return (name, parts[name]) if name and parts[name] else ("", 0.0)
