"""The texts that people read in a pod's events.

A reason depends on the request's shape alone: kube-scheduler writes reasons into the pod, and a pod whose
text changes is queued again at once. Numbers that change belong to `gpupack why`.
"""

from collections.abc import Sequence
from typing import Final

from allocator.names import MIB_PER_GIB
from allocator.request import Demand
from scheduler_plugin.scheduling.filtering import Misfit

REQUEUED: Final = "its release was taken back: it waits in its queue again"
"""Said of every node to kube-scheduler, which tries pods that the queue has requeued like any other."""

_FIXED = {
    Misfit.UNKNOWN_NODE: "node not known to the gpupack scheduler yet",
    Misfit.NO_WORDS: "no gpupack words on the node",
    Misfit.CORRUPT: "corrupt gpupack words on the node",
    Misfit.OTHER_UNIT: "gpupack words of another unit on the node",
    Misfit.NO_PLUGIN: "the node's kubelet has no gpupack device plugin at the moment",
    Misfit.HELD_BACK: "held back by the node policy",
    Misfit.NO_SUCH_CARD: "no card of the cluster that the pod's gpu-model and gpu-uuid admit",
}

CLOSEST_FIRST: Final = (
    Misfit.HELD_BACK,
    Misfit.NOT_FREE,
    Misfit.TOO_SMALL,
    Misfit.NOT_ADMITTED,
    Misfit.NO_SUCH_CARD,
    Misfit.NO_PLUGIN,
    Misfit.CORRUPT,
    Misfit.OTHER_UNIT,
    Misfit.UNKNOWN_NODE,
    Misfit.NO_WORDS,
)
"""How near a node is to taking a pod, for whatever names one reason out of many: `why`, metrics."""


def memory(units: int, unit_mib: int) -> str:
    """Write an amount of GPU memory for people: in GiB where it is whole, else in MiB."""
    mib = units * unit_mib
    return f"{mib // MIB_PER_GIB} GiB" if mib % MIB_PER_GIB == 0 else f"{mib} MiB"


def amount(demand: Demand, unit_mib: int) -> str:
    """Write what a demand takes of each card: "8 GiB", "50 percent"."""
    return f"{demand.per_card} percent" if demand.percent else memory(demand.per_card, unit_mib)


def _of_size(demand: Demand, unit_mib: int) -> str:
    what = amount(demand, unit_mib)
    return f"of which {what} is a unit" if demand.percent else f"of {what} or more"


def demanded(demands: Sequence[Demand], unit_mib: int) -> str:
    """Write what a pod asks of cards: "8 GiB", "2 x 8 GiB + 4 GiB", "50 percent"."""
    return " + ".join(
        amount(demand, unit_mib) if demand.cards == 1 else f"{demand.cards} x {amount(demand, unit_mib)}"
        for demand in demands
    )


def reason(misfit: Misfit, demands: Sequence[Demand], unit_mib: int) -> str:
    """Say why a node cannot take a pod.

    Args:
        misfit: What was found.
        demands: What the pod asks for, in order.
        unit_mib: MiB a unit.
    """
    fixed = _FIXED.get(misfit)
    if fixed is not None:
        return fixed
    if len(demands) > 1:
        what = demanded(demands, unit_mib)
        return {
            Misfit.NOT_ADMITTED: "no cards that the pod's gpu-model and gpu-uuid admit",
            Misfit.TOO_SMALL: f"no healthy cards that hold {what} together",
        }.get(misfit, f"no cards with {what} free")
    cards, each = demands[0].cards, amount(demands[0], unit_mib)
    if cards == 1:
        return {
            Misfit.NOT_ADMITTED: "no card that the pod's gpu-model and gpu-uuid admit",
            Misfit.TOO_SMALL: f"no healthy card {_of_size(demands[0], unit_mib)}",
        }.get(misfit, f"no card with {each} free")
    return {
        Misfit.NOT_ADMITTED: f"no {cards} cards that the pod's gpu-model and gpu-uuid admit",
        Misfit.TOO_SMALL: f"no {cards} healthy cards {_of_size(demands[0], unit_mib)}",
    }.get(misfit, f"no {cards} cards with {each} free each")
